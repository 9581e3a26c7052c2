"""Which entries of a captured table serve a launch, and how far they are."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from tuner.runtime import DeviceFacts, Entry, Rule, Span, Table
from tuner.runtime._captured_calls import find_calls

PARTS = SimpleNamespace(
    names=("x", "pair", "n", "scale", "flag", "seed", "text", "out", "BLOCK"),
    constants=frozenset({"BLOCK"}),
    computed=frozenset(),
)
KEY = {
    "x": "float32[16,4096](8192,1)@8", "pair": "(4,bfloat16[8],0.5,-2)", "n": 100,
    "scale": 0.5, "flag": True, "text": "tf32", "BLOCK": 64, "grid": "4,2",
    "out": "float32[128]=x+512@8",  # strides, shared memory and addresses are no part of a match
}  # fmt: skip


def tensor(*shape, dtype="float32"):
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


LAUNCH = {
    "x": tensor(16, 4096), "pair": (4, tensor(8, dtype="bfloat16"), 0.5, -2), "n": 100,
    "scale": 0.5, "flag": True, "text": "tf32", "BLOCK": 64, "seed": 3, "out": tensor(128),
}  # fmt: skip


def table(*keys, free="seed", warps=(1, 2, 4, 8)):
    entries = tuple(
        Entry(key, {"num_warps": warps[at % len(warps)]}) for at, key in enumerate(keys)
    )
    return Table("k", "", DeviceFacts("NVIDIA H200"), {}, entries, provenance={"free": free})


def found(given=None, grid=(4, 2), keys=(KEY,), warps=(1, 2, 4, 8), **more):
    hits, reason = find_calls(
        table(*keys, warps=warps), PARTS, {**LAUNCH, **(given or {}), **more}, {}, grid
    )
    assert hits or reason
    return [(hit.how, round(hit.distance, 3)) for hit in hits]


def test_an_equal_call_is_exact_whatever_its_free_arguments_are():
    assert found() == found(seed=11) == found(seed=2.5) == found(seed=True) == [("exact", 0.0)]
    assert found(seed=None) == found(seed="3") == []


@pytest.mark.parametrize(
    ("changed", "octaves"),
    [
        ({"n": 400}, [2]),
        ({"n": 50, "x": tensor(32, 4096)}, [1, 1]),
        ({"x": tensor(16, 512)}, [3]),
        ({"pair": (8, tensor(16, dtype="bfloat16"), 0.5, -2)}, [1, 1]),
    ],
)
def test_other_sizes_are_at_a_distance_in_octaves(changed, octaves):
    assert found(changed) == [("nearest", round(math.hypot(*octaves), 3))]


def test_another_grid_is_another_size():
    assert found(grid=(16, 2)) == [("nearest", 2.0)]
    assert found(grid=(4, 2, 2)) == found(grid=len) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"n": 1}, {"n": 0}, {"n": -100}, {"n": 100.5}, {"n": None}, {"n": True},
        {"scale": 0.25}, {"flag": False}, {"text": "ieee"}, {"BLOCK": 128},
        {"x": tensor(16, 4096, dtype="float16")}, {"x": tensor(16, 4096, 2)}, {"x": None},
        {"x": tensor(0, 4096)},
        {"pair": (4, tensor(8, dtype="bfloat16"), 0.25, -2)},
        {"pair": (4, tensor(8, dtype="bfloat16"), 0.5, -4)},
        {"pair": (4, tensor(8, dtype="bfloat16"), 0.5)},
    ],
)  # fmt: skip
def test_more_than_sizes_is_a_miss(changed):
    assert found(changed) == []


def test_the_nearest_comes_first_and_an_exact_one_alone():
    keys = [{**KEY, "n": n} for n in (3, 100, 5000, 70000)]
    assert [far for _, far in found(keys=keys, n=4000)] == sorted(
        round(abs(math.log2(n / 4000)), 3) for n in (3, 100, 5000, 70000)
    )
    assert found(keys=keys, n=5000) == [("exact", 0.0)]
    one_config = found(keys=keys, n=4000, warps=(4,))
    assert one_config == [("nearest", round(math.log2(5000 / 4000), 3))]


def test_a_flag_and_a_number_of_equal_value_are_two_keys():
    flag, number = ({**KEY, "flag": value} for value in (True, 1))
    for keys, value, warps in (
        ((flag, number), True, 1), ((flag, number), 1, 2), ((flag,), 1, 1)
    ):  # fmt: skip
        ((hit,), _) = find_calls(table(*keys), PARTS, {**LAUNCH, "flag": value}, {}, (4, 2))
        assert (hit.how, hit.config) == ("exact", {"num_warps": warps})


def test_an_argument_that_no_key_has_must_have_its_default():
    key = {name: value for name, value in KEY.items() if name != "scale"}
    whole = table(key)
    for default, count in ((0.5, 1), (0.25, 0)):
        hits, _ = find_calls(whole, PARTS, LAUNCH, {"scale": default}, (4, 2))
        assert len(hits) == count


def served(key, dim, **given):
    """How an entry of a range serves a launch: chosen for 1 to 32, and right from 4 to 64."""
    spans = {"sizes": {dim: Span(4, 64)}, "serves": {dim: Span(1, 32)}}
    entry = Entry({**key, dim: 8}, {"num_warps": 4}, **spans)
    table = Table("k", "", DeviceFacts("NVIDIA H200"), {}, (entry,), Rule("sizes"))
    launch = {name: value for name, value in {**LAUNCH, **given}.items() if name != "seed"}
    hits, _ = find_calls(table, PARTS, launch, {}, (4, 2))
    return [(hit.how, round(hit.distance, 3)) for hit in hits]


def test_an_entry_of_a_range_serves_the_sizes_that_it_was_chosen_for_and_is_right_for():
    sized = {**KEY, "x": "float32[n,4096]", "pair": "(4,bfloat16[2*n],0.5,-2)", "width": "3*n"}

    def find(n, rows=None, width=None, pair=None):
        pair = (4, tensor(pair or 2 * n, dtype="bfloat16"), 0.5, -2)
        return served(sized, "n", n=n, x=tensor(rows or n, 4096), width=width or 3 * n, pair=pair)

    assert find(8) == find(17) == find(32) == find(4) == [("range", 0.0)]
    assert find(3) == [("nearest", 0.0)]  # chosen for it, and not known to be right
    assert find(64) == [("nearest", 2.0)]  # n, x, pair and width are twice those of 32
    assert [find(8, rows=16), find(8, width=48), find(8, pair=32)] == [[("nearest", 1.0)]] * 3


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("float32[x[0],4]", {7: 7, 32: 32}),
        ("float32[2*x[0]+1,4]", {7: 15, 32: 65}),
        ("float32[cdiv(3*x[0]-1,16),4]", {7: 2, 32: 6}),
    ],
)
def test_a_dim_of_a_tensor_may_be_the_size_of_a_range(text, sizes):
    key = {**KEY, "x": "float32[x[0],4096]", "y": text, "count": "cdiv(x[0],16)"}

    def find(rows, y):
        given = {"x": tensor(rows, 4096), "y": tensor(y, 4), "count": -(-rows // 16)}
        return [how for how, _ in served(key, "x[0]", **given)]

    for rows, y in sizes.items():
        assert find(rows, y) == ["range"]
        assert find(rows, y + 1) == ["nearest"]
    assert find(64, sizes[32]) == ["nearest"]
