"""Chains of element-wise operations with broadcast rows and columns."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.elementwise_chain.kernel import CHAINS
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

USUAL = {"BLOCK_R": 4, "BLOCK_C": 64, "num_warps": 1, "steps": 1, "stream": False}


def workload(chain: str, **dims: object) -> Workload:
    usual = {"rows": 7, "cols": 71, "chain": chain, "dtype": "float32", "out_dtype": "float32"}
    return Workload.of(**{**usual, **dims})


def test_every_chain_is_right_whatever_the_sizes_and_dtypes():
    jobs = []
    for chain in CHAINS:
        jobs.append(("elementwise_chain", workload(chain), USUAL))
        small = workload(chain, rows=1, cols=1, dtype="bfloat16", out_dtype="bfloat16")
        jobs.append(("elementwise_chain", small, {**USUAL, "stream": True}))
        cast = workload(chain, rows=16, cols=128, dtype="float16")
        jobs.append(("elementwise_chain", cast, {**USUAL, "steps": 2}))
        odd = workload(chain, rows=19, cols=130, out_dtype="bfloat16")
        jobs.append(("elementwise_chain", odd, {**USUAL, "BLOCK_R": 1, "steps": 8}))
    assert wrong(jobs) == []


def test_chains_are_what_their_names_say():
    kernel = load("elementwise_chain")
    small = workload("scale_shift_gate")
    inputs = {name: tensor.double() for name, tensor in kernel.make_inputs(small, 1, "cpu").items()}
    assert [tuple(tensor.shape) for tensor in inputs.values()] == [(7, 71), (71,), (71,), (7, 1)]
    a, b, c, d = inputs.values()
    assert torch.equal(kernel.reference(small, inputs)["out"], (a * b + c) * d)


@pytest.mark.parametrize("place", [0, 2, 3, 5])
def test_elements_are_moved_in_words_of_16_bytes_without_spills(place):
    kernel = load("elementwise_chain")
    large = kernel.workloads()[place]
    config = {**kernel.default_config(large, H200), "steps": 4}
    ptx = assemble(kernel, large, config)
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx


def test_an_unknown_chain_is_refused():
    with pytest.raises(WorkloadError, match="did you mean 'rescale'"):
        load("elementwise_chain").check_workload(workload("rescaled"))
