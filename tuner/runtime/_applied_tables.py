"""The tables that one kernel of a library is launched from: lookups of its launches.

A change of the tables makes a new object, so that a launch in another thread never mixes the caches
of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ._applied_plan import AppliedPlan, applied_default, applied_plan, applied_substitutes
from ._arguments import Arguments
from ._call_key import describe
from ._captured_calls import counted_of, find_calls, is_captured
from ._decorators import Decorated
from ._device import current_device, takes_siblings
from ._device_facts import DeviceFacts
from ._entry import Hit
from ._memo import Memos
from ._plan import choose_miss
from ._ranks import compare_tables
from ._table import Table
from ._table_files import is_for_device, nearest_sibling, sibling_text, staleness
from ._text import printable
from .device_code import accepted_hashes

_OTHER_DEVICE = "is for"


class AppliedTables:
    """Tables of one kernel.

    say: receives a condition and one line on it, once or more often.
    """

    def __init__(
        self, parts: Decorated, tables: Sequence[Table], say: Callable[[Any, str], None]
    ) -> None:
        self.tables = tuple(tables)
        #: The tables that do not fit this process, each with the reason; known after a launch.
        self.unused: list[tuple[Table, str]] = []
        #: Plans by memo; None where the library's own launch is to be made.
        self.ready: dict[Any, AppliedPlan | None] = {}
        self._parts = parts
        self._say = say
        self._usable: dict[DeviceFacts | None, tuple[Table, ...]] = {}
        self._arguments = _arguments(parts)
        self.memos = self._make_memos()

    def _make_memos(self) -> Memos:
        dims = {dim for table in self.tables for names in table.dims for dim in names}
        own = self._arguments
        wanted = dims.union(own.keys)
        computed = bool(self._parts.computed & dims or own.dims or own.key_map)
        captured = any(is_captured(table) for table in self.tables)
        if computed:  # what computes a dim may read any argument
            wanted.update(self._parts.names)
        # Those that a key of a captured call omits have their defaults, or are free.
        wanted.update(*(counted_of(table, self._parts.names) for table in self.tables))
        entries = [entry for table in self.tables for entry in table.entries]
        tuned = {name for entry in entries for name in entry.config}
        return Memos(
            self._parts.names,
            own.defaults,
            # Whether the caller's own constants may be replaced depends on their values.
            wanted.difference(tuned) if self._parts.tuner is not None else wanted.union(tuned),
            describe,
            typed=any(table.distinguishes_booleans for table in self.tables),
            captured=captured,
            shaped=computed,
        )

    def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> AppliedPlan | None:
        """The launch of a config of the tables; None with a reason said where there is none."""
        keywords = {**kwargs, **self._compute(args, kwargs)}
        named = self._arguments.name_arguments(args, keywords)
        hits, reason = self._find(named, args, keywords, grid)
        for hit in hits:
            plan, problem = applied_plan(self._parts, hit, named, args, keywords, grid)
            if plan is not None:
                return plan
            if problem:
                reason = ""
                self._say(("refused", hit.table), f"table {hit.table} {problem}")
        if reason:
            self._say("miss", reason)
        return self.plan_default(args, kwargs, grid)

    def plan_default(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any
    ) -> AppliedPlan | None:
        """The launch of a default config; None where the library's own launch is to be made."""
        if choose_miss() == "tune":
            return None
        keywords = {**kwargs, **self._compute(args, kwargs)}
        return applied_default(self._parts, args, keywords, grid)

    def list_compiled(
        self, plan: AppliedPlan | None, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any
    ) -> Iterator[AppliedPlan | None]:
        """A plan and what may be launched where it is not compiled, which is said."""
        if plan is not None:
            yield plan
            self._say(("compile", str(plan.config)), f"{plan.text} is not compiled")
        keywords = {**kwargs, **self._compute(args, kwargs)}
        yield from applied_substitutes(self._parts, plan, args, keywords, grid)

    # -- lookups -------------------------------------------------------------------------------
    def _find(
        self, named: Mapping[str, Any], args: tuple[Any, ...], keywords: dict[str, Any], grid: Any
    ) -> tuple[list[Hit], str]:
        """An exact hit of any table, else all others in the order to try them; and the reason for
        a miss."""
        found: list[Hit] = []
        reasons = []
        for table in self._usable_tables():
            if is_captured(table):
                own = self._arguments.defaults
                hits, reason = find_calls(table, self._parts, named, own, grid)
            else:
                hit, reason = self._arguments.find(table, args, keywords)
                hits = [] if hit is None else [hit]
            if hits and hits[0].how == "exact":
                return hits[:1], ""
            found += hits
            reasons.append(reason)
        return found, reasons[0] if reasons else ""

    def _compute(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What the heuristics compute that run before a config is known."""
        given = {**dict(zip(self._parts.names, args, strict=False)), **kwargs}
        found: dict[str, Any] = {}
        for rules in self._parts.outer:
            for name, rule in rules.items():
                found[name] = rule({**given, **found})
        return found

    def _usable_tables(self) -> tuple[Table, ...]:
        device = current_device()
        if device not in self._usable:
            self._usable[device] = self._fitting(device)
            compare_tables(self._parts.base.__name__, self._usable[device])
        return self._usable[device]

    def _fitting(self, device: DeviceFacts | None) -> tuple[Table, ...]:
        """The tables for this device, Triton and code; says once why others are not used."""
        sources = accepted_hashes(self._parts.jitted)
        judged = [(table, _misfit(table, device, sources)) for table in self.tables]
        self.unused = [(table, reason) for table, reason in judged if reason]
        usable = tuple(table for table, reason in judged if not reason)
        near = self._sibling(device, sources) if takes_siblings() and not usable else None
        if near is not None and device is not None:
            self.unused = [(table, reason) for table, reason in self.unused if table is not near]
            self._say(("sibling", near.path), f"{sibling_text(near, device)}, in {near.path}")
            return (near,)
        # Folders hold tables of several devices; that is no fault where one of them fits.
        for table, reason in self.unused:
            if not usable or not reason.startswith(_OTHER_DEVICE):
                self._say(("unused", table.path, reason), f"table {format_file(table)} {reason}")
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
