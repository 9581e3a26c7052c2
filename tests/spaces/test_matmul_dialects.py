"""matmul in Gluon: where it is offered, and what its compiled code does."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import triton
import yaml
from spaces_devices import H200, MI300X, assemble
from triton.backends.nvidia.compiler import get_ptxas

from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

ROOT = Path(__file__).parents[2]
LARGE = Workload.of(M=4096, N=4096, K=4096, dtype="bfloat16")
SHARED = {
    "loads": "gluon",
    "num_warps": 4,
    "BLOCK_M": 128,
    "BLOCK_N": 256,
    "BLOCK_K": 64,
    "GROUP_M": 8,
}
SHARED |= {"num_stages": 4, "consumers": "share", "parts": 4}
TURNS = {**SHARED, "BLOCK_N": 128, "num_stages": 5, "consumers": "turns", "parts": 2}
DEEP = {**SHARED, "BLOCK_M": 256, "BLOCK_N": 128, "num_stages": 3, "parts": 1}


def bound(workload=LARGE, device=H200):
    return load("matmul").space(workload).bind(workload, device)


def ptxas_messages(ptx: str) -> str:
    """What the assembler says; it warns where it has to serialise wgmma instructions."""
    tool = get_ptxas(90).path
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [tool, "-v", "--gpu-name=sm_90a", str(source), "-o", f"{folder}/out"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("config", [SHARED, TURNS, DEEP], ids=["shared", "turns", "deep"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gluon_variants_multiply_asynchronously_without_spills(config, dtype):
    kernel, workload = load("matmul"), LARGE.with_dims(dtype=dtype)
    assert bound(workload).why_not(config) is None
    ptx = assemble(kernel, workload, config)
    assert "wgmma.wait_group.sync.aligned 1" in ptx
    assert "setmaxnreg.inc" in ptx
    assert "cp.async.bulk.tensor" in ptx
    messages = ptxas_messages(ptx)
    assert "Used 168 registers" in messages
    assert "wgmma" not in messages


def test_sizes_that_end_inside_a_tile_build_too():
    kernel, workload = load("matmul"), Workload.of(M=1001, N=1000, K=328, dtype="float16")
    config = next(c for c in bound(workload).enumerate() if c["loads"] == "gluon")
    assert "wgmma.mma_async" in assemble(kernel, workload, config)


def test_gluon_is_for_hopper():
    for target in ("cuda:80", "cuda:100"):
        device = replace(H200, target=target)
        assert "cuda:90" in bound(device=device).why_not(SHARED)
        assert not any(c["loads"] == "gluon" for c in bound(device=device).enumerate())
    assert not any(c["loads"] == "gluon" for c in bound(device=MI300X).enumerate())


@pytest.mark.parametrize("version", ["3.5.1", "4.0.0"])
def test_a_triton_without_the_known_gluon_leaves_the_other_dialect(version, monkeypatch):
    monkeypatch.setattr(triton, "__version__", version)
    assert "Triton 3.6" in bound().why_not(SHARED)
    assert {config["loads"] for config in bound().enumerate()} == {"pointer", "descriptor"}
    assert bound().feasible(load("matmul").default_config(LARGE, H200))


def test_products_that_gluon_cannot_take_stay_in_triton():
    for workload in (
        LARGE.with_dims(dtype="float32"),
        LARGE.with_dims(N=4097),
        LARGE.with_dims(M=32),
    ):
        assert "consumers" not in {item.name for item in bound(workload).parameters}


def test_consumers_do_not_spill_and_buffers_fit():
    few = {**SHARED, "num_stages": 2}
    assert bound().feasible(few)
    for wrong in ({"BLOCK_M": 256}, {"consumers": "turns"}, {"BLOCK_M": 64}):
        assert "spill" in bound().why_not({**few, **wrong})
    assert "shared memory" in bound().why_not({**SHARED, "parts": 1})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((4096, 4096, 4096), {"BLOCK_M": 128, "BLOCK_N": 256, "loads": "descriptor"}),
        ((1000, 1003, 997), {"BLOCK_M": 128, "BLOCK_N": 64, "SPLIT_K": 1}),
        ((32, 8192, 4096), {"BLOCK_M": 32, "BLOCK_N": 64, "SPLIT_K": 1}),
        ((256, 256, 65536), {"BLOCK_M": 64, "BLOCK_N": 64, "SPLIT_K": 8}),
    ],
)
def test_the_default_config_keeps_every_multiprocessor_busy(sizes, expected):
    workload = Workload.of(**dict(zip("MNK", sizes, strict=True)), dtype="bfloat16")
    config = load("matmul").default_config(workload, H200)
    assert config | expected == config
    assert config.get("loads") != "gluon"


def test_the_campaign_has_the_large_workloads():
    campaigns = yaml.safe_load((ROOT / "benchmarks" / "h200.yaml").read_text())["campaigns"]
    (task,) = campaigns["families_matmul"]["tasks"]
    measured = {Workload.from_mapping(item) for item in task["workloads"]}
    large = {
        workload
        for workload in load("matmul").workloads()
        if workload["dtype"] != "float32" and min(workload.size("M"), workload.size("N")) >= 1024
    }
    assert measured == large
    assert len(large) == 10
