"""Attention on a CPU."""

from __future__ import annotations

import pytest
from spaces_cpu import PLAIN, compiled_outcomes, wrong_forms

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family


def workload(dtype: str = "float32", *, causal: bool = False, queries: int = 69) -> Workload:
    return Workload.of(
        batch=2, heads=3, queries=queries, keys=69, head_dim=32, causal=causal, dtype=dtype
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_form_is_right(dtype):
    for each in (workload(dtype), workload(dtype, causal=True), workload(dtype, queries=1)):
        # Without Inductor, flex_attention is the composed form with a warning.
        assert wrong_forms("cpu_attention", each, without=("flex",)) == []
    loose = workload(causal=True).with_dims(tolerance=1e-2)
    assert wrong_forms("cpu_attention", loose, without=("flex",)) == []


def test_compiled_forms_are_right():
    chosen = [
        (workload("bfloat16", causal=True), {"form": "chunks", "chunk": 32}),
        (workload("bfloat16", causal=True), {"form": "flex"}),
        (workload(), {"form": "composed"}),
    ]
    outcomes = compiled_outcomes(
        [("cpu_attention", each, {**PLAIN, **config}) for each, config in chosen]
    )
    assert [outcome["passed"] for outcome in outcomes] == [True] * 3
    # Inductor would replace the composed form by torch's fused kernel.
    assert "extern_kernels.bmm" in outcomes[2]["code"]


def test_a_causal_mask_needs_as_many_queries_as_keys():
    with pytest.raises(WorkloadError, match="causal with 1 queries and 69 keys"):
        load("cpu_attention").check_workload(workload(causal=True, queries=1))
