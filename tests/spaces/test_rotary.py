"""The rotary embedding of queries and keys, in both ways to pair elements."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import assemble
from spaces_interpret import wrong

from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

CONFIGS = [
    {"BLOCK_T": block_t, "BLOCK_H": block_h, "num_warps": 2}
    for block_t, block_h in ((1, 1), (1, 8), (4, 2), (8, 4))
]


def workload(interleaved: bool, **sizes: object) -> Workload:
    usual = {"tokens": 9, "q_heads": 6, "k_heads": 2, "head_dim": 64, "dtype": "float32"}
    return Workload.of(**{**usual, "interleaved": interleaved, **sizes})


@pytest.mark.parametrize("interleaved", [False, True])
def test_any_number_of_heads_and_tokens_is_rotated(interleaved):
    sizes = [{}, {"tokens": 1, "q_heads": 1, "k_heads": 1}, {"q_heads": 3, "k_heads": 7}]
    sizes += [{"head_dim": 128, "dtype": "bfloat16"}, {"head_dim": 256, "dtype": "float16"}]
    jobs = [
        ("rotary", workload(interleaved, **each), config) for each in sizes for config in CONFIGS
    ]
    assert wrong(jobs) == []


def test_a_rotation_keeps_the_length_of_each_pair():
    kernel = load("rotary")
    for interleaved in (False, True):
        small = workload(interleaved)
        inputs = dict(kernel.make_inputs(small, 1, "cpu"))
        out = kernel.reference(small, inputs)
        for name in ("q", "k"):
            before, after = inputs[name].double(), out[f"{name}_out"]
            assert torch.allclose(before.norm(dim=-1), after.norm(dim=-1), rtol=1e-5)
            assert not torch.allclose(before, after, rtol=0.1)


def test_baselines_agree_with_the_reference():
    kernel, small = load("rotary"), workload(True)
    inputs = kernel.make_inputs(small, 1, "cpu")
    expected, got = kernel.reference(small, inputs), kernel.baselines(small)["eager"](inputs)
    assert got.keys() == expected.keys() == kernel.outputs(small).keys()
    for name, tensor in got.items():
        assert torch.allclose(tensor.double(), expected[name], atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_heads_are_read_in_words_of_16_bytes_without_spills(interleaved):
    kernel = load("rotary")
    large = workload(interleaved, tokens=8192, q_heads=32, head_dim=128, dtype="bfloat16")
    assert "ld.global.v4.b32" in assemble(kernel, large)
