"""Tensors with their dimensions in another order."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from spaces_devices import assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.permute.kernel import ORDERS
from search_spaces.kernels.permute.moves import move_of
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

USUAL = {"BLOCK_R": 8, "BLOCK_C": 8, "num_warps": 1, "tiles": "row", "stream": False}


def workload(shape: tuple[int, ...], order: str, dtype: str = "float32") -> Workload:
    sizes = {f"d{place}": size for place, size in enumerate(shape)}
    return Workload.of(**sizes, order=order, dtype=dtype)


def test_every_order_is_right():
    jobs = [
        ("permute", workload((3, 2, 9, 5)[: len(order)], order), {**USUAL, "tiles": tiles})
        for order, tiles in zip(ORDERS, ("row", "column") * len(ORDERS), strict=False)
    ]
    assert wrong(jobs) == []


def test_dimensions_of_size_one_and_whole_tiles_are_right():
    jobs = []
    for shape, order in (
        ((1, 1, 1, 1), "3210"),
        ((1, 7, 1, 5), "0312"),
        ((4, 1, 6), "102"),
        ((2, 16, 8, 16), "0231"),
        ((2, 16, 8, 16), "0213"),
        ((3, 130, 9), "021"),
    ):
        for dtype in ("bfloat16", "float16"):
            small = workload(shape, order, dtype)
            jobs.append(("permute", small, {**USUAL, "stream": True}))
            jobs.append(("permute", small, {**USUAL, "BLOCK_R": 16, "BLOCK_C": 32}))
    assert wrong(jobs) == []


def test_merged_dimensions_and_strides_reach_every_element_once():
    for shape, order in product([(2, 3, 4, 5), (1, 3, 1, 5), (2, 1, 1, 3)], ORDERS):
        if len(order) == 3:
            continue
        move = move_of(workload(shape, order))
        reached = {(0, 0)}
        for axis in (*move.outer, move.rows, move.cols):
            reached = {
                (x + at * axis.in_stride, y + at * axis.out_stride)
                for x, y in reached
                for at in range(axis.size)
            }
        x = torch.arange(shape[0] * shape[1] * shape[2] * shape[3]).view(shape)
        out = x.permute([int(place) for place in order]).flatten().tolist()
        assert sorted(reached) == sorted((moved, at) for at, moved in enumerate(out))


def test_heads_are_copied_and_channels_are_transposed():
    heads = move_of(workload((2, 64, 8, 128), "0213"))
    assert (heads.transposes, heads.rows.size, heads.cols.size) == (False, 64, 128)
    channels = move_of(workload((2, 64, 7, 9), "0231"))
    assert (channels.transposes, channels.rows.size, channels.cols.size) == (True, 64, 63)


def test_baselines_agree_with_the_reference():
    kernel = load("permute")
    for order in ("0231", "210"):
        small = workload((3, 4, 5, 6)[: len(order)], order)
        inputs = kernel.make_inputs(small, 1, "cpu")
        got = kernel.baselines(small)["eager"](inputs)["out"]
        assert got.is_contiguous()
        assert tuple(got.shape) == kernel.outputs(small)["out"].shape
        assert torch.equal(got.double(), kernel.reference(small, inputs)["out"])


@pytest.mark.parametrize("place", [0, 2, 3, 6])
def test_elements_are_moved_in_words_of_16_bytes(place):
    kernel = load("permute")
    large = kernel.workloads()[place]
    ptx = assemble(kernel, large)
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"order": 213}, "quote it"),
        ({"order": "0123"}, "use 021"),
        ({"order": "0011"}, "use 021"),
        ({"order": "021"}, "unknown dim d3"),
    ],
)
def test_what_is_no_order_is_refused(dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load("permute").check_workload(workload((2, 3, 4, 5), "0213").with_dims(**dims))
    assert complaint in f"{caught.value.message} {caught.value.hint}"
