"""One kernel of a library that is launched from tables, with nothing in its source changed.

The kernel's object gets a subclass of its own class, in which `kernel[grid]` asks the tables first.
All who have imported the object launch through it. What lies under the object's decorators is not
changed, and neither is a decorator around the object elsewhere: both launch as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._arguments import Arguments
from ._call_key import describe
from ._captured_calls import counted_of, find_calls, is_captured
from ._decorators import Decorated
from ._device import current_device, takes_siblings
from ._device_facts import DeviceFacts
from ._entry import Hit
from ._launches import Launches, Plans, bind_grid
from ._memo import Memos
from ._plan import Call, Given
from ._ranks import agree, compare_tables
from ._table import Table
from ._table_files import is_for_device, nearest_sibling, sibling_text, staleness
from ._text import printable
from ._traced_launch import STATE, SUBSTITUTES, watch_traces
from .device_code import accepted_hashes

_OTHER_DEVICE = "is for"


def wrap_kernel(name: str, parts: Decorated) -> Launches:
    """The launches of a kernel, as the library wrote it until `use_tables` gives it tables.

    name: as tables write it.
    """
    plain_class: Any = type(parts.top)

    def launch_own(given: Given) -> Any:
        """Launch as without tables; ranks of a process group tune alike."""
        args, kwargs, grid, _ = given
        if parts.tuner is not None:
            agree(parts.tuner, lambda: accepted_hashes(parts.jitted))
        return plain_class.__getitem__(parts.top, grid)(*args, **kwargs)

    outcome = "launching as the library does"
    kernel = Launches(name, parts, launch_own, outcome, topic=(STATE, name))
    use_tables(kernel, ())
    return kernel


def use_tables(kernel: Launches, tables: Sequence[Table]) -> None:
    """Launch from these tables from now on; from none, as the library wrote it."""
    kernel.use(AppliedTables(kernel, tables))
    top = kernel.parts.top
    plain = _plain_classes.get(type(top))
    if tables and plain is None:
        setattr(top, STATE, kernel)
        # Dynamo knows jitted functions and autotuners, and looks into heuristics.
        is_traced = top is not kernel.launched and top is not kernel.tuner
        top.__class__ = _launching(type(top), is_traced)
        watch_traces(_mark(kernel), kernel)
    elif not tables and plain is not None:
        # The attribute stays: another thread may be about to read it.
        top.__class__ = plain


def state_of(kernel: Any) -> Launches | None:
    """The launches of a kernel that is, or was, launched from tables."""
    found = getattr(kernel, "__dict__", {}).get(STATE)
    return found if isinstance(found, Launches) else None


def _mark(kernel: Launches) -> str:
    return f"{kernel.name}@{id(kernel)}"


_classes: dict[type, type] = {}
_plain_classes: dict[type, type] = {}


def _launching(plain: type, is_traced: bool) -> type:
    """A subclass of a kernel's class that asks tables first. Its name stays: Triton compares it.

    is_traced: whether Dynamo traces `kernel[grid]`, for a class that it does not know.
    """
    if plain not in _classes:
        index = _traced_index if is_traced else _launcher
        members = {"__getitem__": index, "__module__": plain.__module__}
        _classes[plain] = type(plain.__name__, (plain,), members)
        _plain_classes[_classes[plain]] = plain
    return _classes[plain]


def _launcher(kernel: Any, grid: Any) -> Callable[..., Any]:
    return bind_grid(kernel._tuner_applied, grid)


def _traced_index(kernel: Any, grid: Any) -> Callable[..., Any]:
    return _launcher(kernel, grid)


def _mark_launches(kernel: Any, grid: Any) -> Callable[..., Any]:
    """`kernel[grid]` as Triton has it, which tells the kernel below of the tables."""
    mark = {STATE: _mark(kernel._tuner_applied)}
    return lambda *args, **kwargs: kernel.run(*args, grid=grid, warmup=False, **kwargs, **mark)


SUBSTITUTES[_launcher] = _mark_launches


class AppliedTables(Plans):
    """Plans from the tables that are given for one kernel."""

    counts = True

    def __init__(self, launches: Launches, tables: Sequence[Table]) -> None:
        arguments = _arguments(launches.parts)
        super().__init__(launches, arguments, _make_memos(launches.parts, arguments, tables))
        self._given = tuple(tables)
        self.unused: list[tuple[Table, str]] = []
        self._usable: dict[DeviceFacts | None, tuple[Table, ...]] = {}

    @property
    def tables(self) -> tuple[Table, ...]:
        return self._given

    def find_hits(self, call: Call) -> tuple[Sequence[Hit], str]:
        """An exact hit of any table, else all others in the order to try them; and the reason for
        a miss."""
        found: list[Hit] = []
        reasons = []
        for table in self._usable_tables():
            if is_captured(table):
                own = self.arguments.defaults
                hits, reason = find_calls(table, self.parts, call.named, own, call.grid)
            else:
                hit, reason = self.arguments.find(table, call.args, call.keywords)
                hits = [] if hit is None else [hit]
            if hits and hits[0].how == "exact":
                return hits[:1], ""
            found += hits
            reasons.append(reason)
        return found, reasons[0] if reasons else ""

    def _usable_tables(self) -> tuple[Table, ...]:
        device = current_device()
        if device not in self._usable:
            self._usable[device] = self._fitting(device)
            compare_tables(self.parts.base.__name__, self._usable[device])
        return self._usable[device]

    def _fitting(self, device: DeviceFacts | None) -> tuple[Table, ...]:
        """The tables for this device, Triton and code; says once why others are not used."""
        sources = accepted_hashes(self.parts.jitted)
        judged = [(table, _misfit(table, device, sources)) for table in self.tables]
        self.unused = [(table, reason) for table, reason in judged if reason]
        usable = tuple(table for table, reason in judged if not reason)
        near = self._sibling(device, sources) if takes_siblings() and not usable else None
        if near is not None and device is not None:
            self.unused = [(table, reason) for table, reason in self.unused if table is not near]
            self.say(("sibling", near.path), f"{sibling_text(near, device)}, in {near.path}")
            return (near,)
        # Folders hold tables of several devices; that is no fault where one of them fits.
        for table, reason in self.unused:
            if not usable or not reason.startswith(_OTHER_DEVICE):
                self.say(("unused", table.path, reason), f"table {format_file(table)} {reason}")
        return usable

    def _sibling(self, device: DeviceFacts | None, sources: frozenset[str]) -> Table | None:
        """The table of the nearest sibling card, for this Triton and code."""
        others = (table for table in self.tables if not is_for_device(table, device))
        return nearest_sibling((t for t in others if not staleness(t, sources)), device)


def _misfit(table: Table, device: DeviceFacts | None, sources: frozenset[str]) -> str:
    """Why a table is not used on a device; empty text where it is."""
    if not is_for_device(table, device):
        here = device.name if device else "unknown (torch is not loaded, or finds none)"
        return f"{_OTHER_DEVICE} {printable(table.device.name, 80)}, this device is {here}"
    return staleness(table, sources)


def format_file(table: Table) -> str:
    """The file of a table, for a message."""
    return table.path or "in memory"


def _arguments(parts: Decorated) -> Arguments:
    """The mapping of a launch's arguments to dims; under our decorator its own."""
    own = getattr(parts.tuner, "arguments", None)
    if isinstance(own, Arguments):
        return own
    return Arguments(parts.names, parts.base, () if parts.tuner is None else parts.tuner.keys)


def _make_memos(parts: Decorated, arguments: Arguments, tables: Sequence[Table]) -> Memos:
    """The memos of launches that tables tell apart."""
    dims = {dim for table in tables for names in table.dims for dim in names}
    wanted = dims.union(arguments.keys)
    computed = bool(parts.computed & dims or arguments.dims or arguments.key_map)
    captured = any(is_captured(table) for table in tables)
    if computed:  # what computes a dim may read any argument
        wanted.update(parts.names)
    # Those that a key of a captured call omits have their defaults, or are free.
    wanted.update(*(counted_of(table, parts.names) for table in tables))
    entries = [entry for table in tables for entry in table.entries]
    tuned = {name for entry in entries for name in entry.config}
    return Memos(
        parts.names,
        arguments.defaults,
        # Whether the caller's own constants may be replaced depends on their values.
        wanted.difference(tuned) if parts.tuner is not None else wanted.union(tuned),
        describe,
        typed=any(table.distinguishes_booleans for table in tables),
        captured=captured,
        shaped=computed,
    )
