"""The group norm in both memory layouts: held, read in tiles, split over programs."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.group_norm.kernel import LAYOUTS
from search_spaces.kernels.group_norm.triton_kernels import group_norm_kernel
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILES = {"passes": 2, "num_warps": 1, "block_stages": 2, "splits": 1, "stream": True}
CONFIGS = {
    "nchw": [
        {"passes": 1, "num_warps": 2, "stream": True},
        {**TILES, "BLOCK": 64},
        {**TILES, "BLOCK": 32, "splits": 8, "stream": False},
    ],
    "nhwc": [
        {"passes": 1, "num_warps": 2, "BLOCK_G": 2, "stream": True},
        {**TILES, "BLOCK_G": 1, "BLOCK": 16},
        {**TILES, "BLOCK_G": 4, "BLOCK": 8, "splits": 4, "stream": False},
        {**TILES, "passes": 3, "BLOCK_C": 8, "BLOCK": 8, "splits": 4},
        {**TILES, "passes": 3, "BLOCK_C": 32, "BLOCK": 16, "stream": False},
    ],
}


def workload(layout: str, channels: int, groups: int, pixels: int, **dims: object) -> Workload:
    usual = {"batch": 2, "layout": layout, "dtype": "float32", "eps": 0.01}
    sizes = {"channels": channels, "groups": groups, "pixels": pixels}
    return Workload.of(**{**usual, **sizes, **dims})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_of_any_size_are_normalised(layout):
    jobs = []
    for channels, groups, pixels, dtype in (
        (1, 1, 3, "float32"),
        (12, 4, 40, "bfloat16"),
        (10, 2, 33, "float16"),
        (8, 8, 72, "float32"),
        (32, 2, 64, "bfloat16"),
    ):
        small = workload(layout, channels, groups, pixels, dtype=dtype)
        jobs += [("group_norm", small, config) for config in CONFIGS[layout]]
    assert wrong(jobs) == []


def test_both_layouts_hold_the_same_values():
    kernel, first = load("group_norm"), workload("nchw", 12, 4, 35)
    last = first.with_dims(layout="nhwc")
    inputs = dict(kernel.make_inputs(first, 1, "cpu"))
    expected = kernel.reference(first, inputs)["out"]
    x = inputs["x"].double().view(2, 4, -1)
    centred = x - x.mean(2, keepdim=True)
    scaled = (centred / (centred.square().mean(2, keepdim=True) + 0.01).sqrt()).view(2, 12, 35)
    by_hand = scaled * inputs["weight"][:, None].double() + inputs["bias"][:, None].double()
    assert torch.allclose(expected, by_hand)
    swapped = {**inputs, "x": inputs["x"].transpose(1, 2).contiguous()}
    assert torch.allclose(kernel.reference(last, swapped)["out"].transpose(1, 2), expected)
    for each, given in ((first, inputs), (last, swapped)):
        got = kernel.baselines(each)["eager"](given)["out"]
        assert got.shape == kernel.outputs(each)["out"].shape
        assert torch.allclose(got.double(), kernel.reference(each, given)["out"], atol=1e-5)


@pytest.mark.parametrize("at", [0, 1, 2, 4, 5])
def test_images_are_read_in_wide_words_without_spills(at):
    kernel = load("group_norm")
    large = kernel.workloads()[at]
    config = kernel.default_config(large, H200)
    for launch in kernel.launches(large, config, meta_tensors(kernel, large, config)):
        built = build(launch, H200)
        assert spilled_bytes(built) == 0
        if launch.fn is group_norm_kernel:
            assert ".v4.b32" in built.asm["ptx"]


def test_the_default_gives_every_multiprocessor_several_programs():
    kernel = load("group_norm")
    for large in kernel.workloads()[:-1]:
        config = kernel.default_config(large, H200)
        launch, *_ = kernel.launches(large, config, meta_tensors(kernel, large, config))
        if config["passes"] != 1:
            assert launch.grid[0] * launch.grid[1] >= H200.sm_count, large.key


def test_few_large_groups_are_split():
    kernel = load("group_norm")
    few = kernel.workloads()[4]
    most = max(point.get("splits", 1) for point in kernel.space(few).bind(few, H200).enumerate())
    assert most >= 32
    many = few.with_dims(batch=512, pixels=4096)
    bound = kernel.space(many).bind(many, H200)
    assert {point.get("splits", 1) for point in bound.enumerate()} == {1}


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"groups": 5}, "does not divide"),
        ({"pixels": 2**30}, "more than the 1073741824 elements"),
        ({"layout": "nhwc", "channels": 8192, "groups": 1}, "channels of a tile"),
        ({"layout": "nwhc"}, "did you mean"),
        ({"batch": 2**31 - 1}, "groups in all"),
    ],
)
def test_impossible_workloads_are_refused(dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load("group_norm").check_workload(workload("nchw", 32, 4, 16).with_dims(**dims))
    assert complaint in f"{caught.value.message} {caught.value.hint}"
