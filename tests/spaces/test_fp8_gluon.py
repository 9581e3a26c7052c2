"""fp8_matmul in Gluon: where it is offered, and what its compiled code does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spaces_devices import H200, MI300X, assemble

from search_spaces.kernels.codes import FLOAT8
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"loads": "gluon", "num_warps": 4, "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 128}
TILE |= {"GROUP_M": 8, "num_stages": 4, "dot": "float8", "consumers": "share"}
SUMMED = {**TILE, "parts": 4, "lead": 1, "fast": True}
EXACT = {**TILE, "parts": 4, "lead": 2, "fast": False}
TURNS = {**TILE, "BLOCK_N": 128, "num_stages": 6, "consumers": "turns", "parts": 2, "lead": 0}
TURNS |= {"fast": True}
BLOCKED = {**TILE, "parts": 2, "lead": 0}


def large(scales: str) -> Workload:
    return Workload.of(M=4096, N=4096, K=7168, scales=scales, dtype=FLOAT8)


def bound(workload, device=H200):
    return load("fp8_matmul").space(workload).bind(workload, device)


CASES = [("row", SUMMED), ("tensor", EXACT), ("row", TURNS), ("block128", BLOCKED)]


@pytest.mark.parametrize(("scales", "config"), CASES, ids=["summed", "exact", "turns", "blocked"])
def test_gluon_variants_multiply_float8_without_spills(scales, config):
    kernel, workload = load("fp8_matmul"), large(scales)
    assert bound(workload).why_not(config) is None
    ptx = assemble(kernel, workload, config)
    assert ".f32.e4m3.e4m3" in ptx
    assert "setmaxnreg.inc" in ptx


@pytest.mark.parametrize("device", [replace(H200, target="cuda:100"), MI300X], ids=["sm100", "amd"])
def test_gluon_is_for_hopper(device):
    assert not any(
        config.get("loads") == "gluon" for config in bound(large("row"), device).enumerate()
    )


def test_products_that_gluon_cannot_take_stay_in_triton():
    whole = large("row")
    assert "lead" in {item.name for item in bound(whole).parameters}
    for dims in ({"N": 4100}, {"K": 7160}, {"M": 64}):
        assert "lead" not in {item.name for item in bound(whole.with_dims(**dims)).parameters}


def test_consumers_that_take_turns_neither_lead_nor_add_in_float32():
    for wrong in ({"lead": 1}, {"fast": False}):
        assert "by turns" in bound(large("row")).why_not({**TURNS, **wrong})
    turns = {name: value for name, value in TURNS.items() if name != "fast"}
    assert "by turns" in bound(large("block128")).why_not(turns)


def test_consumers_do_not_spill_and_buffers_fit():
    workload = large("row")
    for wrong in ({"BLOCK_M": 256}, {"consumers": "turns", "lead": 0}, {"BLOCK_M": 64}):
        assert "spills" in bound(workload).why_not({**SUMMED, "num_stages": 2, **wrong})
    assert "shared memory" in bound(workload).why_not({**SUMMED, "parts": 1})


def test_the_smaller_problem_keeps_rows_that_gluon_can_store():
    kernel = load("fp8_matmul")
    assert kernel.small_workload(large("row"))["N"] % 8 == 0
    assert kernel.small_workload(large("row").with_dims(N=1003))["N"] % 8 != 0
