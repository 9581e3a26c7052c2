"""The radial basis function kernel of two sets of points."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, MI300X, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
USUAL = {**TILE, "norms": "launch", "GROUP_M": 8, "stream": False}


def workload(rows: int, cols: int, dim: int, dtype: str = "float32", **dims: object) -> Workload:
    return Workload.of(rows=rows, cols=cols, dim=dim, dtype=dtype, **dims)


def test_every_pair_has_its_value_whatever_the_sizes():
    jobs = []
    for rows, cols, dim, dtype in (
        (1, 1, 16, "float32"),
        (37, 71, 45, "bfloat16"),
        (64, 32, 64, "float16"),
        (100, 70, 33, "float32"),
    ):
        for config in (
            USUAL,
            {**USUAL, "norms": "kernel", "num_stages": 1, "stream": True},
            {**USUAL, "BLOCK_K": 64, "GROUP_M": 1, "norms": "kernel", "num_stages": 1},
        ):
            chosen = {**config, "precision": "ieee"} if dtype == "float32" else config
            jobs.append(("rbf_kernel", workload(rows, cols, dim, dtype), chosen))
    jobs.append(("rbf_kernel", workload(37, 71, 45, "float16", gamma=3.0), USUAL))
    assert wrong(jobs) == []


def test_values_are_of_the_order_of_one_whatever_gamma():
    kernel = load("rbf_kernel")
    for dims in ({}, {"gamma": 0.01}, {"gamma": 10.0}):
        small = workload(50, 60, 48, **dims)
        out = kernel.reference(small, kernel.make_inputs(small, 1, "cpu"))["out"]
        assert 0.1 < float(out.mean()) < 0.25


def test_baselines_agree_with_the_reference():
    kernel = load("rbf_kernel")
    for dtype in ("float32", "bfloat16"):
        small = workload(50, 60, 48, dtype)
        inputs = kernel.make_inputs(small, 1, "cpu")
        expected = kernel.reference(small, inputs)["out"]
        assert torch.allclose(
            expected, (-(torch.cdist(*(t.double() for t in inputs.values())) ** 2) / 48).exp()
        )
        for name in ("eager", "product"):
            got = kernel.baselines(small)[name](inputs)["out"]
            assert str(got.dtype) == f"torch.{dtype}"
            off = (got.double() - expected).abs()
            assert bool((off <= kernel.tolerance(small).elementwise * (1 + expected)).all())


def test_products_use_tensor_cores_without_spills():
    kernel = load("rbf_kernel")
    for large in kernel.workloads()[:2]:
        config = kernel.default_config(large, H200)
        *_, launch = kernel.launches(large, config, meta_tensors(kernel, large, config))
        built = build(launch, H200)
        assert "wgmma.mma_async" in built.asm["ptx"]
        assert "ex2.approx" in built.asm["ptx"]
        if large["dtype"] == "bfloat16":
            # No tile that is loaded ahead is read by anything but the product.
            assert "async_copy_global_to_local" in built.asm["ttgir"]
            assert "ttg.local_load" not in built.asm["ttgir"]
        assert "st.global.cs.v4.b32" in built.asm["ptx"]
        assert spilled_bytes(built) == 0
        assert built.metadata.shared <= H200.shared_bytes


@pytest.mark.parametrize("family", ["nearest_center", "rbf_kernel"])
def test_norms_from_tiles_of_the_product_are_not_pipelined(family):
    """Triton would load the next tile over one that a product is reading."""
    kernel = load(family)
    for large in kernel.workloads():
        for device in (H200, MI300X):
            bound = kernel.space(large).bind(large, device)
            assert bound.restrict({"norms": ["kernel"], "num_stages": [2, 3, 4]}).size() == 0
            assert bound.restrict({"norms": ["kernel"]}).size() > 0
            assert kernel.default_config(large, device)["norms"] == "launch"


def test_products_in_tf32_need_a_tolerance():
    kernel, large = load("rbf_kernel"), workload(60_000, 4096, 784)
    rough = {"precision": ["tf32"]}
    assert kernel.space(large).bind(large, H200).restrict(rough).size() == 0
    admitted = large.with_dims(tolerance=1e-3)
    assert kernel.space(admitted).bind(admitted, H200).restrict(rough).size() > 0


def test_points_of_few_coordinates_are_refused():
    with pytest.raises(WorkloadError, match="fewer than 16 coordinates"):
        load("rbf_kernel").check_workload(workload(100, 10, 3))
