"""The convolution as an implicit matrix product: windows, groups, orders, splits, descriptors."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, MI300X, assemble, build, meta_tensors
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.convolution.space import bundle, tile_sides
from search_spaces.kernels.images import window_dims
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 1, "num_warps": 4}
CONFIG["num_stages"] = 2
IMAGES = {"batch": 64, "height": 28, "width": 28, "in_channels": 128, "out_channels": 128}
POINTERS, DESCRIPTORS = {"loads": "pointer"}, {"loads": "descriptor", "persistent": False}


def workload(taps, stride=1, padding=0, dilation=1, **dims: object) -> Workload:
    usual = {"batch": 2, "height": 7, "width": 9, "in_channels": 16, "out_channels": 24}
    windows = window_dims(taps, stride, padding, dilation)
    return Workload.of(**{**usual, "groups": 1, "dtype": "float16", **windows, **dims})


def jobs(small: Workload, *changes: dict[str, object]) -> list[object]:
    return [("convolution", small, {**CONFIG, **change}) for change in changes]


def test_windows_of_any_taps_stride_padding_and_dilation_are_convolved():
    cases = []
    for windows, channels, dtype in (
        ((1,), 16, "float16"),
        ((1, 2), 21, "float32"),
        ((3, 1, 1), 48, "float16"),
        ((3, 2, 1), 21, "bfloat16"),
        (((1, 7), 1, (0, 3)), 16, "float32"),
        ((3, 1, 2, 2), 16, "bfloat16"),
    ):
        small = workload(*windows, in_channels=channels, dtype=dtype)
        cases += jobs(small, {}, {"BLOCK_K": 32, "GROUP_M": 8})
    # All small problems run in one process, whose start takes longer than they do.
    for windows, channels in (((7, 2, 3), 3), ((3, 1, 1), 17), ((4, 4, 0), 3)):
        small = workload(*windows, in_channels=channels)
        cases += jobs(small, {"order": "row"}, {"order": "row", "BLOCK_K": 64})
    split = workload(3, 1, 1, in_channels=40)
    cases += jobs(split, {"SPLIT_K": 2}, {"SPLIT_K": 8}, {**DESCRIPTORS, "SPLIT_K": 4})
    assert wrong(cases) == []


def test_groups_share_a_tile_where_they_are_small():
    cases, tiles = [], [{"BLOCK_N": 16}, {"BLOCK_N": 32, "BLOCK_K": 32}]
    for groups, each_in, each_out, bundles in (
        (8, 4, 4, [4, 8]),
        (6, 4, 4, [4, 6]),
        (3, 20, 40, [1, 1]),
    ):
        sizes = {"in_channels": groups * each_in, "out_channels": groups * each_out}
        small = workload(3, 1, 1, groups=groups, **sizes)
        assert [bundle(tile, small) for tile in tiles] == bundles
        cases += jobs(small, *tiles)
    assert wrong(cases) == []


def test_descriptors_take_strides_padding_and_dilation():
    cases, described = [], {**DESCRIPTORS, "BLOCK_K": 32}
    for windows in ((1,), (1, 2), (3, 1, 1), (3, 2, 1), (5, 2, 2), (3, 1, 2, 2), (2, 3, 2)):
        small = workload(*windows, height=6, width=12, in_channels=32, batch=3)
        cases += jobs(small, described)
    # Channels that are no multiple of a block end in zeros where nothing is strided.
    uneven = workload(3, 1, 1, in_channels=40, dtype="bfloat16")
    cases += jobs(uneven, {**described, "persistent": True}, {**described, "BLOCK_M": 128})
    assert wrong(cases) == []


def test_tiles_of_pixels_waste_as_few_as_possible():
    assert tile_sides(128, 1, 1, 5000) == (1, 128)
    for size in (56, 28, 14):
        # The same pixel of several images, none of which is missing.
        assert tile_sides(64, 128, size, size) == (1, 1)
    assert tile_sides(64, 1, 65, 63) == (1, 64)
    assert tile_sides(64, 1, 63, 65) == (64, 1)


def test_tiles_are_multiplied_where_they_are_loaded():
    """Products of sm_90 read tiles in registers after the next ones have been loaded there."""
    kernel, large = load("convolution"), workload(3, 1, 1, **IMAGES)
    for sizes in ({}, {"batch": 1, "height": 28, "width": 64}, {"batch": 1, "height": 64}):
        case = large.with_dims(**sizes)
        bound = kernel.space(case).bind(case, H200)
        config = bound.complete({**CONFIG, "BLOCK_K": 64, "BLOCK_N": 64, **DESCRIPTORS})
        assert bound.feasible(config)
        (launch,) = kernel.launches(case, config, meta_tensors(kernel, case, config))
        built = build(launch, H200)
        assert "warp_group_dot" in built.asm["ttgir"]
        assert "ttg.local_load" not in built.asm["ttgir"]


def test_tiles_of_images_are_full():
    kernel, small = load("convolution"), workload(3, 1, 1, **{**IMAGES, "batch": 16})
    bound = kernel.space(small).bind(small, H200).restrict({"loads": ["descriptor"]})
    assert bound.size() == 0


def test_descriptors_are_offered_where_they_can_describe_the_images():
    kernel = load("convolution")

    def offered(small: Workload, device=H200) -> bool:
        space = kernel.space(small).bind(small, device)
        return any(config.get("loads") == "descriptor" for config in space.enumerate())

    assert offered(workload(3, 1, 1))
    assert offered(workload(3, 2, 1, height=12, width=14))
    assert offered(workload(1))
    assert not offered(workload(3, 2, 1))
    assert not offered(workload(3, 1, 1, in_channels=17))
    assert not offered(workload(3, 1, 1, groups=4))
    assert not offered(workload(3, 1, 1), MI300X)


def test_baselines_agree_with_the_reference_and_say_what_they_need():
    kernel = load("convolution")
    small = workload(3, 2, 1, groups=2, dtype="float32")
    inputs = kernel.make_inputs(small, 1, "cpu")
    expected = kernel.reference(small, inputs)["out"]
    baselines = kernel.baselines(small)
    assert torch.allclose(baselines["eager"](inputs)["out"].double(), expected, atol=1e-4)
    for name in ("vendor", "vendor_tf32"):
        with pytest.raises(RuntimeError, match="cuDNN needs CUDA tensors"):
            baselines[name](inputs)
    assert "vendor_tf32" not in kernel.baselines(workload(1))


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"height": 2, "padding_h": 0}, "larger than the padded image"),
        ({"groups": 5}, "not a multiple of 5 groups"),
        ({"padding_w": -1}, "padding_w is -1"),
        ({"kernel_h": 65}, "more than the 64"),
        ({"stride": 0}, "sizes are at least 1"),
    ],
)
def test_impossible_convolutions_are_refused(dims, complaint):
    kernel = load("convolution")
    kernel.check_workload(workload(3, 1, 1))
    with pytest.raises(WorkloadError) as caught:
        kernel.check_workload(workload(3, 1, 1).with_dims(**dims))
    assert complaint in f"{caught.value.message} {caught.value.hint}"


def test_the_default_and_the_described_tiles_use_tensor_cores_and_do_not_spill():
    kernel = load("convolution")
    large = workload(3, 1, 1, batch=64, height=28, width=28, in_channels=128, out_channels=128)
    default = kernel.default_config(large, H200)
    bound = kernel.space(large).bind(large, H200)
    for change in ({}, DESCRIPTORS, {**DESCRIPTORS, "persistent": True}):
        config = bound.complete({**default, **change})
        assert bound.why_not(config) is None
        text = assemble(kernel, large, config)
        assert "wgmma.mma_async" in text
        assert ("cp.async.bulk.tensor" if change else "cp.async.cg") in text
