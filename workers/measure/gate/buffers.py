"""Output and scratch tensors between guard bands, filled with poison before a kernel runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from search_spaces.records import TensorSpec

if TYPE_CHECKING:
    import torch

GUARD_BYTES = 64 * 1024
ALIGNMENT = 256
#: Fill bytes of the first and the second seed: NaN in every float type; huge, mostly finite values.
POISONS = (0xFF, 0x7F)
_CANARY = 0xC7


def holding(tensor: torch.Tensor, byte: int) -> torch.Tensor:
    """Which elements consist of `byte` only, as booleans of the tensor's shape."""
    import torch

    width = tensor.element_size()
    single = tensor.contiguous().view(-1).view(torch.uint8)
    return (single == byte).view(-1, width).all(dim=1).view(tensor.shape)


class GuardedTensor:
    """A tensor aligned to 256 bytes between two guard bands of 64 KiB each."""

    def __init__(self, name: str, spec: TensorSpec, memory: torch.Tensor, start: int) -> None:
        import torch

        dtype = getattr(torch, spec.dtype)
        end = start + math.prod(spec.shape) * dtype.itemsize
        self.name = name
        self.spec = spec
        self.bytes = memory[start:end]
        self.tensor: torch.Tensor = self.bytes.view(dtype).view(spec.shape)
        self._before = memory[start - GUARD_BYTES : start]
        self._after = memory[end : end + GUARD_BYTES]

    def poison(self, byte: int) -> None:
        """Fill the tensor with `byte` and renew the guard bands."""
        self._before.fill_(_CANARY)
        self._after.fill_(_CANARY)
        self.bytes.fill_(byte)

    def band_changes(self) -> list[torch.Tensor]:
        """Whether the bands before and after were written to, as scalars on the device."""
        return [(self._before != _CANARY).any(), (self._after != _CANARY).any()]


class Arena:
    """Memory of one named buffer, as large as the largest tensor requested so far.

    Variants with scratch of different sizes share this memory, because they run one after another.
    """

    def __init__(self, name: str, device: str) -> None:
        self._name = name
        self._device = device
        self._memory: torch.Tensor | None = None

    def tensor(self, spec: TensorSpec) -> GuardedTensor:
        """A tensor of this shape and dtype at the start of the arena; contents are undefined."""
        import torch

        size = math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize
        total = size + 2 * GUARD_BYTES + ALIGNMENT
        if self._memory is None or len(self._memory) < total:
            self._memory = torch.empty(total, dtype=torch.uint8, device=self._device)
        start = GUARD_BYTES + (-self._memory.data_ptr() - GUARD_BYTES) % ALIGNMENT
        return GuardedTensor(self._name, spec, self._memory, start)
