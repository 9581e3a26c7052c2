"""The stretches of memory that tensors cover, and which of them overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

#: Addresses of the first byte and of the byte after the last one.
Span: TypeAlias = tuple[int, int]


def span_of(tensor: Any) -> Span:
    start, width = tensor.data_ptr(), tensor.element_size()
    if not tensor.numel():
        return start, start
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + (last + 1) * width


def overlapping(spans: Sequence[Span]) -> list[list[int]]:
    """Positions of spans in groups that overlap; in the order of their first members.

    An empty span overlaps nothing.
    """
    groups: list[list[int]] = []
    end = -1
    for at in sorted(range(len(spans)), key=spans.__getitem__):
        start, stop = spans[at]
        if start == stop:
            groups.insert(0, [at])
        elif start < end:
            groups[-1].append(at)
            end = max(end, stop)
        else:
            groups.append([at])
            end = stop
    return sorted(sorted(group) for group in groups)
