"""Row softmax on a CPU: its forms, and how options reach the generated code."""

from __future__ import annotations

import pytest
from spaces_cpu import PLAIN, compiled_outcomes, wrong_forms
from spaces_devices import CPU, CPU_AVX2

from search_spaces.errors import WorkloadError
from search_spaces.records import Device, Workload
from search_spaces.registry import load
from workers.host import cpu_device

pytestmark = pytest.mark.family


def workload(cols: int, dtype: str = "float32", rows: int = 5) -> Workload:
    return Workload.of(rows=rows, cols=cols, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_form_is_right(dtype):
    for cols in (1, 509, 1536):
        assert wrong_forms("cpu_softmax", workload(cols, dtype)) == []


def test_compiled_forms_are_right_on_their_vectors_and_threads():
    chosen = [
        (workload(256, rows=512), {"form": "library", "threads": 2, "simdlen": 256}),
        (workload(509, "bfloat16"), {**PLAIN, "form": "log_sum_exp", "fold": 4}),
        (workload(1536), {**PLAIN, "form": "parts", "part": 512}),
    ]
    outcomes = compiled_outcomes([("cpu_softmax", *each) for each in chosen])
    assert all(outcome["passed"] for outcome in outcomes)
    narrow, usual, _ = (outcome["code"] for outcome in outcomes)
    assert "num_threads(2)" in narrow
    assert "num_threads" not in usual
    assert "static_cast<int64_t>(8)" in narrow
    assert ("static_cast<int64_t>(8)" in usual) == ("avx512" not in cpu_device().target)


def test_rows_are_divided_only_into_equal_parts():
    kernel = load("cpu_softmax")
    for cols, parts in ((1001, set()), (1024, {256, 512}), (128256, {256})):
        bound = kernel.space(workload(cols)).bind(workload(cols), CPU)
        assert {config["part"] for config in bound.enumerate() if "part" in config} == parts


def test_variants_use_no_more_threads_than_there_are_cores():
    kernel, usual = load("cpu_softmax"), workload(1024)
    for count, most in ((1, 1), (2, 2), (7, 6), (56, 56)):
        device = Device("cpu", "cores", "cpu:x86-64-avx512", count, 8 << 30)
        bound = kernel.space(usual).bind(usual, device)
        assert max(config["threads"] for config in bound.enumerate()) == most
        assert kernel.default_config(usual, device)["threads"] == most


def test_only_compiled_forms_on_avx512_have_a_choice_of_vectors():
    kernel, usual = load("cpu_softmax"), workload(1024)
    narrow = [
        {config["form"] for config in kernel.space(usual).bind(usual, device).enumerate()
         if config["simdlen"] == 256}
        for device in (CPU, CPU_AVX2)
    ]  # fmt: skip
    assert narrow == [{"library", "reciprocal", "log_sum_exp", "parts"}, set()]


def test_other_dtypes_are_refused():
    with pytest.raises(WorkloadError, match="dtype 'int8' is not supported"):
        load("cpu_softmax").check_workload(workload(8, "int8"))
