"""Outputs of wide integers are places, counts and keys: they are equal or wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.kernel import EXACT, Tolerance
from search_spaces.records import TensorSpec, Workload
from workers.measure.gate.comparison import compare_all
from workers.measure.task_tensors import TaskTensors

LOOSE = Tolerance(1e-2, 1e-2)
LIMITS = {"int32": 31, "int64": 63, "uint64": 64}


class Copied:
    """A kernel whose output is its input, as far as the gate's comparison needs one."""

    name = "copied"

    def __init__(self, values: torch.Tensor, tolerance: Tolerance) -> None:
        self._values, self._tolerance = values, tolerance

    def make_inputs(self, workload: Workload, seed: int, device: str) -> dict[str, torch.Tensor]:
        return {"x": self._values}

    def outputs(self, workload: Workload) -> dict[str, TensorSpec]:
        dtype = str(self._values.dtype).removeprefix("torch.")
        return {"out": TensorSpec(tuple(self._values.shape), dtype)}

    def reference(self, workload: Workload, inputs: Any) -> dict[str, torch.Tensor]:
        return {"out": inputs["x"]}

    def tolerance(self, workload: Workload) -> Tolerance:
        return self._tolerance


def compared(values: torch.Tensor, actual: torch.Tensor, tolerance: Tolerance) -> float | str:
    task = TaskTensors(Copied(values, tolerance), Workload.of(n=1), (1,), "cpu")  # type: ignore[arg-type]
    return compare_all(task, 0, {"out": actual})


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("tolerance", [Tolerance(0.0, 0.0), EXACT, LOOSE])
@given(data=st.data())
def test_no_other_integer_is_equal(dtype, tolerance, data):
    low = 0 if dtype == "uint64" else -(2 ** LIMITS[dtype])
    numbers = st.integers(low, 2 ** LIMITS[dtype] - 1)
    values = data.draw(st.lists(numbers, min_size=1, max_size=8))
    other = list(values)
    at = data.draw(st.integers(0, len(values) - 1))
    near = st.sampled_from([values[at] - 1, values[at] + 1]).filter(
        lambda value: low <= value < 2 ** LIMITS[dtype]
    )
    other[at] = data.draw(near | numbers)
    reference = torch.tensor(values, dtype=getattr(torch, dtype))
    actual = torch.tensor(other, dtype=getattr(torch, dtype))
    found = compared(reference, actual, tolerance)
    assert (found == 0.0) == (other == values)


def test_the_message_has_all_digits():
    value = 2**60 + 1
    found = compared(torch.tensor([value]), torch.tensor([value - 1]), LOOSE)
    assert found.endswith(f"the worst at [0]: {value - 1}, not {value}")


def test_smaller_integers_are_rounded_values_and_keep_their_tolerance():
    codes = torch.tensor([100, 50], dtype=torch.int8)
    assert compared(codes, codes - torch.tensor([1, 0], dtype=torch.int8), LOOSE) > 0


def test_a_tolerance_of_whole_steps_holds_for_wide_integers_too():
    values = torch.tensor([1000, 2000])
    assert compared(values, values + 1, Tolerance(1.0, 1.0)) > 0
