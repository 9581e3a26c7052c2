"""The nearest of some centers to every point, and its distance."""

from __future__ import annotations

import random

import pytest
import torch
from spaces_devices import H200, MI300X, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
USUAL = {**TILE, "norms": "launch", "minimum": "pairs"}


def workload(rows: int, centers: int, dim: int, dtype: str = "float32", **dims: object) -> Workload:
    return Workload.of(rows=rows, centers=centers, dim=dim, dtype=dtype, **dims)


def test_the_nearest_center_is_found_whatever_the_sizes():
    jobs = []
    for rows, centers, dim, dtype in (
        (1, 1, 16, "float32"),
        (37, 71, 45, "bfloat16"),
        (33, 64, 64, "float16"),
        (5, 130, 33, "float32"),
    ):
        small = workload(rows, centers, dim, dtype)
        for norms in ("launch", "kernel"):
            # The tile holds the coordinates whole, or takes several steps.
            for block_k in (16, 64):
                minimum = "pairs" if block_k == 16 else "places"
                config = {**USUAL, "norms": norms, "BLOCK_K": block_k, "minimum": minimum}
                config["num_stages"] = 2 if norms == "launch" else 1
                if dtype == "float32":
                    config |= {"precision": "ieee", "recompute": norms == "kernel"}
                jobs.append(("nearest_center", small, config))
    assert wrong(jobs) == []


def test_ranges_of_center_are_combined():
    jobs = []
    for centers in (71, 130):
        small = workload(37, centers, 32)
        for splits in (2, 4, 16):
            for recompute in (False, True):
                config = {**USUAL, "precision": "ieee", "recompute": recompute, "splits": splits}
                jobs.append(("nearest_center", small, config))
    assert wrong(jobs) == []


def test_the_nearest_center_is_clear():
    """By more than products in TF32 may be wrong, so that the index is the same in all variants."""
    kernel = load("nearest_center")
    for centers, dim in ((1024, 128), (512, 32), (500, 768)):
        inputs = kernel.make_inputs(workload(2000, centers, dim), 1, "cpu")
        distances = torch.cdist(inputs["x"].double(), inputs["centers"].double()) ** 2
        nearest, second = distances.topk(2, largest=False).values.T
        assert float((second - nearest).min()) > 0.02
        assert 0.5 < float(nearest.mean()) < 1.5


def test_a_wrong_center_is_refused():
    kernel, small = load("nearest_center"), workload(100, 257, 32)
    expected = kernel.reference(small, kernel.make_inputs(small, 1, "cpu"))["index"].double()
    bound = kernel.tolerance(small).elementwise * (1 + expected)
    assert float(bound.max()) < 0.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_baselines_agree_with_the_reference(dtype):
    kernel, small = load("nearest_center"), workload(50, 37, 40, dtype)
    inputs = kernel.make_inputs(small, 1, "cpu")
    expected = kernel.reference(small, inputs)
    for name, baseline in kernel.baselines(small).items():
        if name.startswith("compile"):
            continue
        got = baseline(inputs)
        assert torch.equal(got["index"], expected["index"])
        assert torch.allclose(got["distance"].double(), expected["distance"], rtol=1e-4)


def test_products_use_tensor_cores_without_spills():
    kernel = load("nearest_center")
    for large in kernel.workloads()[:2]:
        config = kernel.default_config(large, H200)
        *_, launch = kernel.launches(large, config, meta_tensors(kernel, large, config))
        built = build(launch, H200)
        assert "wgmma.mma_async" in built.asm["ptx"]
        assert "cp.async" in built.asm["ptx"]
        assert spilled_bytes(built) == 0
        assert built.metadata.shared <= H200.shared_bytes


def test_products_in_tf32_need_a_distance_of_their_own_or_a_tolerance():
    kernel, large = load("nearest_center"), workload(100_000, 1024, 128)
    rough = {"precision": ["tf32"], "recompute": [False]}
    assert kernel.space(large).bind(large, H200).restrict(rough).size() == 0
    admitted = large.with_dims(tolerance=8e-3)
    assert kernel.space(admitted).bind(admitted, H200).restrict(rough).size() > 0
    usual = kernel.default_config(large, H200)
    assert (usual["precision"], usual["recompute"]) == ("tf32", True)
    assert kernel.default_config(large, MI300X)["precision"] == "ieee"


def test_only_few_points_split_the_centers():
    kernel = load("nearest_center")
    splits = []
    for each in (workload(1_500_000, 1024, 128), workload(256, 16384, 256)):
        bound = kernel.space(each).bind(each, H200)
        found = bound.sample(random.Random(1), 200)
        splits.append(max(config.get("splits", 1) for config in found))
    assert splits == [1, 16]


def test_few_points_split_the_center_without_tuning():
    kernel = load("nearest_center")
    few, many = workload(256, 16384, 256, "bfloat16"), workload(65_536, 16384, 256, "bfloat16")
    assert kernel.default_config(few, H200)["splits"] == 16
    assert kernel.default_config(many, H200)["splits"] == 1


def test_points_of_few_coordinates_are_refused():
    with pytest.raises(WorkloadError) as caught:
        load("nearest_center").check_workload(workload(100, 10, 3))
    assert "fewer than 16 coordinates" in f"{caught.value.message}"
    assert "zeros" in f"{caught.value.hint}"
