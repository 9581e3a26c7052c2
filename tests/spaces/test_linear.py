"""Linear layers: every epilogue, fused into the product and as a launch of its own."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble, meta_tensors
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.linear.baselines import library_layer
from search_spaces.kernels.linear.kernel import EPILOGUES
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 1, "num_warps": 2, "num_stages": 2}
KEEPS = [{"persistent": True, "subtiles": subtiles} for subtiles in (1, 2)]


def workload(epilogue: str, bias: bool = True, dtype: str = "float16", **sizes: int) -> Workload:
    usual = {"M": 21, "N": 43, "K": 71, **sizes}
    return Workload.of(epilogue=epilogue, bias=bias, dtype=dtype, **usual)


def test_every_epilogue_is_right_in_one_kernel_and_in_two():
    jobs = []
    for epilogue in EPILOGUES:
        odd, aligned = workload(epilogue), workload(epilogue, dtype="bfloat16", N=40, K=72)
        jobs.append(("linear", odd, {"fused": True, **TILE}))
        jobs.append(("linear", odd, {"fused": False, **TILE, "SPLIT_K": 2}))
        for fused, keeps in ((True, KEEPS[1]), (True, {"persistent": False}), (False, KEEPS[0])):
            loads = {"loads": "descriptor", **keeps}
            jobs.append(("linear", aligned, {"fused": fused, **TILE, **loads}))
        if epilogue != "none":
            without = workload(epilogue, bias=False, dtype="float32", M=16, N=32, K=64)
            config = {**TILE, "loads": "pointer", "precision": "ieee", "SPLIT_K": 1}
            jobs += [("linear", without, {"fused": fused, **config}) for fused in (True, False)]
    assert wrong(jobs) == []


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_baselines_agree_with_the_reference(epilogue):
    kernel = load("linear")
    for bias in (True, False):
        if epilogue == "none" and not bias:
            continue
        small = workload(epilogue, bias, "float32")
        inputs = kernel.make_inputs(small, 1, "cpu")
        expected = kernel.reference(small, inputs)["out"]
        eager = kernel.baselines(small)["eager"](inputs)["out"]
        assert torch.allclose(eager.double(), expected, atol=1e-5)
        library = library_layer(small.with_dims(dtype="float16"))
        if library is not None:
            # cuBLASLt's gelu is the tanh form.
            close = 1e-3 if epilogue == "gelu" else 1e-5
            assert torch.allclose(library(*inputs.values()).double(), expected, atol=close)


def test_cublaslt_is_a_baseline_where_it_has_the_epilogue():
    kernel = load("linear")
    with_vendor = {
        (epilogue, bias)
        for epilogue in EPILOGUES
        for bias in (True, False)
        if "vendor" in kernel.baselines(workload(epilogue, bias))
    }
    always = {("residual", True), ("residual", False), ("none", False)}
    assert with_vendor == always | {(name, True) for name in ("none", "relu1", "gelu")}
    assert "vendor" not in kernel.baselines(workload("gelu", dtype="float32"))
    small = workload("relu1")
    with pytest.raises(RuntimeError, match="needs CUDA"):
        kernel.baselines(small)["vendor"](kernel.make_inputs(small, 1, "cpu"))


def test_default_configs_use_tensor_cores_and_do_not_spill():
    kernel = load("linear")
    for at in (0, 2, 6, 8):
        large = kernel.workloads()[at]
        config = kernel.default_config(large, H200)
        assert config["fused"]
        ptx = assemble(kernel, large, config)
        tall = config["BLOCK_M"] >= 64
        assert ("wgmma.mma_async" if tall else "mma.sync") in ptx, large.key


@pytest.mark.parametrize("keeps", [{"persistent": False}, *KEEPS])
@pytest.mark.parametrize("epilogue", ["swiglu", "residual"])
def test_descriptor_tiles_with_epilogues_do_not_spill(epilogue, keeps):
    kernel = load("linear")
    large = workload(epilogue, False, "bfloat16", M=4096, N=4096, K=4096)
    config = {"fused": True, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}
    config |= {"num_warps": 8, "num_stages": 3, "loads": "descriptor", **keeps}
    assert "wgmma.mma_async" in assemble(kernel, large, config)


def test_only_separate_epilogues_add_the_parts_of_a_split_product():
    kernel, slender = load("linear"), workload("residual", dtype="bfloat16", M=16, N=4096, K=8192)
    points = list(kernel.space(slender).bind(slender, H200).enumerate())
    assert {point["fused"] for point in points} == {True, False}
    assert not any(point["fused"] for point in points if point.get("SPLIT_K", 1) > 1)
    split = next(point for point in points if point.get("SPLIT_K") == 4)
    assert kernel.scratch(slender, split)["product"].shape == (4, 16, 4096)
    tensors = meta_tensors(kernel, slender, split)
    first, second = kernel.launches(slender, split, tensors)
    assert (first.kwargs["EPILOGUE"], second.kwargs["EPILOGUE"]) == ("none", "residual")


def test_an_unknown_epilogue_is_refused():
    with pytest.raises(WorkloadError, match="did you mean 'gelu'"):
        load("linear").check_workload(workload("gelus"))
