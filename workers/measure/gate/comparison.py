"""Outputs against references: few passes over the device's memory, one transfer of the findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from search_spaces.kernel import Tolerance
from workers.measure.gate.buffers import holding
from workers.measure.task_data import Expected, Task

if TYPE_CHECKING:
    import torch

    Results: TypeAlias = Mapping[str, torch.Tensor]

#: dtypes that arithmetic promotes by itself, without a copy in the reference's dtype
_PROMOTED = ("float64", "float32", "float16", "bfloat16")


class Comparison:
    """Enqueues the comparison of one output with its reference; judges once `found` was fetched.

    found: two scalars on the device, ||actual - expected|| and the largest |actual - expected|,
    both NaN or infinite when an element cannot be subtracted. Shapes are equal.
    """

    def __init__(
        self, name: str, actual: torch.Tensor, expected: Expected, tolerance: Tolerance
    ) -> None:
        import torch

        self._name, self._actual = name, actual
        self._expected, self._tolerance = expected, tolerance
        given = actual
        if str(actual.dtype).removeprefix("torch.") not in _PROMOTED:
            given = actual.to(expected.values.dtype)
        self._difference = torch.sub(given, expected.values)
        largest = (
            torch.linalg.vector_norm(self._difference, math.inf)
            if actual.numel()
            else torch.zeros((), device=actual.device)
        )
        self.found = [torch.linalg.vector_norm(self._difference), largest]

    def judge(self, distance: float, largest: float) -> float | str:
        """||actual - expected|| / ||expected||, or why the output does not match.

        Infinities match only themselves, NaN matches nothing.
        """
        if not (math.isfinite(distance) and math.isfinite(largest)):
            return self._judge_strange()
        return self._judge(self._difference, distance, largest)

    def _judge_strange(self) -> float | str:
        """The same where something is infinite or no number, or overflowed in the reference's
        dtype."""
        import torch

        actual, values = self._actual, self._expected.values.double()
        # What was read then counts: the output may have been written since, on another stream.
        difference = self._difference.to(torch.float64, copy=True)
        same_infinity = actual.isinf() & (actual == values)
        difference.masked_fill_(same_infinity, 0.0)
        strange = int((~difference.isfinite()).sum())
        if strange:
            kinds = f"{int(actual.isnan().sum())} NaN, {int(actual.isinf().sum())} infinite"
            return f"{strange} of {actual.numel()} elements of `{self._name}` cannot match: {kinds}"
        distance = float(torch.linalg.vector_norm(difference))
        return self._judge(difference, distance, float(difference.abs().max()))

    def _judge(self, difference: torch.Tensor, distance: float, largest: float) -> float | str:
        tolerance = self._tolerance
        error = _relative(distance, self._expected)
        if not error <= tolerance.relative:
            worst = self._worst(difference, difference.abs())
            allowed = f"over {tolerance.relative:.2g}, {worst}"
            return f"relative error {error:.2g} of `{self._name}` {allowed}"
        # The bound of an element is never below `elementwise`: most outputs need no second look.
        outside = 0
        if largest > tolerance.elementwise:
            outside = int((difference.abs() > self._expected.bound).sum())
        if outside:
            worst = self._worst(difference, difference.abs() - self._expected.bound)
            return (
                f"{outside} of {difference.numel()} elements of `{self._name}` are off by more "
                f"than {tolerance.elementwise:.2g} of 1 + |reference|, {worst}"
            )
        return error

    def _worst(self, difference: torch.Tensor, badness: torch.Tensor) -> str:
        """The element with the largest badness: where it is, what was read and what is right."""
        import torch

        at = int(badness.argmax())
        place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(at), badness.shape))
        wanted = float(self._expected.values.reshape(-1)[at])
        found = wanted + float(difference.reshape(-1)[at])
        return f"the worst at [{place}]: {found:.4g}, not {wanted:.4g}"


class Comparisons:
    """All outputs of a task against one seed's references, enqueued when made.

    problem: what is wrong before any number is looked at; empty otherwise.
    """

    def __init__(self, task: Task, position: int, results: Any) -> None:
        self.problem = misfit(task, results)
        self._parts: list[Comparison] = []
        if not self.problem:
            self._parts = [
                Comparison(name, results[name], task.expected[position][name], task.tolerance)
                for name in task.specs
            ]

    @property
    def found(self) -> list[torch.Tensor]:
        return [scalar for part in self._parts for scalar in part.found]

    def judge(self, found: Sequence[float]) -> float | str:
        """The worst relative error, or the first problem."""
        worst: float = 0.0
        if self.problem:
            return self.problem
        for index, part in enumerate(self._parts):
            error = part.judge(found[2 * index], found[2 * index + 1])
            if isinstance(error, str):
                return error
            worst = max(worst, error)
        return worst


def misfit(task: Task, results: Any) -> str:
    """Why these cannot be the outputs of a task: not plain tensors of the promised shape and
    dtype, or memory of the harness itself. Empty when they can."""
    import torch

    if type(results) is not dict:
        return f"the outputs are a {type(results).__name__}, not a dict of tensors"
    for name, spec in task.specs.items():
        if name not in results:
            return f"output `{name}` is missing"
        actual = results[name]
        if type(actual) is not torch.Tensor:
            return f"output `{name}` is a {type(actual).__name__}, not a plain torch.Tensor"
        dtype = str(actual.dtype).removeprefix("torch.")
        if tuple(actual.shape) != tuple(spec.shape) or dtype != spec.dtype:
            return (
                f"output `{name}` is {dtype} {tuple(actual.shape)}, "
                f"not {spec.dtype} {tuple(spec.shape)}"
            )
        if actual.layout is not torch.strided or actual.device.type != task.device_type:
            return f"output `{name}` is not in the memory of the device"
        if task.owns(actual):
            return f"output `{name}` lies in memory of the harness"
    return ""


def unwritten(task: Task, position: int, results: Results, poison: int) -> str:
    """Explain a mismatch by what was never written over the poison; empty when all was."""
    for name in task.specs:
        stale = holding(results[name], poison)
        expected = task.expected[position][name].values
        # An element whose right value looks like the poison may have been written.
        stale &= results[name].to(expected.dtype) != expected
        if count := int(stale.sum()):
            return (
                f"output `{name}` not written: {count} of {stale.numel()} elements still hold "
                "the poison"
            )
    return ""


def compare(
    name: str, actual: torch.Tensor, expected: Expected, tolerance: Tolerance
) -> float | str:
    """||actual - expected|| / ||expected||, or why the output does not match. Shapes are equal."""
    comparison = Comparison(name, actual, expected, tolerance)
    distance, largest = fetch(comparison.found)
    return comparison.judge(distance, largest)


def compare_all(task: Task, position: int, results: Any) -> float | str:
    """`compare` over all outputs, and that they are there in the promised shape and dtype."""
    comparisons = Comparisons(task, position, results)
    return comparisons.judge(fetch(comparisons.found))


def fetch(scalars: Sequence[torch.Tensor]) -> list[float]:
    """Scalars on a device as numbers, in one transfer."""
    import torch

    if not scalars:
        return []
    found: list[float] = torch.stack([scalar.to(torch.float64) for scalar in scalars]).tolist()
    return found


def _relative(distance: float, expected: Expected) -> float:
    if expected.norm == 0:
        return 0.0 if distance == 0 else math.inf
    if math.isfinite(expected.norm):
        return distance / expected.norm
    import torch

    values = expected.values.double()
    norm = float(torch.linalg.vector_norm(values.masked_fill(~values.isfinite(), 0.0)))
    return distance / norm if norm else (0.0 if distance == 0 else math.inf)
