"""Linear layers with an activation on a CPU, in one kernel and in two."""

from __future__ import annotations

import pytest
from spaces_cpu import PLAIN, compiled_outcomes, wrong_forms
from spaces_devices import CPU, CPU_AVX2

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

NAME = "cpu_linear_activation"
TEMPLATE = {**PLAIN, "form": "template", "divide": "auto", "blocking": "auto"}
GIVEN = {"blocking": "given", "M_BLOCKS": 2, "N_BLOCKS": 2, "K_BLOCKS": 8}


def workload(function: str, dtype: str = "float32") -> Workload:
    return Workload.of(M=37, N=71, K=130, function=function, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_form_is_right(dtype):
    for function in ("relu", "relu1", "gelu", "silu"):
        assert wrong_forms(NAME, workload(function, dtype)) == []


def test_the_template_contains_the_activation():
    wide = workload("gelu").with_dims(N=192)
    jobs = [(NAME, wide, {**TEMPLATE, **GIVEN, "threads": 2, "divide": "M"})]
    jobs += [(NAME, workload("silu", "bfloat16"), TEMPLATE)]
    for outcome in compiled_outcomes(jobs):
        assert outcome["passed"]
        assert "micro_gemm" in outcome["code"]
        assert "extern_kernels." not in outcome["code"]


def test_onednn_takes_bfloat16_with_avx512_alone():
    kernel = load(NAME)
    for dtype, device, offered in (
        ("bfloat16", CPU, True),
        ("bfloat16", CPU_AVX2, False),
        ("float32", CPU_AVX2, True),
    ):
        bound = kernel.space(workload("gelu", dtype)).bind(workload("gelu", dtype), device)
        forms = {config["form"] for config in bound.enumerate()}
        assert ("aten_onednn" in forms) == offered


def test_other_functions_are_refused():
    with pytest.raises(WorkloadError, match="function is 'tanh'"):
        load(NAME).check_workload(workload("tanh"))
