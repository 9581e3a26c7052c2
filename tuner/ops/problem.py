"""What a call of an operator is to a kernel: a workload and the tensors of its launch.

Below it, what operators ask of their arguments before they make one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from search_spaces.kernel import Launch
from search_spaces.records import Config, TensorSpec, Value, Workload

#: Types of tensors that kernels read.
PLAIN = (torch.Tensor, torch.nn.Parameter)
#: The dtypes that kernels take, and those of attention and of losses of linear layers.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Preparation:
    """A launch that makes further inputs of a kernel in each call."""

    #: What it makes of a problem's tensors for a config, by name.
    outputs: Callable[[Config, Mapping[str, torch.Tensor]], Mapping[str, TensorSpec]]
    #: The launch on those tensors and these.
    launch: Callable[[Config, Mapping[str, torch.Tensor]], Launch]


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
    #: What is launched before the kernel, and makes further inputs of it.
    preparation: Preparation | None = None
    #: Baselines that the operator's function of torch stands for: theirs would be wrong for other
    #: values of these shapes, in another precision, or in a buffer that the next call overwrites.
    replaced: tuple[str, ...] = ()
    #: Whether what runs in the place of torch's function launches what a compiler makes of that.
    in_parts: bool = False
    #: Whether an input is not contiguous: torch's function stands for all baselines.
    strided: bool = False

    @property
    def workload(self) -> Workload:
        """The workload of the kernel."""
        return Workload.from_mapping(self.dims)

    @property
    def key(self) -> dict[str, Value]:
        """The workload as tables have it."""
        return {name: value for name, value in self.dims.items() if name not in self.unkeyed}


def dtype_name(tensor: torch.Tensor) -> str:
    """The dtype as workloads have it: `bfloat16`."""
    return str(tensor.dtype).removeprefix("torch.")


def runs_on(tensor: torch.Tensor, first: int, last: int = 99) -> bool:
    """Whether a tensor is on an NVIDIA GPU whose major compute capability is first .. last."""
    if not tensor.is_cuda or not torch.version.cuda or not torch.cuda.is_available():
        return False
    return first <= torch.cuda.get_device_capability(tensor.device)[0] <= last


def as_rows(*tensors: torch.Tensor) -> tuple[int, int] | None:
    """Rows and columns of contiguous tensors of one shape and floating-point dtype; else None."""
    first = tensors[0]
    if first.dtype not in FLOATS or not first.ndim:
        return None
    if any(each.shape != first.shape or each.dtype != first.dtype for each in tensors):
        return None
    if not all(each.is_contiguous() for each in tensors):
        return None
    cols = first.shape[-1]
    return first.numel() // cols, cols


def strided_rows(x: torch.Tensor) -> torch.Tensor | None:
    """x[..., cols] as [rows, cols] for kernels that take any distance between rows, else None."""
    if x.dtype not in FLOATS or not x.ndim:
        return None
    if x.is_contiguous():
        return x.view(-1, x.shape[-1])
    try:
        rows = x.view(-1, x.shape[-1])
    except (RuntimeError, ValueError):  # rows are not at equal distances; or so of fake tensors
        return None
    apart = rows.stride(1) == 1 and rows.stride(0) >= rows.shape[1]
    return rows if apart else None


def are_vectors(cols: int, like: torch.Tensor, *vectors: torch.Tensor) -> bool:
    """Whether these are contiguous vectors of that length and the dtype of `like`."""
    return all(
        each.shape == (cols,) and each.dtype == like.dtype and each.is_contiguous()
        for each in vectors
    )


def are_in_range(places: torch.Tensor, count: int, ignored: int | None = None) -> bool:
    """Whether all are 0 .. count - 1 or ignored, or of a device or a graph, not waited for.

    torch checks those on a CPU: there, its function says what is wrong.
    """
    if places.device.type != "cpu" or torch.compiler.is_compiling() or type(places) not in PLAIN:
        return True
    return bool((((places >= 0) & (places < count)) | (places == ignored)).all())
