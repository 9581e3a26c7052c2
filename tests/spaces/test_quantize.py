"""Quantization to float8 and int8 by rows, blocks and whole tensors, and back."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, MI300X, build, meta_tensors, spilled_bytes
from spaces_interpret import interpret, wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.codes import FLOAT8, LARGEST_CODE, random_codes
from search_spaces.kernels.quantize.space import SCALES
from search_spaces.records import Workload
from search_spaces.registry import load
from workers.device import offline

pytestmark = pytest.mark.family

GROUPS = {"num_warps": 2, "GROUPS": 2, "steps": 1, "stages": 1, "stream": False}
CONFIGS = {
    "row": [
        {**GROUPS, "BLOCK": 1024},
        {**GROUPS, "BLOCK": 1024, "GROUPS": 1, "steps": 2, "stages": 2, "stream": True},
        # Rows longer than the block are read twice.
        {**GROUPS, "BLOCK": 256, "GROUPS": 1, "stages": 3},
    ],
    "block128": [GROUPS, {**GROUPS, "GROUPS": 4, "steps": 2, "stages": 2}],
    "tensor": [
        {"num_warps": 4, "BLOCK": 1024, "parts": 4, "stages": 1, "steps": 2, "reversed": True},
        {"num_warps": 4, "BLOCK": 2048, "parts": 1, "stages": 2, "steps": 1, "reversed": False},
    ],
}


def workload(scales: str, to: str = FLOAT8, dtype: str = "bfloat16", **sizes: int) -> Workload:
    usual = {"rows": 5, "cols": 701}
    return Workload.of(**{**usual, **sizes}, scales=scales, to=to, dtype=dtype)


def ways(to: str) -> list[dict[str, str]]:
    return [{"convert": way} for way in ("hardware", "bits")] if to == FLOAT8 else [{}]


@pytest.mark.parametrize("scales", SCALES)
def test_codes_are_those_of_exact_division(scales):
    jobs = [
        ("quantize", workload(scales, to, dtype, **sizes), {**config, **way})
        for to in LARGEST_CODE
        for dtype, sizes in (("bfloat16", {}), ("float32", {"cols": 512}), ("float16", {"rows": 1}))
        for config in CONFIGS[scales]
        for way in ways(to)
    ]
    # Codes and scales are the reference's, also those of values between two codes.
    assert [found["error"] for found in interpret(jobs)] == [0.0] * len(jobs)


def test_small_and_extreme_values_have_codes():
    kernel, small = load("quantize"), workload("row", dtype="float32", rows=1, cols=8)
    x = torch.tensor([[448.0, 0.0, 2**-9, 2**-10, 3 * 2**-10, -0.017, 17.0, -1e-30]])
    got = kernel.reference(small, {"x": x})
    assert got["scale"].item() == 1.0
    assert got["q"].tolist() == [[448.0, 0.0, 2**-9, 0.0, 2**-8, -0.017578125, 16.0, 0.0]]
    zeros = kernel.reference(small, {"x": torch.zeros(1, 8)})
    assert zeros["q"].tolist() == [[0.0] * 8]
    assert zeros["scale"].item() > 0


@pytest.mark.parametrize("scales", SCALES)
def test_codes_become_numbers_again(scales):
    jobs = []
    for codes in LARGEST_CODE:
        for dtype, cols in (("bfloat16", 701), ("float32", 512)):
            small = Workload.of(rows=9, cols=cols, scales=scales, codes=codes, dtype=dtype)
            lengths = [{}] if scales == "block128" else [{"LENGTH": 256}, {"LENGTH": 1024}]
            jobs += [
                ("dequantize", small, {"PIECES": 4, "num_warps": 2, **length, **way})
                for length in lengths
                for way in ways(codes)
            ]
    assert wrong(jobs) == []


@pytest.mark.parametrize("scales", SCALES)
def test_largest_magnitudes_are_exact(scales):
    jobs = []
    for config in CONFIGS[scales]:
        kept = {name: value for name, value in config.items() if name not in ("steps", "reversed")}
        point = kept if scales == "tensor" else config
        small = Workload.of(rows=5, cols=701, scales=scales, dtype="float16")
        jobs.append(("amax", small, point))
    assert wrong(jobs) == []


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("to", list(LARGEST_CODE))
def test_baselines_agree_with_the_reference(scales, to):
    kernel, small = load("quantize"), workload(scales, to)
    inputs = kernel.make_inputs(small, 1, "cpu")
    expected, got = kernel.reference(small, inputs), kernel.baselines(small)["eager"](inputs)
    for name, spec in kernel.outputs(small).items():
        assert (tuple(got[name].shape), f"{got[name].dtype}") == (spec.shape, f"torch.{spec.dtype}")
        assert torch.equal(got[name].double(), expected[name])
    back = Workload.of(rows=5, cols=701, scales=scales, codes=to, dtype="float32")
    kernel = load("dequantize")
    x = kernel.baselines(back)["eager"](got)["out"]
    assert torch.equal(kernel.reference(back, got)["out"].float(), x)
    # A code is half a step from its number: 1/16 of it for float8, 1/254 of the largest for int8.
    off = (x - inputs["x"].float()).abs()
    half_a_step = inputs["x"].abs().float() / 16 if to == FLOAT8 else inputs["x"].abs().max() / 253
    assert bool((off <= half_a_step + 1e-2).all())


def test_drawn_codes_are_finite():
    for dtype in LARGEST_CODE:
        codes = random_codes((1000, 1000), dtype, torch.Generator().manual_seed(1), "cpu").float()
        assert bool(torch.isfinite(codes).all())
        assert codes.abs().max() <= LARGEST_CODE[dtype]


@pytest.mark.parametrize("scales", SCALES)
def test_words_are_whole_and_nothing_spills(scales):
    kernel = load("quantize")
    large = next(each for each in kernel.workloads() if each["scales"] == scales)
    config = kernel.default_config(large, H200)
    *_, launch = kernel.launches(large, config, meta_tensors(kernel, large, config))
    built = build(launch, H200)
    assert spilled_bytes(built) == 0
    assert ".v4.b32" in built.asm["ptx"]
    assert "cvt.rn.satfinite.e4m3x2.f32" in built.asm["ptx"]
    # A division for each scale, none for an element.
    assert built.asm["ptx"].count("div.rn.f32") <= 4


def test_targets_without_instructions_convert_by_integers():
    kernel = load("quantize")
    large = workload("row", rows=4096, cols=4096)
    for device, way in ((H200, "hardware"), (MI300X, "bits"), (offline("cuda:80"), "bits")):
        bound = kernel.space(large).bind(large, device)
        assert {config["convert"] for config in bound.enumerate()} == {way}
        assert kernel.default_config(large, device)["convert"] == way


def test_too_many_scales_are_refused():
    many = workload("block128", rows=2**31 - 1, cols=256)
    with pytest.raises(WorkloadError, match="there are 4294967294 scales"):
        load("quantize").check_workload(many)
