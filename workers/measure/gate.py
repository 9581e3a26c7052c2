"""The correctness gate: no variant is timed before it has passed, on every seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from search_spaces.kernel import Tolerance
from search_spaces.records import Status
from workers.measure.buffers import POISONS, GuardedTensor
from workers.measure.task import Expected, Task
from workers.records import Failure

if TYPE_CHECKING:
    import torch

    Run: TypeAlias = Callable[[], Mapping[str, torch.Tensor] | None]


def check_variant(
    task: Task,
    run: Run,
    *,
    outputs: Mapping[str, GuardedTensor] | None = None,
    scratch: Sequence[GuardedTensor] = (),
) -> float | Failure:
    """Run a variant on every seed of the task; its worst relative error, or why it is refused.

    run: does the work on `task.inputs`, and returns the outputs unless it writes to `outputs`.
    Buffers are poisoned before and their guard bands inspected after each run. Leaves the inputs
    of the first seed in `task.inputs`, whatever the variant did to them.
    """
    worst = 0.0
    try:
        for position in reversed(range(len(task.seeds))):
            task.load(position)
            error = _check_seed(task, position, run, outputs or {}, scratch)
            if isinstance(error, str):
                where = f" (seed {task.seeds[position]})" if len(task.seeds) > 1 else ""
                return refusal(error + where)
            worst = max(worst, error)
    finally:
        task.load(0)
    return worst


def compare(
    name: str, actual: torch.Tensor, expected: Expected, tolerance: Tolerance
) -> float | str:
    """||actual - expected|| / ||expected|| in float64, or why the output does not match.

    Infinities match only themselves, NaN matches nothing. Shapes are equal.
    """
    import torch

    difference = actual.to(torch.float64, copy=True).sub_(expected.values)
    distance = float(torch.linalg.vector_norm(difference))
    if not math.isfinite(distance):
        same_infinity = actual.isinf() & (actual == expected.values)
        difference.masked_fill_(same_infinity, 0.0)
        strange = int((~difference.isfinite()).sum())
        if strange:
            kinds = f"{int(actual.isnan().sum())} NaN, {int(actual.isinf().sum())} infinite"
            return f"{strange} of {actual.numel()} elements of `{name}` cannot match: {kinds}"
        distance = float(torch.linalg.vector_norm(difference))
    error = _relative(distance, expected)
    if not error <= tolerance.relative:
        return f"relative error {error:.2g} of `{name}` over {tolerance.relative:.2g}"
    outside = int((difference.abs_() > expected.bound).sum())
    if outside:
        return (
            f"{outside} of {actual.numel()} elements of `{name}` are off by more than "
            f"{tolerance.elementwise:.2g} of 1 + |reference|"
        )
    return error


def compare_all(task: Task, position: int, outputs: Mapping[str, torch.Tensor]) -> float | str:
    """`compare` over all outputs, and that they are there in the promised shape and dtype."""
    worst = 0.0
    for name, spec in task.specs.items():
        if name not in outputs:
            return f"output `{name}` is missing"
        actual = outputs[name]
        dtype = str(actual.dtype).removeprefix("torch.")
        if tuple(actual.shape) != tuple(spec.shape) or dtype != spec.dtype:
            return (
                f"output `{name}` is {dtype} {tuple(actual.shape)}, "
                f"not {spec.dtype} {tuple(spec.shape)}"
            )
        error = compare(name, actual, task.expected[position][name], task.tolerance)
        if isinstance(error, str):
            return error
        worst = max(worst, error)
    return worst


def refusal(reason: str) -> Failure:
    """The value of a variant that is wrong."""
    return Failure(Status.CORRECTNESS, reason)


def _check_seed(
    task: Task,
    position: int,
    run: Run,
    outputs: Mapping[str, GuardedTensor],
    scratch: Sequence[GuardedTensor],
) -> float | str:
    poison = POISONS[position % len(POISONS)]
    for buffer in (*outputs.values(), *scratch):
        buffer.poison(poison)
    returned = run()
    for buffer in (*outputs.values(), *scratch):
        if band := buffer.broken_band():
            task.suspect = True
            return f"wrote outside `{buffer.name}`: guard band {band} it changed"
    if name := task.modified_input(position):
        return f"input `{name}` was modified"
    results = returned or {name: buffer.tensor for name, buffer in outputs.items()}
    error = compare_all(task, position, results)
    if isinstance(error, str):
        return _unwritten(task, position, outputs, poison) or error
    return error


def _unwritten(task: Task, position: int, outputs: Mapping[str, GuardedTensor], poison: int) -> str:
    """Explain a mismatch by what was never written, if anything."""
    for name, buffer in outputs.items():
        # An element whose right value looks like the poison may have been written.
        stale = buffer.unwritten(poison)
        expected = task.expected[position][name].values
        stale &= buffer.tensor.to(expected.dtype) != expected
        if count := int(stale.sum()):
            return (
                f"output `{name}` not written: {count} of {stale.numel()} elements still hold "
                "the poison"
            )
    return ""


def _relative(distance: float, expected: Expected) -> float:
    if expected.norm == 0:
        return 0.0 if distance == 0 else math.inf
    if math.isfinite(expected.norm):
        return distance / expected.norm
    import torch

    finite = expected.values.masked_fill(~expected.values.isfinite(), 0.0)
    norm = float(torch.linalg.vector_norm(finite))
    return distance / norm if norm else (0.0 if distance == 0 else math.inf)
