"""The tensors of a launch as buffers and views, before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuner.capturing.call_records import ALIGNMENT, Buffer, Values, View
from tuner.capturing.contents import Contents
from tuner.capturing.specialization import overlapping, span_of

if TYPE_CHECKING:
    import torch

#: Elements of a tensor of which the distribution of its values is computed.
_SAMPLE = 1 << 16


class Snapshot:
    """Collects the tensors of one launch."""

    def __init__(self) -> None:
        self._tensors: list[tuple[str, torch.Tensor]] = []

    def add(self, name: str, tensor: Any) -> int:
        """Add a tensor; its position among the views."""
        self._tensors.append((name, tensor))
        return len(self._tensors) - 1

    def take(self, contents: Contents) -> tuple[tuple[Buffer, ...], tuple[View, ...]]:
        """The buffers and the views; contents are copied as far as they are kept."""
        spans = [span_of(tensor) for _, tensor in self._tensors]
        groups = overlapping(spans)
        buffers = tuple(self._buffer(group, spans, contents) for group in groups)
        views = []
        for at, (_, tensor) in enumerate(self._tensors):
            number = next(n for n, group in enumerate(groups) if at in group)
            offset = tensor.data_ptr() - min(spans[member][0] for member in groups[number])
            views.append(
                View(
                    number,
                    f"{tensor.dtype}".removeprefix("torch."),
                    tuple(tensor.shape),
                    tuple(tensor.stride()),
                    offset,
                )
            )
        return buffers, tuple(views)

    def _buffer(
        self, group: Sequence[int], spans: Sequence[tuple[int, int]], contents: Contents
    ) -> Buffer:
        name, first = self._tensors[group[0]]
        tensors = [self._tensors[member][1] for member in group]
        start = min(spans[member][0] for member in group)
        size = max(spans[member][1] for member in group) - start
        kept, values = "", None
        if size and not _in_graph(first):
            if contents.wants([tensor.dtype for tensor in tensors], size):
                kept = contents.keep(_bytes(first, start, size))
            values = _values(first)
        return Buffer(name, size, start % ALIGNMENT, values, kept)


def _in_graph(tensor: torch.Tensor) -> bool:
    """Whether the stream records a CUDA graph, during which nothing can be read."""
    import torch

    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _bytes(tensor: torch.Tensor, start: int, size: int) -> bytes:
    """A stretch of the storage of a tensor."""
    import torch

    storage = tensor.detach().untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    flat.set_(storage, start - storage.data_ptr(), (size,), (1,))
    data: bytes = flat.cpu().numpy().tobytes()
    return data


def _values(tensor: torch.Tensor) -> Values | None:
    """The distribution of a sample of a tensor's finite values; None where there are none."""
    import torch

    if tensor.dtype.is_complex:
        return None
    if not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
        return _integers(tensor.detach())
    flat = tensor.detach().flatten() if tensor.is_contiguous() else tensor.detach()[_corner(tensor)]
    step = max(1, flat.numel() // _SAMPLE)
    sample = flat.reshape(-1)[::step].to(torch.float64 if not tensor.is_cuda else torch.float32)
    sample = sample[torch.isfinite(sample)]
    if not sample.numel():
        return None
    low, high = (float(value) for value in torch.aminmax(sample))
    mean = float(sample.mean())
    std = float(sample.std(correction=0))
    return Values(mean, std, low, high) if math.isfinite(mean + std) else None


def _integers(tensor: torch.Tensor) -> Values | None:
    """The range of all elements, exactly: indices that are drawn must not leave it."""
    import torch

    if not tensor.numel():
        return None
    # torch orders no unsigned integers of more than 8 bits.
    ordered = tensor if tensor.dtype in (torch.uint8, torch.int8) else tensor.to(torch.int64)
    low, high = (int(value) for value in torch.aminmax(ordered))
    return Values((low + high) / 2, (high - low) / math.sqrt(12), low, high)


def _corner(tensor: torch.Tensor) -> tuple[slice, ...]:
    """An index of a part that can be copied cheaply."""
    left = _SAMPLE
    parts = []
    for size in reversed(tensor.shape):
        taken = max(1, min(size, left))
        left //= taken
        parts.append(slice(taken))
    return tuple(reversed(parts))
