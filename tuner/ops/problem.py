"""What a call of an operator is to a kernel: a workload and the tensors of its launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search_spaces.records import Value, Workload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Problem:
    """The problem that a kernel solves for a call. Operators make one only for calls that a kernel
    can take: their own function runs on torch for all others."""

    #: The name of the kernel.
    kernel: str
    #: Its workload, by dim.
    dims: Mapping[str, Value]
    #: The kernel's inputs by name, in the kernel's shapes: views of the arguments, never copies.
    tensors: Mapping[str, torch.Tensor]
    #: What the operator returns: the kernel's outputs by name, each with its shape for the caller.
    outputs: Mapping[str, tuple[int, ...]]
    #: Dims that change no choice, such as eps: tables are asked without them.
    unkeyed: tuple[str, ...] = ("eps",)

    @property
    def workload(self) -> Workload:
        """The workload of the kernel."""
        return Workload.from_mapping(self.dims)

    @property
    def key(self) -> dict[str, Value]:
        """The workload as tables have it."""
        return {name: value for name, value in self.dims.items() if name not in self.unkeyed}
