"""Products of four matrices on a CPU."""

from __future__ import annotations

import pytest
from spaces_cpu import PLAIN, compiled_outcomes, wrong_forms
from spaces_devices import CPU

from search_spaces.errors import WorkloadError
from search_spaces.kernels.cpu_matrix_chain.kernel import _ORDERS, operations
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family


def workload(dtype: str = "float32") -> Workload:
    return Workload.of(d0=33, d1=47, d2=21, d3=59, d4=35, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_order_and_form_is_right(dtype):
    assert wrong_forms("cpu_matrix_chain", workload(dtype)) == []


def test_a_chain_is_compiled_whole():
    config = {**PLAIN, "form": "template", "order": "(ab)(cd)"}
    config |= {"divide": "auto", "M_BLOCKS": 2, "K_BLOCKS": 8}
    jobs = [("cpu_matrix_chain", workload(), config)]
    jobs += [("cpu_matrix_chain", workload(), name) for name in ("eager", "multi_dot")]
    outcomes = compiled_outcomes(jobs)
    assert all(outcome["passed"] for outcome in outcomes)
    assert "micro_gemm" in outcomes[0]["code"]
    assert "extern_kernels." not in outcomes[0]["code"]


def test_operations_are_those_of_the_textbook():
    # Cormen et al., Introduction to Algorithms: p = (5, 4, 6, 2, 7) has ((A1 (A2 A3)) A4) = 158.
    counts = {order: operations((5, 4, 6, 2, 7), order) / 2 for order in _ORDERS}
    assert counts["(a(bc))d"] == 158 == min(counts.values())
    assert counts["((ab)c)d"] == 120 + 60 + 70


def test_the_default_is_the_order_of_the_fewest_operations():
    kernel = load("cpu_matrix_chain")
    absorbed = kernel.workloads()[0]
    assert kernel.default_config(absorbed, CPU)["order"] == "((ab)c)d"
    vector = Workload.of(d0=512, d1=512, d2=512, d3=512, d4=1, dtype="float32")
    assert kernel.default_config(vector, CPU)["order"] == "a(b(cd))"


def test_int8_is_refused():
    with pytest.raises(WorkloadError, match="dtype 'int8' is not supported"):
        load("cpu_matrix_chain").check_workload(workload("int8"))
