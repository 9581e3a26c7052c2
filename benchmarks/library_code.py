"""Parts of an installed or unpacked library, run without the library around them.

A library such as vLLM cannot be imported where its compiled extensions are missing. Its kernels
and its lookup of tables are plain functions: they are copied by name from the file that the
package has, unchanged, into a module in a temporary folder.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType


def found_on_path(relative: str) -> Path:
    """A file of a package on Python's import path."""
    for folder in sys.path:
        if (Path(folder) / relative).is_file():
            return Path(folder) / relative
    raise FileNotFoundError(f"no folder of the import path has {relative}")


def functions_of(file: Path, names: tuple[str, ...], head: str) -> ModuleType:
    """A module with the functions of a file. head: the code before them."""
    source = file.read_text()
    lines = source.splitlines()
    parts = [head]
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            parts.append("\n".join(lines[first - 1 : node.end_lineno]))
    text = "\n\n\n".join(parts) + "\n"
    name = f"library_code_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    path = Path(tempfile.gettempdir()) / f"{name}.py"
    if not path.is_file():  # several processes may write it at once
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(text)
        own.replace(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
