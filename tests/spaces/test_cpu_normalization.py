"""LayerNorm and RMSNorm on a CPU."""

from __future__ import annotations

import pytest
from spaces_cpu import PLAIN, wrong_compiled, wrong_forms

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family


def workload(dtype: str, cols: int = 509) -> Workload:
    return Workload.of(rows=5, cols=cols, dtype=dtype)


@pytest.mark.parametrize("name", ["cpu_layer_norm", "cpu_rms_norm"])
def test_every_form_is_right(name):
    for cols in (3, 509):
        for dtype in ("float32", "bfloat16"):
            assert wrong_forms(name, workload(dtype, cols)) == []


def test_compiled_forms_are_right():
    jobs = [
        ("cpu_layer_norm", workload("float32"), {**PLAIN, "form": "two_pass", "fold": 4}),
        ("cpu_layer_norm", workload("bfloat16"), {**PLAIN, "form": "one_pass", "fold": 2}),
        ("cpu_rms_norm", workload("bfloat16"), {**PLAIN, "form": "squares", "fold": 4}),
    ]
    assert wrong_compiled(jobs) == []


def test_other_dims_are_refused():
    with pytest.raises(WorkloadError, match="unknown dim eps"):
        load("cpu_rms_norm").check_workload(workload("float32").with_dims(eps=1e-6))
