"""Comparison of outputs with references, in few passes over memory and one transfer to the host.

Notation: a is an output, e its reference, both of the same shape; ||.|| is the Euclidean norm over
all elements. The relative error is ||a - e|| / ||e||, and |a - e| <= elementwise (1 + |e|) must
hold for every element. Integers of 32 and 64 bits must be equal, unless elementwise >= 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from search_spaces.kernel import Tolerance
from workers.measure.gate.buffers import holding
from workers.measure.task_tensors import Expected, TaskTensors

if TYPE_CHECKING:
    import torch

    Results: TypeAlias = Mapping[str, torch.Tensor]

#: Dtypes that torch's arithmetic promotes without a copy in the reference's dtype.
_PROMOTED = ("float64", "float32", "float16", "bfloat16")


class OutputComparison:
    """Enqueues the comparison of one output with its reference; `evaluate` decides on it."""

    def __init__(
        self,
        name: str,
        actual: torch.Tensor,
        expected: Expected,
        tolerance: Tolerance,
        slack: float = 1.0,
    ) -> None:
        """slack: the tolerance and the bound of each element are multiplied by it."""
        import torch

        self._name, self._actual = name, actual
        self._expected, self._slack = expected, slack
        self._tolerance = Tolerance(slack * tolerance.relative, slack * tolerance.elementwise)
        promoted = actual
        if str(actual.dtype).removeprefix("torch.") not in _PROMOTED:
            promoted = actual.to(expected.values.dtype)
        self._difference = torch.sub(promoted, expected.values)
        if expected.integers is not None:
            # float64 may round different integers to one; then they count as one step apart.
            differ = (actual.view(torch.int64) != expected.integers).to(torch.float64)
            self._difference = torch.where(self._difference == 0, differ, self._difference)
            self._difference.mul_(differ)
        largest = (
            torch.linalg.vector_norm(self._difference, math.inf)
            if actual.numel()
            else torch.zeros((), device=actual.device)
        )
        #: On the device: ||actual - expected|| and the largest |actual - expected|. Both are NaN or
        #: infinite where an element cannot be subtracted.
        self.scalars = [torch.linalg.vector_norm(self._difference), largest]

    def evaluate(self, distance: float, largest: float) -> float | str:
        """The relative error, or why the output does not match, from the fetched scalars.

        Infinities match only themselves, NaN matches nothing.
        """
        if not (math.isfinite(distance) and math.isfinite(largest)):
            return self._evaluate_nonfinite()
        return self._evaluate(self._difference, distance, largest)

    def _evaluate_nonfinite(self) -> float | str:
        """The same where an element is infinite or NaN, or overflowed in the reference's dtype."""
        import torch

        actual, values = self._actual, self._expected.values.double()
        # Uses the values read at the time: work on another stream may have changed the output
        # since.
        difference = self._difference.to(torch.float64, copy=True)
        same_infinity = actual.isinf() & (actual == values)
        difference.masked_fill_(same_infinity, 0.0)
        nonfinite = int((~difference.isfinite()).sum())
        if nonfinite:
            kinds = f"{int(actual.isnan().sum())} NaN, {int(actual.isinf().sum())} infinite"
            return (
                f"{nonfinite} of {actual.numel()} elements of `{self._name}` cannot match: {kinds}"
            )
        distance = float(torch.linalg.vector_norm(difference))
        return self._evaluate(difference, distance, float(difference.abs().max()))

    def _evaluate(self, difference: torch.Tensor, distance: float, largest: float) -> float | str:
        tolerance = self._tolerance
        error = _relative(distance, self._expected)
        if not error <= tolerance.relative:
            worst = self._worst(difference, difference.abs())
            allowed = f"over {tolerance.relative:.2g}, {worst}"
            return f"relative error {error:.2g} of `{self._name}` {allowed}"
        # The bound of an element is at least `elementwise`, so most outputs need no second pass.
        outside = 0
        if largest > tolerance.elementwise:
            bound = self._expected.bound if self._slack == 1 else self._slack * self._expected.bound
            outside = int((difference.abs() > bound).sum())
        if outside:
            worst = self._worst(difference, difference.abs() - bound)
            return (
                f"{outside} of {difference.numel()} elements of `{self._name}` are off by more "
                f"than {tolerance.elementwise:.2g} of 1 + |reference|, {worst}"
            )
        return error

    def _worst(self, difference: torch.Tensor, excess: torch.Tensor) -> str:
        """The element with the largest excess: its index, its value and the reference."""
        import torch

        at = int(excess.argmax())
        place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(at), excess.shape))
        if self._expected.integers is not None:
            found = self._actual.reshape(-1)[at]
            wanted = self._expected.integers.reshape(-1)[at].view(found.dtype)
            return f"the worst at [{place}]: {found.item()}, not {wanted.item()}"
        expected = float(self._expected.values.reshape(-1)[at])
        actual = expected + float(difference.reshape(-1)[at])
        return f"the worst at [{place}]: {actual:.4g}, not {expected:.4g}"


class Comparisons:
    """Enqueues the comparison of all outputs of a task with the references of one seed."""

    def __init__(self, task: TaskTensors, position: int, results: Any, slack: float = 1.0) -> None:
        """slack: the task's tolerance is multiplied by it."""
        #: Why the results are not valid outputs; empty otherwise.
        self.problem = invalid_outputs(task, results)
        self._parts: list[OutputComparison] = []
        if not self.problem:
            self._parts = [
                OutputComparison(
                    name, results[name], task.expected[position][name], task.tolerance, slack
                )
                for name in task.specs
            ]

    @property
    def scalars(self) -> list[torch.Tensor]:
        """Scalars on the device; fetch their values for `evaluate`."""
        return [scalar for part in self._parts for scalar in part.scalars]

    def evaluate(self, values: Sequence[float]) -> float | str:
        """The worst relative error, or the first problem."""
        worst: float = 0.0
        if self.problem:
            return self.problem
        for index, part in enumerate(self._parts):
            error = part.evaluate(values[2 * index], values[2 * index + 1])
            if isinstance(error, str):
                return error
            worst = max(worst, error)
        return worst


def invalid_outputs(task: TaskTensors, results: Any) -> str:
    """Why these are not outputs of a task, or empty.

    Outputs are plain tensors of the declared shape and dtype outside the harness's memory.
    """
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


def unwritten(task: TaskTensors, position: int, results: Results, poison: int) -> str:
    """How much of an output still holds the poison; empty when all of it was written."""
    for name in task.specs:
        stale = holding(results[name], poison)
        expected = task.expected[position][name].values
        # An element whose reference equals the poison may have been written.
        integers = task.expected[position][name].integers
        if integers is not None:
            stale &= results[name].view(integers.dtype) != integers
        else:
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
    """The relative error of one output of the right shape, or why it does not match."""
    comparison = OutputComparison(name, actual, expected, tolerance)
    distance, largest = fetch(comparison.scalars)
    return comparison.evaluate(distance, largest)


def compare_all(task: TaskTensors, position: int, results: Any) -> float | str:
    """The largest relative error over all outputs, or the first problem."""
    comparisons = Comparisons(task, position, results)
    return comparisons.evaluate(fetch(comparisons.scalars))


def fetch(scalars: Sequence[torch.Tensor]) -> list[float]:
    """The values of scalars on a device, in one transfer."""
    import torch

    if not scalars:
        return []
    values: list[float] = torch.stack([scalar.to(torch.float64) for scalar in scalars]).tolist()
    return values


def _relative(distance: float, expected: Expected) -> float:
    if expected.norm == 0:
        return 0.0 if distance == 0 else math.inf
    if math.isfinite(expected.norm):
        return distance / expected.norm
    import torch

    values = expected.values.double()
    norm = float(torch.linalg.vector_norm(values.masked_fill(~values.isfinite(), 0.0)))
    return distance / norm if norm else (0.0 if distance == 0 else math.inf)
