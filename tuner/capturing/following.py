"""What follows the size of a range: the other numbers of its calls as functions of it.

Notation: n is the size that is wanted, v its value in a call, w another number there.

The calls have at least two different v: one call does not show what follows. w stays where it is
equal in all of them, and is k n where it is k v in all with one integer k. Of three or more it is
k n + c where it is k v + c in all; two numbers always fit such a form. Else it is cdiv(k n, b) with
a number b that stays and a k of the former, if that fits all and no other such form does.
`sized_grids.py` has the same for grids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search_spaces.errors import KernelError
from search_spaces.size_range import Range
from tuner.capturing.call_numbers import change_numbers, list_numbers, list_owners, place_of_size
from tuner.capturing.call_records import Call

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


def find_terms(calls: Sequence[Call], name: str, sizes: Range) -> dict[str, Term | None]:
    """The term of every number by its place; None for those that stay.

    Raises `KernelError` in one line where the calls do not show it.
    """
    where = f"captured kernel {calls[0].kernel}"
    if len({_describe_rest(call) for call in calls}) > 1:
        raise KernelError(f"{where}: its calls differ in more than sizes", "give calls of one kind")
    listed, own = [list_numbers(call) for call in calls], place_of_size(name)
    values = [numbers[own] for numbers in listed]
    if min(values) < 1 or len({*values}) < max(2, len(values)):
        shown = ", ".join(map(str, values))
        raise KernelError(
            f"{where}: what follows {name} is not seen in calls with {name}={shown}",
            f"capture calls that differ in {name}, and tune all of them: they show it",
        )
    found = {place: [each[place] for each in listed] for place in listed[0]}
    return _compare_all(where, name, values, found, sizes)


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
