"""The router: softmax and the largest few logits of each token."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

METHODS = ("argmax", "packed", "sort")


def workload(tokens: int, experts: int, top_k: int, dtype: str, renorm: bool = True) -> Workload:
    sizes = {"tokens": tokens, "experts": experts, "top_k": top_k}
    return Workload.of(**sizes, renormalize=renorm, dtype=dtype)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_chooses_the_largest_in_order(method):
    cases = [
        (1, 1, 1, "float32", True),
        (5, 8, 2, "bfloat16", False),
        (3, 60, 6, "float16", True),
        (4, 5, 5, "float32", False),
        (2, 130, 8, "bfloat16", True),
        (2, 200, 3, "float32", True),
    ]
    usual = {"num_warps": 2, "method": method}
    jobs = [
        ("topk_routing", workload(*case), {**usual, "BLOCK_T": block, "steps": steps})
        for case in cases
        for block, steps in ((1, 1), (4, 2))
    ]
    assert wrong(jobs) == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_no_row_has_equal_logits(dtype):
    kernel, wide = load("topk_routing"), workload(200, 1000, 8, dtype)
    logits = kernel.make_inputs(wide, 1, "cpu")["logits"].double()
    assert all(row.unique().numel() == 1000 for row in logits)
    assert 1.9 < float(logits.std()) < 2.2
    # Neighbouring weights differ in float32 too, so that their order is that of the logits.
    weights = logits.float().softmax(1).sort(1, descending=True).values[:, :9]
    assert bool((weights[:, :-1] > weights[:, 1:]).all())


@pytest.mark.parametrize("renormalize", [False, True])
def test_baselines_agree_with_the_reference(renormalize):
    kernel, small = load("topk_routing"), workload(50, 64, 6, "bfloat16", renormalize)
    inputs = kernel.make_inputs(small, 1, "cpu")
    expected, got = kernel.reference(small, inputs), kernel.baselines(small)["eager"](inputs)
    assert got["ids"].dtype == torch.int32
    assert got["weights"].dtype == torch.float32
    assert torch.equal(got["ids"].long(), expected["ids"])
    assert torch.allclose(got["weights"].double(), expected["weights"], rtol=1e-5)
    sums = expected["weights"].sum(1)
    assert bool(torch.isclose(sums, torch.ones_like(sums)).all()) == renormalize
    softmax = inputs["logits"].double().softmax(1)
    if not renormalize:
        assert torch.allclose(softmax.gather(1, expected["ids"]), expected["weights"])


@pytest.mark.parametrize("method", METHODS)
def test_logits_are_read_in_wide_words_without_spills(method):
    kernel, large = load("topk_routing"), load("topk_routing").workloads()[0]
    config = {**kernel.default_config(large, H200), "method": method}
    assert "ld.global.v4.b32" in assemble(kernel, large, config)


def test_an_id_that_is_off_by_one_is_out_of_tolerance():
    kernel, small = load("topk_routing"), workload(50, 1024, 6, "float32")
    largest = 1023
    assert kernel.tolerance(small).elementwise < 1 / (1 + largest)


def test_more_choices_than_experts_are_refused():
    with pytest.raises(WorkloadError, match="top_k is 9, more than the 8 experts"):
        load("topk_routing").check_workload(workload(4, 8, 9, "float32"))
