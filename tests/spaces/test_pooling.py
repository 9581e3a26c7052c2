"""2-D pooling in both memory layouts."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble, meta_tensors
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.pooling.kernel import LAYOUTS, OPERATIONS
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

SQUARE = {"batch": 2, "channels": 5, "height": 9, "width": 14}


def workload(window: int, stride: int, padding: int, **dims: object) -> Workload:
    usual = {**SQUARE, "operation": "max", "layout": "nhwc", "dtype": "float32"}
    return Workload.of(**{**usual, "window": window, "stride": stride, "padding": padding, **dims})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_of_any_size_stride_and_padding_are_pooled(layout):
    jobs = []
    for operation in OPERATIONS:
        for window, stride, padding in ((1, 1, 0), (3, 2, 1), (2, 3, 0), (5, 4, 2)):
            small = workload(window, stride, padding, operation=operation, layout=layout)
            jobs += [
                ("pooling", small, {"BLOCK_P": block_p, "BLOCK_C": block_c, "num_warps": 1})
                for block_p, block_c in ((4, 8), (16, 4), (128, 1))
            ]
    assert wrong(jobs) == []


def test_both_layouts_hold_the_same_values():
    kernel = load("pooling")
    for operation in OPERATIONS:
        last = workload(3, 2, 1, operation=operation)
        first = last.with_dims(layout="nchw")
        x = kernel.make_inputs(last, 1, "cpu")["x"]
        pooled = kernel.reference(last, {"x": x})["out"]
        assert pooled.is_contiguous()
        other = kernel.reference(first, {"x": x.permute(0, 3, 1, 2).contiguous()})["out"]
        assert torch.equal(pooled.permute(0, 3, 1, 2), other)
        got = kernel.baselines(last)["eager"]({"x": x})["out"]
        assert torch.allclose(got.double(), pooled, atol=1e-5)


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"padding": 2}, "over half the window"),
        ({"height": 2}, "larger than the image"),
        ({"layout": "nwhc"}, "did you mean"),
    ],
)
def test_impossible_windows_are_refused(dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load("pooling").check_workload(workload(3, 1, 1).with_dims(**dims))
    assert complaint in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_are_read_without_spills(layout):
    kernel = load("pooling")
    large = next(each for each in kernel.workloads() if each.text("layout") == layout)
    assert "max.NaN" in assemble(kernel, large)


def adaptive(out_height: int, out_width: int, **dims: object) -> Workload:
    usual = {"batch": 2, "channels": 5, "height": 6, "width": 8}
    usual |= {"operation": "max", "layout": "nhwc", "dtype": "float32"}
    return Workload.of(**{**usual, "out_height": out_height, "out_width": out_width, **dims})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_are_pooled_to_any_size(layout):
    jobs = []
    for operation in OPERATIONS:
        for out_height, out_width in ((1, 1), (4, 5), (3, 1), (7, 11)):
            small = adaptive(out_height, out_width, operation=operation, layout=layout)
            few = {"BLOCK_P": 16, "BLOCK_R": 2, "BLOCK_C": 8, "num_warps": 1, "splits": 1}
            jobs.append(("adaptive_pooling", small, few))
        small = adaptive(2, 3, operation=operation, layout=layout)
        many = {"BLOCK_P": 2, "BLOCK_R": 16, "BLOCK_C": 4, "num_warps": 1, "splits": 1}
        jobs.append(("adaptive_pooling", small, many))
    assert wrong(jobs) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_shared_by_programs_are_pooled(layout):
    """Blocks of a part are loaded at once where they are few, else one after the other."""
    jobs = []
    for operation, out_height, out_width in (("average", 2, 3), ("max", 1, 1)):
        small = adaptive(out_height, out_width, operation=operation, layout=layout, height=17)
        for splits, block, channels in ((4, 8, 8), (2, 1, 4)):
            config = {"BLOCK_P": 2, "BLOCK_R": block, "BLOCK_C": channels, "num_warps": 1}
            jobs.append(("adaptive_pooling", small, {**config, "splits": splits}))
    unrolled = {
        kernel.launches(small, config, meta_tensors(kernel, small, config))[0].kwargs["UNROLL"]
        for name, small, config in jobs
        for kernel in (load(name),)
    }
    assert unrolled == {False, True}
    assert wrong(jobs) == []


def test_few_results_split_their_windows_without_tuning():
    kernel = load("adaptive_pooling")
    for large in kernel.workloads()[:-1]:
        config = kernel.default_config(large, H200)
        launch, *_ = kernel.launches(large, config, meta_tensors(kernel, large, config))
        assert launch.grid[0] * launch.grid[1] >= 3 * H200.sm_count, large.key


def test_adaptive_windows_of_equal_sizes_are_windows():
    kernel, small = load("adaptive_pooling"), adaptive(3, 7, operation="average", **SQUARE)
    inputs = kernel.make_inputs(small, 1, "cpu")
    out = kernel.reference(small, inputs)["out"]
    means = inputs["x"].double().reshape(2, 3, 3, 7, 2, 5).mean((2, 4))
    assert torch.allclose(out, means)
    got = kernel.baselines(small)["eager"](inputs)["out"]
    assert torch.allclose(got.double(), out, atol=1e-5)


def test_global_pooling_reads_rows_in_words_of_16_bytes_without_spills():
    kernel = load("adaptive_pooling")
    for large in kernel.workloads()[1:3]:
        assert "v4.b32" in assemble(kernel, large)
