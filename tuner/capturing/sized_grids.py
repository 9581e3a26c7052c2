"""The grid of a captured call at other sizes.

Notation: n is the size, b and c are parameters of the config or constants that the launch compiles
in (or 1), k and t numbers of the call. Every size of a grid is taken for

    cdiv(k n, b) cdiv(t, c), or without the first factor,

if that gives the recorded grid of every call and every config. Of several forms all must be equal
over the range; else the calls do not show the grid.
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
from tuner.capturing.call_records import Call, Grid
from tuner.capturing.grids import constexprs
from tuner.capturing.recorder import defaults_of

#: Constants by name, of one config.
_Names: TypeAlias = Mapping[str, int]
#: Sizes of the range at which two forms are compared.
_COMPARED = 64


@dataclass(frozen=True, slots=True)
class _Form:
    """One size of a grid as a function of n."""

    #: k; 0 where n has no part.
    factor: int
    #: The name of b; empty for 1.
    block: str
    #: t.
    number: int
    #: The name of c; empty for 1.
    other_block: str

    def of(self, size: int, names: _Names) -> int:
        block, other = names.get(self.block, 1), names.get(self.other_block, 1)
        first = -(-self.factor * size // block) if self.factor else 1
        return first * -(-self.number // other)


@dataclass(frozen=True, slots=True)
class GridForms:
    """The grid of a kernel's calls as a function of one argument."""

    #: The argument.
    name: str
    #: One form for each size of the grid.
    forms: tuple[_Form, ...]

    def grid_of(self, call: Call, parts: AutotuneParts) -> Grid:
        """The grid of a call whose other parts have its size."""
        size, own = call.arguments[self.name], call.grid

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
    factors: Sequence[int],
    numbers: Sequence[int],
) -> GridForms:
    """The forms of the grid of calls; factors and numbers: what k and t may be.

    Raises `KernelError` in one line where the calls do not show the grid.
    """
    samples = [sample for call in calls for sample in _list_samples(call, parts, name)]
    where = f"captured kernel {calls[0].kernel}"
    remedy = f"capture a call with another {name} too, and tune both: they show what follows"
    if len({len(sample.grid) for sample in samples}) > 1:
        raise KernelError(f"{where}: its grids have different numbers of sizes", remedy)
    compared = sorted({sizes.low, sizes.high, *sizes.draw(_COMPARED, seed=0)})
    forms = []
    for at in range(len(samples[0].grid)):
        recorded = samples[0].grid[at]
        found = list(_list_fitting(samples, at, factors, numbers))
        # A size that is that of the tensors follows it; two calls may say otherwise.
        exact = [form for form in found if form.factor and not form.block]
        if all(sample.grid[at] == recorded for sample in samples) and not exact:
            found.append(_Form(0, "", recorded, ""))
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
    return GridForms(name, tuple(forms))


def _list_fitting(
    samples: Sequence[_Sample], at: int, factors: Sequence[int], numbers: Sequence[int]
) -> Iterable[_Form]:
    blocks = ["", *samples[0].names]
    for each in itertools.product((0, *factors), blocks, numbers, blocks):
        form = _Form(*each)
        if (form.block and not form.factor) or (form.other_block and form.number == 1):
            continue  # the same as one without the block
        if all(form.of(sample.size, sample.names) == sample.grid[at] for sample in samples):
            yield form


def _list_samples(call: Call, parts: AutotuneParts, name: str) -> list[_Sample]:
    """The recorded grids of a call."""
    size, reads = call.arguments[name], call.grid.reads
    launched = parts.launch_values(call.default or {})
    rows = [(dict(zip(reads, read, strict=True)), grid) for read, grid in call.grid.rows]
    return [
        _Sample(size, _list_names(call, parts, given), grid)
        for given, grid in [(launched, call.grid.sizes), *rows]
    ]


def _list_names(call: Call, parts: AutotuneParts, given: Mapping[str, Any]) -> dict[str, int]:
    """The integers that a launch compiles in. given: what differs from the library's config."""
    arguments = {**defaults_of(parts), **arguments_on_meta(call)}
    tuned = {**parts.launch_values(call.default or {}), **given}
    everything = {**arguments, **tuned, **parts.constants(arguments, tuned)}
    listed = [*constexprs(parts)]
    return {
        name: int(value)
        for name in sorted(listed)
        if type(value := getattr(v := everything.get(name), "value", v)) is int and value > 0
    }
