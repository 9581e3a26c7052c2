"""What a case says of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from edge_samples import Sample, Sampler

from search_spaces.records import Workload

Tensors: TypeAlias = Mapping[str, torch.Tensor]
Call: TypeAlias = Callable[[], Any]
#: A function of `ops`, torch's function, and shapes of tensors that both take.
Counterpart: TypeAlias = tuple[Callable[..., Any], Callable[..., Any], Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A kernel behind an operator."""

    #: The call that has a problem with these tensors; None for a problem that no operator has.
    call: Callable[[Workload, Tensors], Call | None]
    #: Whether its calls run in Triton's interpreter.
    interpreted: bool = True
    #: Whether they run with default configs there; else with those of the shipped tables.
    defaults: bool = False
    #: Whether it has products of bfloat16, which the interpreter has wrong.
    multiplies: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A function of `ops`."""

    #: A random call at the edges of dtypes and shapes.
    edges: Callable[[Sampler], Sample]
    #: By the name of the operator `torch.ops.tuner.<name>`: its arguments, where it has a gradient
    #: floating-point tensors may need one.
    arguments: Mapping[str, Callable[[], Sequence[Any]]]
    #: By the name of the kernel.
    kernels: Mapping[str, KernelCase]
    #: By a name of their own, for each way to call the function.
    counterparts: Mapping[str, Counterpart] = field(default_factory=dict)
    #: By a name of their own: calls with x[rows, 32], or with what is made of x.
    graphs: Mapping[str, Callable[[torch.Tensor], Any]] = field(default_factory=dict)
    #: Has torch's dtypes under autocast; by default the first counterpart.
    autocast: Counterpart | None = None
    #: torch's function with this signature; the first parameters, where that has none in Python.
    signature: Callable[..., Any] | str | None = None


def draw(*sizes: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(sizes, dtype=dtype).requires_grad_(grad)


def zeros(*sizes: int, like: torch.Tensor | None = None) -> torch.Tensor:
    """Places 0, on the device of a tensor."""
    return torch.zeros(sizes, dtype=torch.int64, device=None if like is None else like.device)
