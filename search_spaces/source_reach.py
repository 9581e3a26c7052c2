"""The source files that a kernel reaches by import statements, whether imported yet or not.

The walk reads files and imports nothing. It covers import statements anywhere in a file, also those
inside functions. It ends at the standard library, torch, triton and the farm's own packages; in
other installed packages it covers the modules that the user's own files name. Another rule of which
files belong to the walk can be given.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from search_spaces.source_positions import is_own
from tuner.runtime.identity import stamp

_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Reach:
    """Files and their imports of each other."""

    #: Each file that was reached, with the name of its module; the first is the kernel's own.
    modules: dict[str, str] = field(default_factory=dict)
    #: For each file, the reached files that its import statements name.
    imports: dict[str, set[str]] = field(default_factory=dict)

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Modification time in ns and size of each file; zeros for a missing file."""
        return {file: stamp(file) for file in self.modules}

    def dependents(self, files: set[str]) -> set[str]:
        """The given files and all reached files that import one of them, directly or not."""
        found = set(files) & self.modules.keys()
        while True:
            more = {file for file, named in self.imports.items() if named & found} - found
            if not more:
                return found
            found |= more


def reach_of(file: Path, module: str, belongs: Callable[[str], bool] = is_own) -> Reach:
    """The files that a module reaches, its own file included.

    module: its import name. belongs: whether the walk takes a file, and goes on from there.
    """
    reach = Reach()
    waiting = [(f"{file}", module)]
    while waiting:
        source, name = waiting.pop()
        if source in reach.modules:
            continue
        reach.modules[source] = name
        named = reach.imports[source] = set()
        if any(f"/{folder}/" in source for folder in _INSTALLED):
            continue
        package = name if source.endswith("__init__.py") else name.rpartition(".")[0]
        for imported, origin in _origins(source, package, name, belongs):
            named.add(origin)
            waiting.append((origin, imported))
    return reach


def digest_code(files: Iterable[str]) -> str:
    """A digest of what Python files say: of their syntax trees, whatever their order and layout.

    Comments and blank lines do not count; a file that does not parse counts by its bytes.
    """
    said = sorted(_digest_file(file, *stamp(file)) for file in files)
    return hashlib.sha256("".join(said).encode()).hexdigest()[:16]


@lru_cache(maxsize=4096)
def _digest_file(file: str, modified: int, size: int) -> str:
    text = Path(file).read_bytes()
    try:
        said = ast.dump(ast.parse(text)).encode()
    except (SyntaxError, ValueError):
        said = text
    return hashlib.sha256(said).hexdigest()


def _origins(
    file: str, package: str, module: str, belongs: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    """The modules that a file imports, and the packages it is in, by name and file.

    Only those that belong to the walk.
    """
    folder = f"{Path(file).parent}"
    inside = _with_parents(module.rpartition(".")[0])
    for name in (*inside, *_list_imports(file, package, *stamp(file))):
        origin = module_file(name, folder)
        if origin and belongs(origin):
            yield name, origin


@lru_cache(maxsize=4096)
def _list_imports(file: str, package: str, modified: int, size: int) -> tuple[str, ...]:
    """The names of modules that a file's import statements may mean, parents included."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        for name in _names(node, package):
            found.update(dict.fromkeys(_with_parents(name)))
    return tuple(found)


def _with_parents(name: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`; nothing of an empty name."""
    parts = name.split(".") if name else []
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _names(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        try:
            base = importlib.util.resolve_name(base, package)
        except ImportError:
            return
        yield from (f"{base}.{alias.name}" for alias in node.names)


def module_file(name: str, folder: str = "") -> str | None:
    """The file of a module, imported or not; None for one without a Python file.

    folder: a further folder of the import path. Imports nothing.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        return _python(getattr(loaded, "__file__", None))
    parent, _, _ = name.rpartition(".")
    paths = [*sys.path, folder] if folder else [*sys.path]
    if parent:
        above = module_file(parent, folder)
        if above is None or not above.endswith("__init__.py"):
            return None
        paths = [f"{Path(above).parent}"]
    found = PathFinder.find_spec(name, paths)
    return _python(found.origin) if found is not None and found.has_location else None


def _python(file: object) -> str | None:
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    return f"{Path(file).resolve()}"
