"""The depthwise convolution: windows of any form, strips of any length."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.images import window_dims
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

CONFIGS = [
    {"BLOCK_P": block_p, "BLOCK_C": 16, "columns": columns, "num_warps": 1, "unroll": unroll}
    for block_p, columns, unroll in ((16, 1, False), (8, 4, True), (4, 8, False))
]


def workload(taps, stride=1, padding=0, dilation=1, **dims: object) -> Workload:
    usual = {"batch": 2, "height": 5, "width": 9, "channels": 21, "dtype": "float32"}
    return Workload.of(**{**usual, **window_dims(taps, stride, padding, dilation), **dims})


def test_windows_of_any_taps_stride_padding_and_dilation_are_convolved():
    cases = []
    for windows in (
        (1,),
        (3, 1, 1),
        (3, 2, 1),
        (5, 3, 0),
        (7, 1, 3),
        ((1, 4), 2, (0, 2)),
        (3, 1, 2, 2),
    ):
        small = workload(*windows)
        cases += [("depthwise_convolution", small, config) for config in CONFIGS]
    halves = workload(3, 1, 1, channels=24, dtype="bfloat16")
    assert wrong([*cases, ("depthwise_convolution", halves, CONFIGS[1])]) == []


def test_the_packed_weights_are_torch_s():
    kernel, small = load("depthwise_convolution"), workload((3, 5), 1, (1, 2))
    inputs = kernel.make_inputs(small, 1, "cpu")
    assert inputs["packed"].is_contiguous()
    assert torch.equal(inputs["packed"].permute(2, 0, 1), inputs["weight"][..., 0])


def test_an_impossible_window_is_refused():
    with pytest.raises(WorkloadError, match="larger than the padded image"):
        load("depthwise_convolution").check_workload(workload(11))


def test_defaults_read_two_channels_a_thread_and_do_not_spill():
    kernel = load("depthwise_convolution")
    for large in (kernel.workloads()[2], kernel.workloads()[8]):
        assert "ld.global.b16" not in assemble(kernel, large)


@pytest.mark.parametrize("at", [2, 8])
def test_images_are_read_in_words_of_16_bytes_without_spills(at):
    kernel = load("depthwise_convolution")
    large = kernel.workloads()[at]
    config = {**kernel.default_config(large, H200), "BLOCK_P": 16, "BLOCK_C": 64, "num_warps": 4}
    config["columns"] = 4
    text = assemble(kernel, large, config)
    assert "ld.global.v4.b32" in text
    assert "ld.global.b16" not in text
    assert "st.global.v4.b32" in text
