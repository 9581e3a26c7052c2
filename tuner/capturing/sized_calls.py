"""Captured calls at other sizes of a range: of an integer argument, or of a dim of a tensor.

A number that follows the size (`following.py`) is a `Following`, whose text names the size, so that
the workloads of all sizes differ in it alone: `x=bfloat16[n_rows,4096]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.errors import KernelError, WorkloadError
from search_spaces.near_names import did_you_mean
from search_spaces.records import config_key
from search_spaces.size_range import Range
from tuner.capturing.call_configs import CallConfigs, arguments_on_meta
from tuner.capturing.call_numbers import change_numbers, list_numbers, list_sizes, size_of
from tuner.capturing.call_records import Buffer, Call, Following
from tuner.capturing.following import Constants, Term, find_terms
from tuner.capturing.probe import probe
from tuner.capturing.sized_grids import GridForms, find_forms

#: The ratio of sizes that shows whether integers follow, and of those that do not follow them.
_APART, _ALIKE = 4, 2
_WIDE = frozenset({"int16", "int32", "int64", "uint16", "uint32", "uint64"})


class SizedCalls:
    """The calls of one kernel, at any size of a range.

    name: the size, an integer argument or `x[0]`, a dim of a tensor.

    Raises `KernelError` in one line where the calls do not show what follows the size.
    """

    def __init__(
        self, calls: Sequence[Call], parts: AutotuneParts, name: str, sizes: Range
    ) -> None:
        self.name, self.sizes = name, sizes
        _check_name(calls[0], parts, name)
        self._calls, self._parts = tuple(calls), parts
        check_contents(self._calls, name, sizes)
        self._terms = find_terms(self._calls, name, sizes)
        _check_least(calls[0], name, sizes, self._terms)
        constants = Constants(calls, self._terms)
        self._forms: GridForms = find_forms(
            self._calls, parts, name, sizes, constants.terms, constants.numbers
        )
        self._own = [size_of(call, name) for call in self._calls]

    def at(self, size: object) -> tuple[Call, CallConfigs]:
        """The call of a size and the library's configs for it; raises `WorkloadError` outside of
        the range."""
        if type(size) is not int or not self.sizes.low <= size <= self.sizes.high:
            raise WorkloadError(
                f"{self._calls[0].kernel}: {self.name}={size} is outside of {self.sizes}",
                "declare another range",
            )
        return _call_at(self, size)

    def list_captured(self) -> list[tuple[int, tuple[Call, CallConfigs]]]:
        """The captured sizes, each with its call."""
        return [(size, self.make(size)) for size in self._own]

    def make(self, size: int) -> tuple[Call, CallConfigs]:
        """The call of a size and its configs, from the recorded call of the nearest size."""
        call = self._make_call(size)
        return call, CallConfigs(call, self._parts)

    def check_ends(self, contents: Mapping[str, bytes], device: str) -> None:
        """Run the library's config at the least size and at one beyond those captured.

        Raises `KernelError` in one line where it then writes other tensors, or leaves elements: the
        grid or a constant follows the size in a way that the calls do not show.
        """
        known = {each.buffer: each.partial for each in self._calls[0].written or ()}
        for size in sorted({self.sizes.low, min(self.sizes.high, 2 * max(self._own) + 1)}):
            call = probe(replace(self.at(size)[0], written=None), self._parts, contents, device)
            problem = call.problem
            for each in call.written or ():
                if not known.get(each.buffer, False) and each.partial:
                    problem = f"it leaves elements of {call.buffers[each.buffer].name} as they are"
                if each.buffer not in known:
                    problem = f"it also writes {call.buffers[each.buffer].name}"
            if problem:
                raise KernelError(
                    f"captured kernel {call.kernel} at {self.name}={size}: {problem}",
                    f"take a smaller range, or tune the calls without a range of {self.name}",
                )

    def _make_call(self, size: int) -> Call:
        name = self.name
        pairs = zip(self._own, self._calls, strict=True)
        _, base = min(pairs, key=lambda pair: abs(math.log2(pair[0] / size)))

        def change(place: str, value: int) -> int:
            term = self._terms[place]
            return value if term is None else Following(term.of(size), term.describe(name))

        found = change_numbers(base, change)
        if name in found.arguments:
            found = replace(found, arguments={**found.arguments, name: size})
        found = replace(found, grid=self._forms.grid_of(found, size, self._parts))
        if self._parts.pruner is None or found.default is None:
            return found
        whole = replace(self._parts, keywords=found.keywords)
        kept = whole.apply_pruner(arguments_on_meta(found), found.grid.sizes).configs
        if not kept or config_key(found.default) in map(config_key, kept):
            return found
        return replace(found, default=kept[0])


@lru_cache(maxsize=512)
def _call_at(sized: SizedCalls, size: int) -> tuple[Call, CallConfigs]:
    return sized.make(size)


def read_ranges(where: str, ranges: Mapping[str, Any]) -> dict[str, Range]:
    """The range that a caller gives as such or as (low, high), by the name of its argument."""
    if len(ranges) > 1:
        raise KernelError(
            f"{where}: ranges names {' and '.join(ranges)}", "captured calls have one range"
        )
    return {name: _read_range(where, name, given) for name, given in ranges.items()}


def _read_range(where: str, name: str, given: Any) -> Range:
    if isinstance(given, Range):
        return given
    try:
        low, high = given
        return Range(low, high)
    except (TypeError, ValueError) as error:
        reason = f"{error}" if isinstance(given, tuple | list) and len(given) == 2 else "no range"
        raise KernelError(
            f"{where}: ranges has {name}={given!r}: {reason}",
            f"give the least and the largest size: {{{name!r}: (1, 65536)}}",
        ) from None


def _check_name(call: Call, parts: AutotuneParts, name: str) -> None:
    sizes = list_sizes(call, parts)
    if name in sizes:
        return
    if name not in parts.arg_names:
        what = f"no argument and no dim of a tensor{did_you_mean(name, sizes)}"
    elif name in (call.free or ()):
        what = "free: its value does not change the work"
    else:
        what = "no size: sizes are dims of tensors, and integers that are not compiled in"
    raise KernelError(
        f"captured kernel {call.kernel}: ranges names {name}, which is {what}",
        f"it may name {', '.join(sizes)}" if sizes else "this kernel has no sizes",
    )


def _check_least(call: Call, name: str, sizes: Range, terms: Mapping[str, Term | None]) -> None:
    for place, term in terms.items():
        if term is not None and term.of(sizes.low) < 1:
            raise KernelError(
                f"captured kernel {call.kernel}: {place} is {term.describe(name)}, which is "
                f"{term.of(sizes.low)} at {name}={sizes.low}",
                "take a range that begins later",
            )


def check_contents(calls: Sequence[Call], name: str, sizes: Range) -> None:
    """Raise `KernelError` in one line for integers that may be wrong indices at other sizes.

    Those of 8 bits and flags are taken for data.
    """
    for at, buffer in _list_read(calls[0]):
        if not _WIDE & {view.dtype for view in calls[0].views if view.buffer == at}:
            continue
        alike = [call for call in calls if len(call.buffers) == len(calls[0].buffers)]
        values = [call.buffers[at].values for call in alike if call.buffers[at].bytes]
        highest = max((-1.0 if v is None else v.high for v in values), default=0.0)
        if None not in values and (highest < sizes.low or _stay(alike, at, name)):
            continue
        held = "what it holds is unknown" if None in values else f"it holds up to {highest:.0f}"
        raise KernelError(
            f"captured kernel {calls[0].kernel}: {buffer.name} has integers that may be "
            f"indices ({held}), so its contents at {name}={sizes.low} are not known",
            "give the calls as they are, without a range: a table of calls of several sizes serves "
            "those between them",
        )


def _stay(calls: Sequence[Call], at: int, name: str) -> bool:
    """Whether the integers of a buffer index something that stays."""
    pairs = ((size_of(call, name), call.buffers[at].values) for call in calls)
    highest = {size: values.high for size, values in pairs if values is not None}
    least, largest = min(highest, default=0), max(highest, default=0)
    if largest < max(1, _APART * least) or highest[largest] >= _ALIKE * highest[least]:
        return False
    numbers = [list_numbers(call) for call in calls]
    stay = [w for place, w in numbers[0].items() if all(each.get(place) == w for each in numbers)]
    return max(highest.values()) < max(stay, default=0)


def _list_read(call: Call) -> Iterator[tuple[int, Buffer]]:
    """The buffers whose contents matter."""
    overwritten = {each.buffer for each in call.written or () if not each.updated}
    return (pair for pair in enumerate(call.buffers) if pair[0] not in overwritten)
