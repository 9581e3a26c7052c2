"""What follows the size of a range: the other numbers of its calls as functions of it.

Notation: n is the size that is wanted, v its value in a call, w another number there.

With calls of several v, w stays where it is equal in all of them, and is k n where it is k v in all
with one integer k. Of three or more it is k n + c where it is k v + c in all; two numbers always
fit such a form. Else it is cdiv(k n, b) with a number b that stays and a k of the former, if that
fits all and no other such form does. With one call, the size of a tensor follows where it is v, or
v times another integer argument, and no other argument has its value. All else that is k v or
cdiv(v, b) might follow or not, and is refused: two calls show it. `sized_grids.py` has the same for
grids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.errors import KernelError
from search_spaces.size_range import Range
from tuner.capturing.call_numbers import (
    change_numbers,
    list_numbers,
    list_owners,
    place_of_size,
    tensor_of_size,
)
from tuner.capturing.call_records import Call
from tuner.capturing.grids import constexprs

#: Sizes of the range at which two forms are compared.
COMPARED = 64


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """A number that follows: cdiv(k n + c, b)."""

    #: k, at least 1.
    factor: int
    #: c.
    rest: int = 0
    #: b.
    block: int = 1

    def of(self, size: int) -> int:
        return -(-(self.factor * size + self.rest) // self.block)

    def describe(self, name: str) -> str:
        """`n`, `2*n+1` or `cdiv(n,256)`."""
        text = name if self.factor == 1 else f"{self.factor}*{name}"
        text = f"{text}{self.rest:+d}" if self.rest else text
        return text if self.block == 1 else f"cdiv({text},{self.block})"


def find_terms(
    calls: Sequence[Call], parts: AutotuneParts, name: str, sizes: Range
) -> dict[str, Term | None]:
    """The term of every number by its place; None for those that stay.

    Raises `KernelError` in one line where the calls do not show it.
    """
    where = f"captured kernel {calls[0].kernel}"
    if len({_describe_rest(call) for call in calls}) > 1:
        raise KernelError(
            f"{where}: its calls differ in more than sizes", "give calls of one kind, or one call"
        )
    listed, own = [list_numbers(call) for call in calls], place_of_size(name)
    values = [numbers[own] for numbers in listed]
    if min(values) < 1 or len({*values}) < len(values) or values == [1]:
        shown = ", ".join(map(str, values))
        raise KernelError(
            f"{where}: what follows {name} is not seen in calls with {name}={shown}",
            f"capture calls that differ in {name}, or one with a larger {name}",
        )
    if len(calls) > 1:
        found = {place: [each[place] for each in listed] for place in listed[0]}
        return _compare_all(where, name, values, found, sizes)
    (numbers,), compiled_in = listed, constexprs(parts)
    scalars = [place for place in numbers if place in calls[0].arguments]
    return {place: _guess(where, name, numbers, place, scalars, compiled_in) for place in numbers}


def _describe_rest(call: Call) -> str:
    """What calls of different sizes have in common."""
    blank = change_numbers(call, lambda place, value: 0)
    views = [(view.buffer, view.dtype, len(view.shape)) for view in call.views]
    addresses = [buffer.misalignment for buffer in call.buffers]
    places = list(list_numbers(call))
    given = {name: v for name, v in blank.arguments.items() if name not in (call.free or ())}
    return repr((given, views, addresses, places, dict(call.options), call.free))


def _compare_all(
    where: str,
    name: str,
    values: Sequence[int],
    found: Mapping[str, Sequence[int]],
    sizes: Range,
) -> dict[str, Term | None]:
    """The terms of several calls. found: by place, the number in each call."""
    lines = {place: _find_line(values, each) for place, each in found.items() if len({*each}) > 1}
    terms: dict[str, Term | None] = {
        place: line if line and (not line.rest or len(values) > 2) else None
        for place, line in lines.items()
    }
    blocks = sorted({each[0] for place, each in found.items() if place not in terms} - {0, 1})
    factors = sorted({1, *(each.factor for each in terms.values() if each)})
    compared = sorted({sizes.low, sizes.high, *sizes.draw(COMPARED, seed=0)})
    for place in [place for place, term in terms.items() if term is None]:
        fitting = [
            term
            for term in (Term(k, 0, b) for k, b in itertools.product(factors, blocks))
            if [*map(term.of, values)] == [*found[place]]
        ]
        different = {tuple(map(term.of, compared)): term for term in fitting}
        if len(different) != 1:
            hint, line = f"leave out the range of {name}: give the calls as they are", lines[place]
            if line:
                hint = f"capture a third {name}: it shows whether this is {line.describe(name)}"
            pairs = zip(found[place], values, strict=True)
            shown = " and ".join(f"{w} at {name}={v}" for w, v in [*pairs][:2])
            raise KernelError(f"{where}: {place} is {shown}, which is no multiple of {name}", hint)
        terms[place] = next(iter(different.values()))
    return {place: terms.get(place) for place in found}


def _find_line(values: Sequence[int], found: Sequence[int]) -> Term | None:
    """k n + c through all calls, if there is one."""
    factor = (found[1] - found[0]) // (values[1] - values[0])
    term = Term(factor, found[0] - factor * values[0])
    return term if factor > 0 and [*map(term.of, values)] == [*found] else None


def _guess(
    where: str,
    name: str,
    numbers: Mapping[str, int],
    place: str,
    scalars: Collection[str],
    compiled_in: Collection[str],
) -> Term | None:
    """The term of a number of a single call. scalars: the places of integer arguments."""
    own, tensor, found = place_of_size(name), tensor_of_size(name), numbers[place]
    value = numbers[own]
    if place == own:
        return Term(1)
    others = {numbers[other] for other in scalars if other not in (own, place)}
    if tensor:  # other dims of this tensor may have the same size
        dims = (other for other in numbers if other.startswith("dim "))
        others |= {numbers[d] for d in dims if d.endswith(f" of {tensor}") and d != own}
    others -= {0, 1}
    is_power = place in compiled_in and found == 1 << (value - 1).bit_length()
    counts_blocks = place not in scalars and any(Term(1, 0, b).of(value) == found for b in others)
    if found < 2 or (found % value and not is_power and not counts_blocks):
        return None
    factor = found // value
    may_follow = factor == 1 or factor in others or is_power
    if place in scalars:
        if not may_follow:
            return None
    elif may_follow != (found in others) and not counts_blocks:
        return Term(factor) if may_follow else None
    raise KernelError(
        f"{where}: {place} is {found} at {name}={value}, and may follow {name} or not",
        f"capture a call with another {name} too, and tune both: they show what follows",
    )


class Constants:
    """The numbers that a grid may use besides the size and the parameters of a config."""

    def __init__(self, calls: Sequence[Call], terms: Mapping[str, Term | None]) -> None:
        numbers, owners = list_numbers(calls[0]), list_owners(calls[0])
        found, stay = {Term(1)}, [w for place, w in numbers.items() if terms[place] is None]
        for owner, view in zip(owners, calls[0].views, strict=True):
            dims = [terms.get(f"dim {at} of {owner}") for at in range(len(view.shape))]
            whole, follow = math.prod(view.shape), [each for each in dims if each is not None]
            if not follow:
                stay.append(whole)
            elif (
                len(follow) == 1 and follow[0].block == 1
            ):  # the number of elements follows as well
                rest = whole // view.shape[dims.index(follow[0])]
                found.add(Term(follow[0].factor * rest, follow[0].rest * rest))
        #: What follows the size.
        self.terms = sorted(found.union(each for each in terms.values() if each is not None))
        #: What stays.
        self.numbers = sorted({1, *(w for w in stay if w > 1)})
