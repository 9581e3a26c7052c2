"""The edges of a kernel's inputs, on its check size: element by element against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workers.measure.gate.buffers import POISONS, GuardedTensor
from workers.measure.gate.comparison import invalid_outputs
from workers.measure.task_tensors import TaskTensors

if TYPE_CHECKING:
    import torch


def check_edges(
    task: TaskTensors,
    run: Callable[[], Mapping[str, torch.Tensor] | None],
    outputs: Mapping[str, GuardedTensor],
    buffers: Sequence[GuardedTensor],
    slack: float,
) -> str:
    """Why a variant is wrong at an edge of the inputs; empty where it is right, and without edges.

    Infinities and NaN must be where the reference, rounded to the output's dtype, has them. Other
    elements keep to the elementwise bound of the tolerance.
    """
    for inputs, expected in task.edges():
        for name, tensor in inputs.items():
            task.inputs[name].copy_(tensor)
        for buffer in buffers:
            buffer.poison(POISONS[1])
        returned: Any = run()
        results = {n: b.tensor for n, b in outputs.items()} if outputs else returned
        if problem := invalid_outputs(task, results):
            return problem
        for name, wanted in expected.items():
            bound = slack * task.tolerance.elementwise
            if problem := _compare(name, results[name], wanted, bound, inputs):
                return problem
    return ""


def _compare(
    name: str,
    actual: torch.Tensor,
    wanted: torch.Tensor,
    bound: float,
    inputs: Mapping[str, torch.Tensor],
) -> str:
    import torch

    found, rounded = actual.double(), wanted.to(actual.dtype).double()
    differs = (found - rounded).abs() > bound * (1 + rounded.abs())
    special = ~(found.isfinite() & rounded.isfinite())
    equal = (found == rounded) | (found.isnan() & rounded.isnan())
    wrong = torch.where(special, ~equal, differs)
    if not bool(wrong.any()):
        return ""
    at = int(wrong.reshape(-1).int().argmax())
    place = torch.unravel_index(torch.tensor(at), wrong.shape)
    shown = ", ".join(f"{int(i)}" for i in place)
    given = next((t for t in inputs.values() if t.shape[:-1] == wrong.shape[:-1]), None)
    row = (
        given[tuple(int(i) for i in place[:-1])].reshape(-1)[:3].tolist()
        if given is not None
        else []
    )
    values = f", for inputs {', '.join(f'{value:.4g}' for value in row)}..." if row else ""
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements of `{name}` are wrong at the edges of the "
        f"inputs, the first at [{shown}]: {found.reshape(-1)[at].item():.4g}, not "
        f"{rounded.reshape(-1)[at].item():.4g}{values}"
    )
