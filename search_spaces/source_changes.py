"""Kernels whose files were edited after this process imported them.

Workers import a kernel's file in fresh processes, so they run its present text. A process that
keeps an older module would search the wrong space and store results under the wrong identity.

    kernel = current(kernel_or_spec, paths)     the kernel as its files are now
    imported_files(kernel), files_of(kernel)    the files behind it, with their stamps

A module is known to be current where its file has not changed since the import of a kernel loaded
it, or since this process began. Otherwise its functions and literal constants are compared with the
file. The comparison does not see an edit that changes computed constants alone.

A run holds a `SourceGuard` of its kernels and asks it before each result is stored, so that no
result of other code is stored under their identity. Children compare the contents of the files with
those that the run has read, `contents`, after each import.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from search_spaces import import_stamps, registry
from search_spaces.absent_device import module_sets
from search_spaces.errors import KernelError, SourceChangedError
from search_spaces.identity import identity_of
from search_spaces.import_stamps import OUTDATED
from search_spaces.kernel import Kernel
from search_spaces.records import Device
from search_spaces.source_reach import Reach, reach_of, resolve_path
from tuner.runtime.device_code import stamp

__all__ = [
    "OUTDATED",
    "SourceGuard",
    "Stamps",
    "list_changed",
    "contents",
    "current",
    "list_edited",
    "files_of",
    "imported_files",
]

Stamps = dict[str, tuple[int, int]]
#: Files, each with a digest of its contents.
Contents = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SourceGuard:
    """The files behind some kernels, as they were when this process computed their identity."""

    files: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, kernels: Iterable[Kernel]) -> SourceGuard:
        """The guard of kernels that this process has just loaded."""
        found: Stamps = {}
        for kernel in kernels:
            found |= {**imported_files(kernel), **identity_of(kernel).files}
        return cls(found)

    def check(self) -> None:
        """Raise `SourceChangedError` if a file has changed since."""
        names = ", ".join(dict.fromkeys(Path(file).name for file in list_changed(self.files)))
        if names:
            raise SourceChangedError(
                f"{names} changed while it was measured; the results from then on are not stored",
                "run it again: results of the new code are stored under its own identity",
            )


def current(
    kernel: str | Kernel, paths: Sequence[str] = (), device: Device | None = None
) -> Kernel:
    """The kernel as its files are now; modules of edited files are imported again.

    paths, device: as for `registry.load_undecided`. A `Kernel` object whose files have changed
    since it was imported is refused with `KernelError`, because no other process can make that
    object any more.
    """
    spec = kernel if isinstance(kernel, str) else registry.spec_of(kernel)
    reach = _reach(spec, paths)
    stale = _stale(reach) if reach is not None else set()
    if stale and not isinstance(kernel, str):
        names = ", ".join(sorted(Path(file).name for file in stale))
        raise KernelError(
            f"kernel {kernel.name}: {names} has changed since this process imported it",
            f"pass {spec!r} instead of the object, which imports the file again",
        )
    if reach is not None and stale:
        return _imported_again(spec, paths, reach, stale, device)
    return registry.load_undecided(kernel, paths, device) if isinstance(kernel, str) else kernel


def imported_files(kernel: Kernel) -> Stamps:
    """The files that a kernel's import statements name, with modification time (ns) and size.

    Nothing for a built-in family.
    """
    reach = _reach(registry.spec_of(kernel), ())
    return reach.stamps() if reach is not None else {}


def files_of(kernel: Kernel) -> Stamps:
    """The imported files of a kernel, and those of all other code that it reaches.

    The walk through that code takes about a tenth of a second.
    """
    found = imported_files(kernel)
    if not found:
        return {}
    return found | {file: stamp(file) for file in identity_of(kernel).files}


def list_changed(files: Mapping[str, tuple[int, int]]) -> list[str]:
    """The files that have another stamp now, sorted."""
    return sorted(file for file, found in files.items() if stamp(file) != found)


def contents(kernel: Kernel) -> Contents:
    """The files of `imported_files`, each with a digest of its contents, sorted."""
    return tuple((file, _content(file)) for file in sorted(imported_files(kernel)))


def list_edited(files: Contents) -> list[str]:
    """The files that have other contents here. Files that are missing here are left out."""
    return [file for file, found in files if _content(file) not in ("", found)]


def _content(file: str) -> str:
    """A digest of a file's contents; empty for a missing file."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


# -- which files -----------------------------------------------------------------------------------
def _reach(spec: str, paths: Sequence[str]) -> Reach | None:
    """The files of a kernel's spec; None for a built-in family and for a file that is missing."""
    place = registry.place_of(spec, paths)
    if place is None:
        return None
    return reach_of(*place)


def _stale(reach: Reach) -> set[str]:
    """The reached files whose imported module is older than the file."""
    return {
        file
        for file, _, module in _modules_of(reach.modules.keys())
        if not _is_current(module, file)
    }


def _modules_of(files: Collection[str]) -> Iterator[tuple[str, str, ModuleType]]:
    """File, name and module of each imported module of the files; one may have several names."""
    last_parts = {os.path.basename(file) for file in files}
    # A copy in one step: a thread may import meanwhile.
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not isinstance(file, str):
            continue
        if os.path.basename(file) in last_parts:
            resolved = resolve_path(file)
            if resolved in files:
                yield resolved, name, module


# -- whether a module is current -------------------------------------------------------------------
def _is_current(module: ModuleType, file: str) -> bool:
    now = stamp(file)
    known = import_stamps.stamp_of(module)
    if known is not None:
        return known == now
    if now[0] >= _began_ns() and not _agrees(module, file):
        return False
    import_stamps.note(module, now)
    return True


@cache
def _began_ns() -> int:
    """When this process began, or less; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        after_boot_s = float(fields[19]) / os.sysconf("SC_CLK_TCK")
        boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0
    return int((boot_s + after_boot_s - 1.0) * 1e9)


def _agrees(module: ModuleType, file: str) -> bool:
    """Whether a module has the functions and the literal constants of its file."""
    try:
        text = Path(file).read_bytes()
        tree = ast.parse(text)
        codes = set(_codes(compile(text, file, "exec", dont_inherit=True)))
    except (OSError, SyntaxError, ValueError):
        return False
    values = vars(module)
    return all(code in codes for code in _live_codes(module, file)) and all(
        name in values and (value is ... or repr(values[name]) == repr(value))
        for name, value in _list_bindings(tree)
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _live_codes(module: ModuleType, file: str) -> Iterator[CodeType]:
    """The code of the functions and methods that a module has defined."""
    members: list[Any] = list(vars(module).values())
    for member in list(members):
        if isinstance(member, type) and member.__module__ == module.__name__:
            members += vars(member).values()
    for member in members:
        found = member
        while found is not None and not isinstance(found, FunctionType):
            state = getattr(found, "__dict__", {})
            wrapped = state.get("fn") or state.get("__wrapped__") if state else None
            found = wrapped or getattr(found, "__func__", None) or getattr(found, "fget", None)
        if found is not None and f"{Path(found.__code__.co_filename).resolve()}" == file:
            yield found.__code__


def _list_bindings(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """The names that a file binds once at top level, with literal values; `...` for others."""
    bound: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound[node.name] = ...
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    again = target.id in bound
                    bound[target.id] = ... if again else _literal(node.value)
    yield from bound.items()


def _literal(node: ast.expr) -> object:
    """An immutable literal value; `...` for any other expression."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...
    return value if isinstance(value, str | bytes | int | float | tuple | None) else ...


# -- importing again -------------------------------------------------------------------------------
def _imported_again(
    spec: str, paths: Sequence[str], reach: Reach, stale: set[str], device: Device | None
) -> Kernel:
    """The kernel after its edited files, and the files that import them, are imported again.

    Where the import fails, the older modules stay, so that the process can go on.
    """
    older = {name: module for _, name, module in _modules_of(reach.dependents(stale))}
    older.pop("__main__", None)  # the running script; workers import it under another name
    for name in older:
        del sys.modules[name]
    for file in stale:
        # Python takes an edit within the same second that keeps the size for no edit.
        with suppress(OSError, NotImplementedError):
            Path(importlib.util.cache_from_source(file)).unlink()
    module_sets.forget(older)
    importlib.invalidate_caches()
    try:
        return registry.load_undecided(spec, paths, device)
    except BaseException:
        for name, module in older.items():
            sys.modules[name] = module
            import_stamps.note(module, OUTDATED)
        raise
