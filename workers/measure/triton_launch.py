"""Triton variants as functions to call: their launches bound to shared, guarded tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search_spaces.records import Config
from workers.measure.gate.buffers import GuardedTensor
from workers.measure.task_data import Task

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class WritingVariant:
    """`run` launches everything in order, reading `task.inputs` and writing `outputs`."""

    run: Callable[[], None]
    outputs: dict[str, GuardedTensor]
    scratch: tuple[GuardedTensor, ...]


def bind(task: Task, config: Config) -> WritingVariant:
    """The variant of a task; raises what the kernel's own functions raise."""
    outputs = task.outputs()
    scratch = task.scratch(task.kernel.scratch(task.workload, config))
    tensors: dict[str, torch.Tensor] = dict(task.inputs)
    for name, buffer in (*outputs.items(), *scratch.items()):
        tensors[name] = buffer.tensor
    return WritingVariant(_runner(task, config, tensors), outputs, tuple(scratch.values()))


def bind_copies(
    task: Task, config: Config, count: int
) -> tuple[Callable[[], dict[str, torch.Tensor]], ...]:
    """The variant on each of `count` copies of inputs and outputs, which all variants share.

    Each returns the outputs it writes.
    """
    scratch = task.scratch(task.kernel.scratch(task.workload, config))
    shared = {name: buffer.tensor for name, buffer in scratch.items()}
    return tuple(
        _returning(_runner(task, config, {**inputs, **outputs, **shared}), outputs)
        for inputs, outputs in zip(task.copies(count), task.output_copies(count), strict=True)
    )


def _returning(
    run: Callable[[], None], outputs: dict[str, torch.Tensor]
) -> Callable[[], dict[str, torch.Tensor]]:
    def returning() -> dict[str, torch.Tensor]:
        run()
        return outputs

    return returning


def _runner(task: Task, config: Config, tensors: dict[str, torch.Tensor]) -> Callable[[], None]:
    launches = [
        (launch.fn[launch.grid], launch.args, dict(launch.kwargs))
        for launch in task.kernel.launches(task.workload, config, tensors)
    ]

    def run() -> None:
        for start, args, kwargs in launches:
            start(*args, **kwargs)

    return run


def provide_memory(device: str) -> None:
    """Give launches of this thread the global memory they ask for, from torch's own allocator.

    Kernels that make tensor descriptors on the device ask for it. A library that sets an allocator
    of its own when it is imported, afterwards, has its own. device: torch's name of it.
    """
    import torch
    import triton

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device=device)

    triton.set_allocator(allocate)
