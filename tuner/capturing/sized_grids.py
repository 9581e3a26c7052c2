"""The grid of a captured call at other sizes.

Notation: n is the size, b and c are parameters of the config or constants that the launch compiles
in (or 1), s a number that follows n (such as k n), and t one that stays. Every size of a grid is
taken for

    cdiv(s, b) cdiv(t, c), or without the first factor,

if that gives the recorded grid of every call and every config. If none of these does, as for the
programs of a persistent kernel, it is taken for min(m, cdiv(s, b) cdiv(t, c)) with m the largest
recorded size, which must be recorded for different s or b. Of several forms all must be equal over
the range; else the calls do not show the grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.errors import KernelError
from search_spaces.size_range import Range
from tuner.capturing.call_configs import arguments_on_meta
from tuner.capturing.call_numbers import size_of
from tuner.capturing.call_records import Call, Grid
from tuner.capturing.following import COMPARED, Term
from tuner.capturing.grids import constexprs
from tuner.runtime._arguments import defaults_of

#: Constants by name, of one config.
_Names: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Form:
    """One size of a grid as a function of n."""

    #: s; None where n has no part.
    term: Term | None
    #: The name of b; empty for 1.
    block: str
    #: t.
    number: int
    #: The name of c; empty for 1.
    other_block: str
    #: m; None where there is no limit.
    most: int | None = None

    def of(self, size: int, names: _Names) -> int:
        block, other = names.get(self.block, 1), names.get(self.other_block, 1)
        first = -(-self.term.of(size) // block) if self.term else 1
        found = first * -(-self.number // other)
        return found if self.most is None else min(self.most, found)


@dataclass(frozen=True, slots=True)
class GridForms:
    """The grid of a kernel's calls as a function of a size."""

    #: One form for each size of the grid.
    forms: tuple[_Form, ...]

    def grid_of(self, call: Call, size: int, parts: AutotuneParts) -> Grid:
        """The grid of a call whose other parts have the size."""
        own = call.grid

        def make(given: Mapping[str, Any]) -> tuple[int, ...]:
            names = _list_names(call, parts, given)
            return tuple(form.of(size, names) for form in self.forms)

        rows = tuple((read, make(dict(zip(own.reads, read, strict=True)))) for read, _ in own.rows)
        return replace(own, sizes=make(parts.launch_values(call.default or {})), rows=rows)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A recorded grid."""

    size: int
    names: _Names
    grid: tuple[int, ...]


def find_forms(
    calls: Sequence[Call],
    parts: AutotuneParts,
    name: str,
    sizes: Range,
    terms: Sequence[Term],
    numbers: Sequence[int],
) -> GridForms:
    """The forms of the grid of calls; terms and numbers: what s and t may be.

    Raises `KernelError` in one line where the calls do not show the grid.
    """
    samples = [sample for call in calls for sample in _list_samples(call, parts, name)]
    where = f"captured kernel {calls[0].kernel}"
    remedy = f"capture a call with another {name} too, and tune both: they show what follows"
    if len({len(sample.grid) for sample in samples}) > 1:
        raise KernelError(f"{where}: its grids have different numbers of sizes", remedy)
    compared = sorted({sizes.low, sizes.high, *sizes.draw(COMPARED, seed=0)})
    forms = []
    for at in range(len(samples[0].grid)):
        recorded = samples[0].grid[at]
        found = list(_list_fitting(samples, at, terms, numbers))
        # A size that is that of the tensors follows it; two calls may say otherwise.
        exact = [form for form in found if form.term and not form.block]
        if all(sample.grid[at] == recorded for sample in samples) and not exact:
            found.append(_Form(None, "", recorded, ""))
        found = found or list(_list_limited(samples, at, terms, numbers))
        different = {
            tuple(form.of(size, sample.names) for size in compared for sample in samples[:8]): form
            for form in found
        }
        if len(different) != 1:
            what = "is no known function of" if not different else "may follow"
            hint = "give the calls as they are, without a range" if not different else remedy
            end = "" if not different else " or not"
            raise KernelError(f"{where}: its grid {samples[0].grid} {what} {name}{end}", hint)
        forms.append(next(iter(different.values())))
    return GridForms(tuple(forms))


def _list_forms(
    names: Iterable[str], terms: Sequence[Term], numbers: Sequence[int], most: int | None = None
) -> Iterable[_Form]:
    blocks = ["", *names]
    for term, block, number, other in itertools.product((None, *terms), blocks, numbers, blocks):
        if (term or not block) and (number > 1 or not other):  # else the same without the block
            yield _Form(term, block, number, other, most)


def _list_fitting(
    samples: Sequence[_Sample], at: int, terms: Sequence[Term], numbers: Sequence[int]
) -> Iterable[_Form]:
    for form in _list_forms(samples[0].names, terms, numbers):
        if all(form.of(sample.size, sample.names) == sample.grid[at] for sample in samples):
            yield form


def _list_limited(
    samples: Sequence[_Sample], at: int, terms: Sequence[Term], numbers: Sequence[int]
) -> Iterable[_Form]:
    """Forms with a limit, which is reached from different sizes."""
    most = max(sample.grid[at] for sample in samples)
    for form in _list_forms(samples[0].names, terms, numbers, most):
        if all(form.of(sample.size, sample.names) == sample.grid[at] for sample in samples):
            free = replace(form, most=None)
            reached = {free.of(each.size, each.names) for each in samples}
            if len({size for size in reached if size > most}) > 1:
                yield form


def _list_samples(call: Call, parts: AutotuneParts, name: str) -> list[_Sample]:
    """The recorded grids of a call."""
    size, reads = size_of(call, name), call.grid.reads
    launched = parts.launch_values(call.default or {})
    rows = [(dict(zip(reads, read, strict=True)), grid) for read, grid in call.grid.rows]
    return [
        _Sample(size, _list_names(call, parts, given), grid)
        for given, grid in [(launched, call.grid.sizes), *rows]
    ]


def _list_names(call: Call, parts: AutotuneParts, given: Mapping[str, Any]) -> dict[str, int]:
    """The integers that a launch compiles in. given: what differs from the library's config."""
    arguments = {**defaults_of(parts.fn.fn), **arguments_on_meta(call)}
    tuned = {**parts.launch_values(call.default or {}), **given}
    everything = {**arguments, **tuned, **parts.constants(arguments, tuned)}
    listed = [*constexprs(parts)]
    return {
        name: int(value)
        for name in sorted(listed)
        if type(value := getattr(v := everything.get(name), "value", v)) is int and value > 0
    }
