"""Matrix products on a CPU: libraries, Inductor's template, and precision."""

from __future__ import annotations

import pytest
import torch
from spaces_cpu import PLAIN, compiled_outcomes, wrong_forms
from spaces_devices import CPU

from search_spaces.errors import WorkloadError
from search_spaces.records import Device, Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TEMPLATE = {**PLAIN, "form": "template", "divide": "auto", "M_BLOCKS": 2, "K_BLOCKS": 8}


def workload(dtype: str = "float32", m: int = 37, n: int = 71, k: int = 130) -> Workload:
    return Workload.of(M=m, N=n, K=k, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_form_is_right(dtype):
    for m, k in ((37, 131), (2, 1301)):
        assert wrong_forms("cpu_matmul", workload(dtype, m=m, k=k)) == []


def test_the_template_computes_the_product_with_any_blocks():
    chosen = [
        (workload(n=192), {**TEMPLATE, "threads": 2, "divide": "N"}),
        (workload("bfloat16", n=192), {**TEMPLATE, "threads": 2, "divide": "M"}),
        (workload("bfloat16", k=131), TEMPLATE),
        (workload(m=1), {**PLAIN, "form": "template"}),
    ]
    outcomes = compiled_outcomes([("cpu_matmul", *job) for job in chosen])
    assert [got["passed"] for got in outcomes] == [True] * 4
    assert all("extern_kernels." not in got["code"] for got in outcomes)
    # A product of one row is a plain loop.
    assert ["micro_gemm" in got["code"] for got in outcomes] == [True] * 3 + [False]


def test_a_tolerance_admits_operands_of_bfloat16():
    kernel, strict = load("cpu_matmul"), workload()
    loose = strict.with_dims(tolerance=1e-2)
    assert "precision" not in {item.name for item in kernel.space(strict).parameters}
    config = {**PLAIN, "form": "aten", "precision": "bf16"}
    assert kernel.space(loose).bind(loose, CPU).why_not(config) is None
    before = torch.backends.mkldnn.matmul.fp32_precision
    inputs = kernel.make_inputs(loose, 1, "cpu")
    out, exact = (
        kernel.cpu_callable(loose, config)(inputs)["out"].double(),
        kernel.reference(loose, inputs)["out"],
    )
    assert float((out - exact).norm() / exact.norm()) < 1e-2
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_threads_are_divided_only_where_there_are_several():
    kernel, usual = load("cpu_matmul"), workload()
    bound = kernel.space(usual).bind(usual, CPU)
    assert "single thread" in bound.why_not({**TEMPLATE, "divide": "M"})
    assert bound.why_not({**TEMPLATE, "divide": "M", "threads": 2}) is None
    arm = Device("cpu", "Neoverse V2", "cpu:aarch64-sve2", 72, 64 << 30)
    assert "AVX" in kernel.space(usual).bind(usual, arm).why_not(TEMPLATE)


def test_other_dtypes_are_refused():
    with pytest.raises(WorkloadError, match="dtype 'float64' is not supported"):
        load("cpu_matmul").check_workload(workload("float64"))
