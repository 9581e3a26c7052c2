"""Imports of code that others wrote: what it prints stays out of stdout, and it ends no process.

Commands write their listing to stdout, where a line that a module prints would break JSON.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from search_spaces.errors import KernelError

# -- imports of a kernel's file from its own folder, which is appended to the import path ----------
# A process holds one module per name, and the standard library and installed packages come first. A
# module in the file's folder is therefore imported only if no other module has its name. Otherwise
# the kernel is refused, because it would run with a module that its author did not mean. In a
# package (a folder with an `__init__.py`), `import triton` never means a `triton` of that folder.
#: The folders of kernels' files, whose modules may be imported by their names alone.
_folders: set[Path] = set()


def make_importable(file: Path, spec: str) -> None:
    """Let a kernel's file import the modules in its folder.

    Raises `KernelError` where a module in that folder, named in an import statement of the file or
    of another such module, would not be the one that is imported.
    """
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    _folders.add(file.parent)
    packaged = (file.parent / "__init__.py").is_file()
    seen = {file}
    waiting = [file]
    while waiting:
        importer = waiting.pop()
        for name in _list_imports(importer):
            sibling = _sibling(file.parent, name)
            if sibling is None or sibling in seen:
                continue
            found = _find_file(name)
            if packaged and not _is_a_kernels(found):
                continue
            if not _same(found, sibling):
                raise KernelError(
                    f"kernel {spec}: {importer.name} imports {name}, which is "
                    f"{found or 'a part of Python'} and not {sibling}",
                    f"rename {sibling}: the standard library, installed packages and modules that "
                    "are already imported come first",
                )
            seen.add(sibling)
            waiting.append(sibling)


def _same(found: Path | None, sibling: Path) -> bool:
    """Whether an import gives that file, or a copy of it, as a cluster's nodes have."""
    return found == sibling or (
        found is not None and found.is_file() and found.read_bytes() == sibling.read_bytes()
    )


def _is_a_kernels(module: Path | None) -> bool:
    """Whether the folder of a kernel's file holds a module, as a file or a package."""
    return module is not None and not _folders.isdisjoint((module.parent, module.parent.parent))


def _list_imports(file: Path) -> Iterator[str]:
    """The top-level names of a file's absolute imports; none of one that does not parse."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _sibling(folder: Path, name: str) -> Path | None:
    for file in (folder / name / "__init__.py", folder / f"{name}.py"):
        if file.is_file():
            return file.resolve()
    return None


def _find_file(name: str) -> Path | None:
    """The file that an import of the name gives; None where it is none, as of `sys`."""
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        origin = spec.origin if spec is not None and spec.has_location else None
    return Path(origin).resolve() if origin else None


# -- imports of code that others wrote -------------------------------------------------------------
_end_process = os._exit
_change = threading.Lock()
#: Contexts that are open, by the thread that opened them.
_open: Counter[int] = Counter()
#: What stdout is outside of them, and for other threads.
_stdout = sys.stdout


class _Stdout:
    """Stdout for all threads but those in `contain_foreign_code`, for which it is stderr."""

    def __getattr__(self, name: str) -> object:
        return getattr(sys.stderr if _open[threading.get_ident()] else _stdout, name)


def _exit_or_raise(status: int) -> None:
    if not _open[threading.get_ident()]:
        _end_process(status)
    raise SystemExit(f"os._exit({status})")


@contextmanager
def contain_foreign_code() -> Iterator[None]:
    """A context in which stdout is stderr, and `os._exit` raises SystemExit.

    Forked children and other threads keep stdout and `os._exit`.
    """
    global _stdout
    thread = threading.get_ident()
    with _change:
        if not _open.total():
            _stdout, sys.stdout = sys.stdout, _Stdout()
            os._exit = _exit_or_raise  # type: ignore[assignment]
        _open[thread] += 1
    try:
        yield
    finally:
        with _change:
            if _open[thread]:  # A child that was forked meanwhile has forgotten the context.
                _open[thread] -= 1
                if not _open.total():
                    _open.clear()
                    _restore()


def _restore() -> None:
    os._exit = _end_process
    sys.stdout = _stdout


def _forget_contexts() -> None:
    global _change
    _change = threading.Lock()
    if _open.total():
        _open.clear()
        _restore()


os.register_at_fork(after_in_child=_forget_contexts)
