"""Rows added to a table, by atomics and by lists."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_R": 2, "BLOCK_D": 64, "num_warps": 1}
CONFIGS = [{**TILE, "method": "atomic"}, {**TILE, "BLOCK_R": 8, "method": "atomic"}]
CONFIGS += [{**TILE, "method": "lists", "chains": chains} for chains in (1, 2, 8)]
CONFIGS += [{**TILE, "BLOCK_R": 8, "BLOCK_D": 128, "method": "lists", "chains": 1}]


def workload(tokens: int, vocab: int, dim: int, dtype: str, spread: str = "uniform") -> Workload:
    return Workload.of(tokens=tokens, vocab=vocab, dim=dim, spread=spread, dtype=dtype)


def test_rows_with_repeated_numbers_are_added():
    cases = [
        (1, 1, 1, "float32"),
        (50, 3, 70, "bfloat16"),
        (7, 30, 64, "float16"),
        (300, 17, 130, "float32", "zipf"),
    ]
    jobs = [("index_add", workload(*case), config) for case in cases for config in CONFIGS]
    assert wrong(jobs) == []


@pytest.mark.parametrize("spread", ["uniform", "zipf"])
def test_numbers_repeat_as_often_as_the_spread_says(spread):
    kernel, some = load("index_add"), workload(50000, 1000, 2, "float32", spread)
    index = kernel.make_inputs(some, 1, "cpu")["index"]
    assert (index.min(), index.max()) == (0, 999)
    counts = torch.bincount(index, minlength=1000).sort(descending=True).values / 50000
    if spread == "uniform":
        assert float(counts[0]) < 0.002
    else:
        assert float(counts[0]) == pytest.approx(0.1, abs=0.02)
        assert float(counts[0] / counts[9]) == pytest.approx(7.3, rel=0.3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_baselines_agree_with_the_reference(dtype):
    kernel, small = load("index_add"), workload(300, 100, 37, dtype)
    inputs = kernel.make_inputs(small, 1, "cpu")
    before = inputs["base"].clone()
    expected, got = kernel.reference(small, inputs)["out"], kernel.baselines(small)["eager"](inputs)
    assert torch.equal(inputs["base"], before)
    assert got["out"].dtype == inputs["base"].dtype
    error = (got["out"].double() - expected).norm() / expected.norm()
    assert float(error) < kernel.tolerance(small).relative
    by_hand = before.double()
    for row, at in zip(inputs["rows"].double(), inputs["index"].tolist(), strict=True):
        by_hand[at] += row
    assert torch.allclose(expected, by_hand)


def test_sums_of_16_bits_have_float32_work_space():
    kernel, atomic, lists = load("index_add"), CONFIGS[0], CONFIGS[3]
    for dtype, scratch in (("float32", set()), ("bfloat16", {"sum"})):
        some = workload(9, 5, 64, dtype)
        assert set(kernel.scratch(some, atomic)) == scratch
        launches = kernel.launches(some, atomic, meta_tensors(kernel, some, atomic))
        assert len(launches) == 2 + len(scratch)
        assert kernel.scratch(some, lists)["head"].shape == (5 * lists["chains"],)


@pytest.mark.parametrize("method", ["lists", "atomic"])
def test_rows_are_read_in_words_of_16_bytes_without_spills(method):
    kernel, large = load("index_add"), load("index_add").workloads()[1]
    config = {**kernel.default_config(large, H200), "method": method, "chains": 1}
    if method == "atomic":
        del config["chains"]
    assert kernel.space(large).bind(large, H200).why_not(config) is None
    launches = kernel.launches(large, config, meta_tensors(kernel, large, config))
    for launch in launches:
        built = build(launch, H200)
        assert spilled_bytes(built) == 0
        if launch.fn.__name__ not in ("empty_lists_kernel", "link_kernel"):
            assert "ld.global.v4.b32" in built.asm["ptx"]
    if method == "atomic":
        assert "relaxed.add.v4.f32" in build(launches[1], H200).asm["ptx"]


def test_float32_is_added_atomically_where_lists_are_few_or_uneven():
    kernel = load("index_add")

    def method(tokens: int, vocab: int, dim: int, spread: str, dtype: str = "float32") -> object:
        some = Workload.of(tokens=tokens, vocab=vocab, dim=dim, spread=spread, dtype=dtype)
        return kernel.default_config(some, H200)["method"]

    assert method(1 << 20, 1_000_000, 64, "uniform") == "lists"
    assert method(1 << 20, 1_000_000, 64, "zipf") == "atomic"
    assert method(65536, 1024, 128, "uniform") == "atomic"
    assert method(65536, 1024, 128, "zipf", "bfloat16") == "lists"
