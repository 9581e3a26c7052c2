"""The transpose of a matrix on a CPU."""

from __future__ import annotations

import pytest
from spaces_cpu import PLAIN, wrong_compiled, wrong_forms

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family


def workload(dtype: str) -> Workload:
    return Workload.of(rows=67, cols=41, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_form_is_right(dtype):
    assert wrong_forms("cpu_transpose", workload(dtype)) == []


def test_compiled_forms_are_right():
    chosen = [
        ("float32", {"form": "library", "tile_always": True}),
        ("int8", {"form": "library", "tile_always": False}),
        ("bfloat16", {"form": "strips", "strips": 4, "tile_always": False}),
    ]
    jobs = [("cpu_transpose", workload(dtype), {**PLAIN, **config}) for dtype, config in chosen]
    assert wrong_compiled(jobs) == []


def test_other_dtypes_are_refused():
    with pytest.raises(WorkloadError, match="dtype 'float64' is not supported"):
        load("cpu_transpose").check_workload(workload("float64"))
