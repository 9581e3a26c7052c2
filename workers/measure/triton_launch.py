"""The launches of a Triton variant, bound to the tensors of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search_spaces.records import Config
from workers.measure.gate.buffers import GuardedTensor
from workers.measure.task_tensors import TaskTensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class WritingVariant:
    """A variant that reads `task.inputs` and writes `outputs`."""

    #: Makes all launches in order.
    run: Callable[[], None]
    outputs: dict[str, GuardedTensor]
    scratch: tuple[GuardedTensor, ...]


def bind(task: TaskTensors, config: Config) -> WritingVariant:
    """The variant of a config; raises what the kernel's own functions raise."""
    outputs = task.outputs()
    scratch = task.scratch(task.kernel.scratch(task.workload, config))
    tensors: dict[str, torch.Tensor] = dict(task.inputs)
    for name, buffer in (*outputs.items(), *scratch.items()):
        tensors[name] = buffer.tensor
    return WritingVariant(_runner(task, config, tensors), outputs, tuple(scratch.values()))


def bind_copies(
    task: TaskTensors, config: Config, count: int
) -> tuple[Callable[[], dict[str, torch.Tensor]], ...]:
    """The variant on each of `count` copies of inputs and outputs, which all variants share.

    Each function returns the outputs that it writes.
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


def _runner(
    task: TaskTensors, config: Config, tensors: dict[str, torch.Tensor]
) -> Callable[[], None]:
    launches = [
        (launch.fn[launch.grid], launch.args, dict(launch.kwargs))
        for launch in task.kernel.launches(task.workload, config, tensors)
    ]

    def run() -> None:
        for start, args, kwargs in launches:
            start(*args, **kwargs)

    return run


def provide_memory(device: str) -> None:
    """Let Triton allocate global memory for launches of this thread from torch's allocator.

    Kernels that create tensor descriptors on the device need such memory. A library that later sets
    its own allocator on import replaces this one. device: torch's name of the device.
    """
    import torch
    import triton

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device=device)

    triton.set_allocator(allocate)
