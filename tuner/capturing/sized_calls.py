"""Captured calls at other sizes: the numbers of a call that follow one of its integer arguments.

Notation: n is the size that is wanted, v the argument's value in a call, w another number there: a
size, stride or offset of a tensor, or an integer argument.

With calls of several v, w stays where it is equal in all of them, and is k n where it is k v in all
with one integer k. With one call, the size of a tensor follows where it is v, or v times another
integer argument, and no other argument has its value. All else that is k v might follow or not, and
is refused: two calls show it. `sized_grids.py` has the same for grids.

A number that follows is a `Multiple`, whose text names the size, so that the workloads of all
sizes differ in n alone: `x=bfloat16[n_rows,4096]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.errors import KernelError, WorkloadError
from search_spaces.near_names import did_you_mean
from search_spaces.records import config_key
from search_spaces.shape_tensor import torch_dtype
from search_spaces.size_range import Range
from tuner.capturing.arguments import views_in
from tuner.capturing.call_configs import CallConfigs, arguments_on_meta
from tuner.capturing.call_records import Buffer, Call, Multiple, View
from tuner.capturing.grids import constexprs
from tuner.capturing.inputs import is_dense
from tuner.capturing.probe import probe
from tuner.capturing.sized_grids import GridForms, find_forms

#: Receives the place of a number in a call and the number; returns that of another call.
_Change: TypeAlias = Callable[[str, int], int]


class SizedCalls:
    """The calls of one kernel, at any size of a range of one argument.

    Raises `KernelError` in one line where the calls do not show what follows the size.
    """

    def __init__(
        self, calls: Sequence[Call], parts: AutotuneParts, name: str, sizes: Range
    ) -> None:
        self.name, self.sizes = name, sizes
        _check_name(calls[0], parts, name)
        self._calls, self._parts = tuple(calls), parts
        self._factors = _find_factors(self._calls, parts, name)
        _check_integers(self._calls, name, sizes)
        constants = _Constants(calls, name, self._factors)
        self._forms: GridForms = find_forms(
            self._calls, parts, name, sizes, constants.factors, constants.numbers
        )

    def at(self, size: object) -> tuple[Call, CallConfigs]:
        """The call of a size and the library's configs for it; raises `WorkloadError` outside of
        the range."""
        if type(size) is not int or not self.sizes.low <= size <= self.sizes.high:
            raise WorkloadError(
                f"{self._calls[0].kernel}: {self.name}={size} is outside of {self.sizes}",
                "declare another range",
            )
        return _call_at(self, size)

    def make(self, size: int) -> tuple[Call, CallConfigs]:
        """The call of a size and its configs, from the recorded call of the nearest size."""
        call = self._make_call(size)
        return call, CallConfigs(call, self._parts)

    def check_ends(self, contents: Mapping[str, bytes], device: str) -> None:
        """Run the library's config at the least size and at one beyond those captured.

        Raises `KernelError` in one line where it then writes other tensors, or leaves elements: the
        grid or a constant follows the size in a way that the calls do not show.
        """
        largest = max(call.arguments[self.name] for call in self._calls)
        known = {each.buffer: each.partial for each in self._calls[0].written or ()}
        for size in sorted({self.sizes.low, min(self.sizes.high, 2 * largest + 1)}):
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
        base = min(self._calls, key=lambda each: abs(math.log2(each.arguments[name] / size)))

        def change(place: str, value: int) -> int:
            factor = self._factors[place]
            return Multiple(factor, name, size) if factor else value

        found = _change_numbers(base, change)
        found = replace(found, arguments={**found.arguments, name: size})
        found = replace(found, grid=self._forms.grid_of(found, self._parts))
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


def list_sizes(call: Call, parts: AutotuneParts) -> list[str]:
    """The arguments of a call that a range may name."""
    fixed = {*constexprs(parts), *(call.free or ()), *(n for c in parts.configs for n in c)}
    return [
        name for name, value in call.arguments.items() if type(value) is int and name not in fixed
    ]


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
        what = f"no argument{did_you_mean(name, parts.arg_names)}"
    elif name in (call.free or ()):
        what = "free: its value does not change the work"
    else:
        what = "no size: sizes are integers that are not compiled in"
    raise KernelError(
        f"captured kernel {call.kernel}: ranges names {name}, which is {what}",
        f"it may name {', '.join(sizes)}" if sizes else "this kernel has no size among its scalars",
    )


# -- the numbers of a call -------------------------------------------------------------------------
def _change_numbers(call: Call, change: _Change) -> Call:
    """The call with other numbers; strides of contiguous tensors, and buffers, follow from them."""
    owners = {at: name for name, encoded in call.arguments.items() for at in views_in(encoded)}
    views = tuple(_change_view(owners[at], view, change) for at, view in enumerate(call.views))
    arguments = {
        name: encoded if name in (call.free or ()) else _change_encoded(name, encoded, change)
        for name, encoded in call.arguments.items()
    }
    buffers = tuple(
        _resize(buffer, [view for view in views if view.buffer == at])
        for at, buffer in enumerate(call.buffers)
    )
    return replace(call, arguments=arguments, views=views, buffers=buffers)


def _change_view(name: str, view: View, change: _Change) -> View:
    shape = tuple(change(f"dim {at} of {name}", size) for at, size in enumerate(view.shape))
    if is_dense(view):
        strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
    else:
        strides = tuple(
            change(f"stride {at} of {name}", step) for at, step in enumerate(view.strides)
        )
    offset = change(f"the offset of {name}", view.offset)
    return replace(view, shape=shape, strides=strides, offset=offset)


def _change_encoded(name: str, encoded: Any, change: _Change) -> Any:
    if type(encoded) is int:
        return change(name, encoded)
    if not isinstance(encoded, Mapping):
        return encoded
    ((kind, given),) = encoded.items()
    if kind in ("tuple", "list"):
        return {
            kind: [_change_encoded(f"{name}[{i}]", part, change) for i, part in enumerate(given)]
        }
    if kind == "constexpr":
        return {kind: _change_encoded(name, given, change)}
    if kind == "descriptor":
        sizes = {
            part: [change(f"{part} {i} of {name}", size) for i, size in enumerate(given[part])]
            for part in ("shape", "strides", "block_shape")
        }
        return {kind: {**given, **sizes}}
    return encoded


def _resize(buffer: Buffer, views: Sequence[View]) -> Buffer:
    """The buffer that holds these views; contents of another length are not kept."""
    size = max(map(_find_end, views)) - min(view.offset for view in views)
    return buffer if size == buffer.bytes else replace(buffer, bytes=size, contents="")


def _find_end(view: View) -> int:
    if not math.prod(view.shape):
        return view.offset
    last = sum((size - 1) * step for size, step in zip(view.shape, view.strides, strict=True))
    return view.offset + (last + 1) * torch_dtype(view.dtype).itemsize


def _list_numbers(call: Call) -> dict[str, int]:
    found: dict[str, int] = {}

    def note(place: str, value: int) -> int:
        found[place] = value
        return value

    _change_numbers(call, note)
    return found


# -- what follows ----------------------------------------------------------------------------------
def _find_factors(calls: Sequence[Call], parts: AutotuneParts, name: str) -> dict[str, int]:
    """k of every number by its place; 0 of those that stay."""
    where = f"captured kernel {calls[0].kernel}"
    if len({_describe_rest(call) for call in calls}) > 1:
        raise KernelError(
            f"{where}: its calls differ in more than sizes", "give calls of one kind, or one call"
        )
    listed = [_list_numbers(call) for call in calls]
    values = [numbers[name] for numbers in listed]
    if min(values) < 1 or len({*values}) < len(values) or values == [1]:
        shown = ", ".join(map(str, values))
        raise KernelError(
            f"{where}: what follows {name} is not seen in calls with {name}={shown}",
            f"capture calls that differ in {name}, or one with a larger {name}",
        )
    if len(calls) > 1:
        return {place: _compare(where, name, place, values, listed) for place in listed[0]}
    compiled_in = constexprs(parts)
    scalars = {place: w for place, w in listed[0].items() if place in calls[0].arguments}
    return {
        place: _guess(where, (name, values[0]), (place, w), scalars, compiled_in)
        for place, w in listed[0].items()
    }


def _describe_rest(call: Call) -> str:
    """What calls of different sizes have in common."""
    blank = _change_numbers(call, lambda place, value: 0)
    views = [(view.buffer, view.dtype, len(view.shape)) for view in call.views]
    addresses = [buffer.misalignment for buffer in call.buffers]
    places = list(_list_numbers(call))
    given = {name: v for name, v in blank.arguments.items() if name not in (call.free or ())}
    return repr((given, views, addresses, places, dict(call.options), call.free))


def _compare(
    where: str, name: str, place: str, values: Sequence[int], listed: Sequence[Mapping[str, int]]
) -> int:
    """k of a number of several calls."""
    found = [numbers[place] for numbers in listed]
    if len({*found}) == 1:
        return 0
    pairs, (factor, rest) = list(zip(values, found, strict=True)), divmod(found[0], values[0])
    if rest or factor < 1 or any(w != factor * v for v, w in pairs):
        shown = " and ".join(f"{w} at {name}={v}" for v, w in pairs[:2])
        raise KernelError(
            f"{where}: {place} is {shown}, which is no multiple of {name}",
            f"leave out the range of {name}: give the calls as they are",
        )
    return factor


def _guess(
    where: str,
    size: tuple[str, int],
    number: tuple[str, int],
    scalars: Mapping[str, int],
    compiled_in: frozenset[str],
) -> int:
    """k of a number of a single call."""
    (name, value), (place, found) = size, number
    if place == name:
        return 1
    others = {w for other, w in scalars.items() if other not in (name, place) and w > 1}
    is_power = place in compiled_in and found == 1 << (value - 1).bit_length()
    if found < 2 or (found % value and not is_power):
        return 0
    factor = found // value
    may_follow = factor == 1 or factor in others or is_power
    if place in scalars:
        if not may_follow:
            return 0
    elif may_follow != (found in others):
        return factor if may_follow else 0
    raise KernelError(
        f"{where}: {place} is {found} at {name}={value}, and may follow {name} or not",
        f"capture a call with another {name} too, and tune both: they show what follows",
    )


class _Constants:
    """The numbers that a grid may use besides the size and the parameters of a config."""

    def __init__(self, calls: Sequence[Call], name: str, factors: Mapping[str, int]) -> None:
        numbers = _list_numbers(calls[0])
        value = numbers[name]
        wholes = [math.prod(view.shape) for view in calls[0].views]
        follows = [
            any(factors.get(f"dim {i} of {owner}") for i in range(len(calls[0].views[at].shape)))
            for owner, encoded in calls[0].arguments.items()
            for at in views_in(encoded)
        ]
        whole_factors = [w // value for w, each in zip(wholes, follows, strict=True) if each]
        self.factors = sorted({1, *(k for k in factors.values() if k), *whole_factors} - {0})
        whole = [w for w, each in zip(wholes, follows, strict=True) if not each]
        stay = [w for place, w in numbers.items() if not factors[place]]
        self.numbers = sorted({1, *(w for w in (*stay, *whole) if w > 1)})


def _check_integers(calls: Sequence[Call], name: str, sizes: Range) -> None:
    """Refuse integers that may be indices beyond the tensors of the least size.

    Those of 8 bits and flags are taken for data.
    """
    for call in calls:
        for at, buffer in _list_read(call):
            dtypes = {view.dtype for view in call.views if view.buffer == at}
            wide = {"int16", "int32", "int64", "uint16", "uint32", "uint64"} & dtypes
            high = None if buffer.values is None else buffer.values.high
            if wide and buffer.bytes and (high is None or high >= sizes.low):
                held = "what it holds is unknown" if high is None else f"it holds up to {high:.0f}"
                raise KernelError(
                    f"captured kernel {call.kernel}: {buffer.name} has integers that may be "
                    f"indices ({held}), so its contents at {name}={sizes.low} are not known",
                    "take a range whose least size is above them, or give the calls as they are",
                )


def _list_read(call: Call) -> Iterator[tuple[int, Buffer]]:
    """The buffers whose contents matter."""
    overwritten = {each.buffer for each in call.written or () if not each.updated}
    return (pair for pair in enumerate(call.buffers) if pair[0] not in overwritten)
