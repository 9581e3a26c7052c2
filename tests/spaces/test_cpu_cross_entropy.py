"""The cross-entropy of rows on a CPU."""

from __future__ import annotations

import pytest
from spaces_cpu import PLAIN, wrong_compiled, wrong_forms

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family


def workload(dtype: str, cols: int = 1001) -> Workload:
    return Workload.of(rows=5, cols=cols, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_form_is_right(dtype):
    for cols in (3, 1001, 1024):
        assert wrong_forms("cpu_cross_entropy", workload(dtype, cols)) == []


def test_compiled_forms_are_right():
    chosen = [
        ("float32", {"form": "log_sum_exp", "fold": 4}),
        ("bfloat16", {"form": "parts", "part": 256}),
    ]
    jobs = [("cpu_cross_entropy", workload(dtype), {**PLAIN, **config}) for dtype, config in chosen]
    assert wrong_compiled(jobs) == []


def test_logits_of_int8_are_refused():
    with pytest.raises(WorkloadError, match="dtype 'int8' is not supported"):
        load("cpu_cross_entropy").check_workload(workload("int8"))
