"""Launch the kernels of libraries from tables: `apply`, `applied` and what came of it.

`_applied_kernel.py` has the launches of one kernel, `_import_watch.py` finds kernels whose modules
are imported later, `_given_tables.py` reads what users give.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ._applied_kernel import format_file, state_of, use_tables, wrap_kernel
from ._decorators import taken_apart
from ._given_tables import Tables, read_tables
from ._import_watch import ImportWatch
from ._launches import Launches
from ._table import Table
from ._warn import warn_once

#: The environment variable with the tables that a process applies when it imports tuner.
VARIABLE = "TUNER_APPLY"
#: The environment variable that the farm's workers have: what they measure is not replaced.
IN_WORKER = "TUNER_IN_WORKER"


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What became of the tables of one kernel."""

    #: `module:object`.
    kernel: str
    #: `applied`, `not imported` (it will be applied after the import) or `not applied`.
    state: str
    #: Launches from a table.
    hits: int
    #: Launches without a config in any table, made as the library does.
    misses: int
    #: Files of its tables.
    tables: tuple[str, ...]
    #: Why it is not applied, or why some of its tables are not used; else empty.
    note: str = ""


class Application:
    """Tables in use, until `remove`. Made by `apply`."""

    def __init__(self, tables: Tables) -> None:
        self._entries = tuple(read_tables(tables))
        self._names = tuple(dict.fromkeys(name for name, _ in self._entries))
        #: Launches that were counted before these tables came, per kernel.
        self._before: dict[Launches, tuple[int, int]] = {}
        self._final: tuple[KernelUse, ...] | None = None

    def tables_of(self, name: str) -> list[Table]:
        """The tables of one kernel, in the order they were given."""
        return [table for kernel, table in self._entries if kernel == name]

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels that have tables."""
        return self._names

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """Per kernel whether it is patched, its hits and misses; after `remove`, as it was then."""
        if self._final is not None:
            return self._final
        return tuple(self._use(name) for name in self._names)

    def remove(self) -> None:
        """Stop using these tables. The second time does nothing."""
        with _REGISTRY.lock:
            if self._final is None:
                self._final = self.kernels
                _REGISTRY.remove(self)

    def mark(self, kernel: Launches) -> None:
        """Count launches of a kernel from now on."""
        self._before.setdefault(kernel, (kernel.hits, kernel.misses))

    def _use(self, name: str) -> KernelUse:
        kernel, problem = _REGISTRY.kernels.get(name), _REGISTRY.problems.get(name, "")
        tables = tuple(format_file(table) for table in self.tables_of(name))
        if kernel is None:
            state = "not applied" if problem else "not imported"
            return KernelUse(name, state, 0, 0, tables, problem)
        own = self.tables_of(name)
        unused = [
            (t, reason) for t, reason in kernel.plans.unused if any(t is table for table in own)
        ]
        notes = [f"table {format_file(table)} {reason}" for table, reason in unused]
        hits, misses = self._before.get(kernel, (0, 0))
        state = "applied" if len(notes) < len(own) else "not applied"
        counts = kernel.hits - hits, kernel.misses - misses
        return KernelUse(name, state, *counts, tables, "; ".join(notes))

    def __str__(self) -> str:
        rows = [("kernel", "state", "hits", "misses", "note")]
        rows += [(u.kernel, u.state, f"{u.hits}", f"{u.misses}", u.note) for u in self.kernels]
        widths = [max(len(row[at]) for row in rows) for at in range(4)]
        lines = [
            "  ".join(
                [*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[4]]
            )
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)


class _Registry:
    """All applications of this process, and the kernels they concern."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.applications: list[Application] = []
        #: Kernels that were found, by name.
        self.kernels: dict[str, Launches] = {}
        #: Why a kernel was not found, by name.
        self.problems: dict[str, str] = {}
        #: Kernels whose modules were being imported when they were looked for.
        self._unfinished: set[str] = set()
        self._watch = ImportWatch(self._handle_import, self._retry)

    def add(self, application: Application) -> None:
        with self.lock:
            self.applications.append(application)
            self._watch_modules()
            for name in application.names:
                module = _module(name.rpartition(":")[0])
                if module is not None:
                    self._attach(name, module)

    def remove(self, application: Application) -> None:
        self.applications.remove(application)
        self._watch_modules()
        for name in application.names:
            if name in self.kernels:
                self._refresh(self.kernels[name])
            if not self._is_wanted(name):
                self.kernels.pop(name, None)
                self.problems.pop(name, None)

    def _is_wanted(self, name: str) -> bool:
        return any(name in application.names for application in self.applications)

    def _watch_modules(self) -> None:
        names = {name for application in self.applications for name in application.names}
        self._watch.watch(frozenset(name.rpartition(":")[0] for name in names))

    def _handle_import(self, module_name: str, module: ModuleType) -> None:
        """Called at the end of a module's import."""
        with self.lock:
            for name in {name for application in self.applications for name in application.names}:
                if name.rpartition(":")[0] == module_name:
                    self._attach(name, module, is_complete=True)

    def _retry(self) -> None:
        """Look again for kernels in modules that were half imported when tuner came."""
        for name in list(self._unfinished):
            module = _module(name.rpartition(":")[0])
            if module is not None and not _is_being_imported(module):
                with self.lock:
                    self._attach(name, module)

    def _attach(self, name: str, module: ModuleType, *, is_complete: bool = False) -> None:
        """Find a kernel in its module and give it its tables."""
        module_name, _, attribute = name.rpartition(":")
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part, None)
        before, problem = self.kernels.get(name), ""
        if found is None and not is_complete and _is_being_imported(module):
            self._unfinished.add(name)
            return
        self._unfinished.discard(name)
        if found is None:
            problem = f"{module_name} has no {attribute}"
        elif (kernel := state_of(found)) is not None:
            self.kernels[name] = kernel
        elif (parts := taken_apart(found)) is None:
            problem = f"{type(found).__name__} is no kernel under Triton's decorators"
        else:
            known = next((k for k in self.kernels.values() if k.parts.top is found), None)
            self.kernels[name] = known or wrap_kernel(name, parts)
        if problem:
            self.problems[name] = problem
            warn_once(("apply", name), f"kernel {name}: {problem}; its tables are not applied")
            return
        self.problems.pop(name, None)
        self._refresh(self.kernels[name])
        if before is not None and before is not self.kernels[name]:
            self._refresh(before)  # of a module that was imported again

    def _refresh(self, kernel: Launches) -> None:
        """Give a kernel the tables of all applications; those that came last go first."""
        names = [name for name, known in self.kernels.items() if known is kernel]
        found: list[Table] = []
        for application in reversed(self.applications):
            application.mark(kernel)
            for name in names:
                found += application.tables_of(name)
        if tuple(found) != kernel.plans.tables or not found:
            use_tables(kernel, found)


_REGISTRY = _Registry()


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _module(name: str) -> ModuleType | None:
    """An imported module, by its name or by its file."""
    if not name.endswith(".py"):
        return sys.modules.get(name)
    file = os.path.realpath(name)
    for module in list(sys.modules.values()):
        if os.path.realpath(getattr(module, "__file__", None) or "") == file:
            return module
    return None


def apply(tables: Tables) -> Application:
    """Launch the kernels of libraries from tables, with nothing in their source changed.

    tables: a file or a folder, a `Table`, several of these, or a mapping from `module:object` to
    these. A table names its kernel as `module:object`, where a library's module has the function
    under `@triton.jit`, `@triton.autotune`, `@triton.heuristics` or our decorator; a mapping names
    the kernel of any table.

    A launch `kernel[grid](...)` takes the config of its workload. Without one it is made as the
    library does. Modules are not imported for this: a kernel whose module comes later is patched
    then. The tables that were applied last are asked first. Never raises for the content of a file;
    what is wrong with it is logged once.
    """
    application = Application(tables)
    _REGISTRY.add(application)
    return application


@contextmanager
def applied(tables: Tables) -> Iterator[Application]:
    """`apply` for the length of a `with` block, in all threads."""
    application = apply(tables)
    try:
        yield application
    finally:
        application.remove()


def applications() -> tuple[Application, ...]:
    """All applications that are in use, in the order they were made."""
    return tuple(_REGISTRY.applications)


def apply_environment() -> Application | None:
    """Apply what the environment variable TUNER_APPLY names; None where it names nothing.

    Files and folders are separated as in PATH. The farm's own workers ignore the variable. With
    TUNER_APPLY_REPORT, a process in which a kernel was found reports to stderr at its end.
    """
    paths = [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
    if not paths or IN_WORKER in os.environ:
        return None
    application = apply(paths)
    if os.environ.get("TUNER_APPLY_REPORT"):
        atexit.register(_report, application)
    return application


def _report(application: Application) -> None:
    if any(use.state != "not imported" for use in application.kernels):
        sys.stderr.write(f"{application}\n")


def _after_fork() -> None:
    _REGISTRY.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
