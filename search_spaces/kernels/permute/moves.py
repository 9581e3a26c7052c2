"""What a permutation moves: its dimensions merged to the fewest, and their strides.

Neighbouring dimensions that stay neighbours are one dimension, and dimensions of size 1 are none.
Of what remains, the elements of a tile lie along two dimensions: `cols`, neighbours in the input,
and `rows`, which are neighbours in the output or, where neighbours stay neighbours, the dimension
before them. At most two more dimensions are left, `outer`. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from search_spaces.records import Workload


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension, with the elements between its neighbours."""

    size: int
    in_stride: int
    out_stride: int


_NONE = Axis(1, 0, 0)


@dataclass(frozen=True, slots=True)
class Move:
    """The dimensions of a permutation."""

    rows: Axis
    cols: Axis
    #: The slower dimension first, as in the output.
    outer: tuple[Axis, Axis]

    @property
    def transposes(self) -> bool:
        """Whether neighbours in the output are not neighbours in the input."""
        return self.cols.out_stride != 1


def shape_of(workload: Workload) -> tuple[int, ...]:
    """The input's sizes, as many as the order has places."""
    return tuple(workload.size(f"d{place}") for place in range(len(workload.text("order"))))


def order_of(workload: Workload) -> tuple[int, ...]:
    """The input's dimension at each place of the output."""
    return tuple(int(place) for place in workload.text("order"))


def move_of(workload: Workload) -> Move:
    """The merged dimensions of a workload's permutation."""
    shape, order = _merged(shape_of(workload), order_of(workload))
    out_shape = [shape[place] for place in order]
    axes = [
        Axis(shape[place], prod(shape[place + 1 :]), prod(out_shape[at + 1 :]))
        for at, place in enumerate(order)
    ]
    by_input = sorted(axes, key=lambda axis: axis.in_stride)
    cols = by_input[0] if by_input else Axis(1, 1, 1)
    others = [axis for axis in axes if axis is not cols]
    # In the order of the output, the last other dimension is the nearest one.
    rows = others.pop() if others else _NONE
    outer = (*[_NONE] * (2 - len(others)), *others)
    return Move(rows, cols, (outer[0], outer[1]))


def _merged(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The sizes and the order without dimensions of size 1, neighbours that stay so merged."""
    kept = [place for place in order if shape[place] > 1]
    groups: list[list[int]] = []
    ranks = {place: rank for rank, place in enumerate(sorted(kept))}
    for place in kept:
        if groups and ranks[place] == ranks[groups[-1][-1]] + 1:
            groups[-1].append(place)
        else:
            groups.append([place])
    by_input = sorted(groups)
    sizes = [prod(shape[place] for place in group) for group in by_input]
    return sizes, [by_input.index(group) for group in groups]
