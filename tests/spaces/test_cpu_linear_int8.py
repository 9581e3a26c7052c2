"""Linear layers of int8 on a CPU."""

from __future__ import annotations

import pytest
from spaces_cpu import PLAIN, wrong_compiled, wrong_forms

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family


def workload(dtype: str = "float32", m: int = 37, k: int = 131) -> Workload:
    return Workload.of(M=m, N=71, K=k, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_form_is_right(dtype):
    for m, k in ((37, 131), (3, 1301)):
        assert wrong_forms("cpu_linear_int8", workload(dtype, m, k)) == []


def test_compiled_forms_are_right():
    chosen = [
        (workload(), {"form": "library"}),
        (workload("bfloat16"), {"form": "bfloat16"}),
        (workload("bfloat16", m=3), {"form": "summed"}),
    ]
    jobs = [("cpu_linear_int8", each, {**PLAIN, **config}) for each, config in chosen]
    assert wrong_compiled(jobs) == []


def test_sums_beyond_int32_are_refused():
    with pytest.raises(WorkloadError, match="more than the 131072"):
        load("cpu_linear_int8").check_workload(workload(k=2**18))
