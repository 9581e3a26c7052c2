"""Attention in Gluon: built for Hopper without a GPU, offered nowhere else, and not interpreted."""

from __future__ import annotations

import re

import pytest
from spaces_devices import H200, MI300X, build, meta_tensors, resources

from search_spaces.kernels.attention.kernel import DTYPES, HEAD_DIMS
from search_spaces.records import Device, Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

A100 = Device("cuda", "NVIDIA A100", "cuda:80", 108, 80 << 30, 166912, 65536)
B200 = Device("cuda", "NVIDIA B200", "cuda:100", 148, 180 << 30, 232448, 65536)
LARGE = Workload.of(batch=2, heads=32, sequence=4096, head_dim=128, causal=True, dtype="bfloat16")


@pytest.fixture(scope="module")
def attention():
    return load("attention")


def gluon(attention, workload=LARGE, device=H200):
    bound = attention.space(workload).bind(workload, device)
    return [config for config in bound.enumerate() if config["dialect"] == "gluon"]


def built(attention, workload, config):
    (launch,) = attention.launches(workload, config, meta_tensors(attention, workload, config))
    return launch, build(launch, H200)


def test_only_hopper_is_offered_gluon(attention):
    assert gluon(attention)
    for device in (A100, B200, MI300X):
        assert not gluon(attention, device=device)
    config = {**gluon(attention)[0]}
    bound = attention.space(LARGE).bind(LARGE, A100)
    assert "cuda:90" in (bound.why_not(config) or "")


@pytest.mark.parametrize(
    ("version", "there"),
    [("3.5.1", False), ("3.6.0", True), ("3.9.1+git1", True), ("3.10.0", False), ("", False)],
)
def test_a_triton_without_this_gluon_is_a_constraint(attention, monkeypatch, version, there):
    import triton

    config = gluon(attention)[0]
    monkeypatch.setattr(triton, "__version__", version)
    assert bool(gluon(attention)) == there
    reason = attention.space(LARGE).bind(LARGE, H200).why_not(config)
    assert (reason is None) == there
    assert there or "Triton 3.6" in (reason or "")
    bound = attention.space(LARGE).bind(LARGE, H200)
    assert bound.feasible(attention.default_config(LARGE, H200))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("causal", [False, True])
def test_products_stay_in_flight_without_spills(attention, head_dim, causal):
    """One warp loads by TMA; consumers hold more registers than it; two products at a time."""
    workload = LARGE.with_dims(head_dim=head_dim, causal=causal)
    configs = gluon(attention, workload)
    config = max(configs, key=lambda c: (c["BLOCK_N"], c["consumers"], c["num_stages"]))
    launch, binary = built(attention, workload, config)
    ptx, consumers = binary.asm["ptx"], config["consumers"]
    found = resources(binary)
    assert found["LOCAL"] == 0
    assert binary.metadata.num_warps == 4 * (consumers + 1)
    assert binary.metadata.shared <= H200.shared_bytes
    assert found["REG"] * 128 * (consumers + 1) <= H200.registers
    registers = re.findall(r"setmaxnreg\.inc\S+\s+(\d+)", ptx)
    assert f"{launch.kwargs['REGISTERS']}" in registers
    # The loops of whole and of masked blocks wait for the scores while values are multiplied.
    assert len(re.findall(r"wgmma\.wait_group\S+\s+1;", ptx)) == 2 * consumers
    assert "cp.async.bulk.tensor" in ptx


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_and_odd_sizes_build(attention, dtype):
    for sequence, head_dim in ((33, 128), (1000, 64)):
        workload = LARGE.with_dims(sequence=sequence, head_dim=head_dim, dtype=dtype)
        configs = gluon(attention, workload)
        assert configs
        _, binary = built(attention, workload, configs[0])
        assert "cp.async.bulk.tensor" in binary.asm["ptx"]


def test_tiles_of_a_persistent_launch_are_all_taken(attention):
    """Every tile has a turn, whatever number of programs there are."""
    for config in gluon(attention):
        (launch,) = attention.launches(LARGE, config, meta_tensors(attention, LARGE, config))
        turns, heads = launch.args[-1], launch.args[4]
        tiles = -(-4096 // (64 * config["consumers"])) * heads
        assert turns * launch.grid[0] >= tiles > (turns - 1) * launch.grid[0]
        assert (turns == 1) != config["persistent"]


def test_persistent_programs_take_whole_blocks_of_keys_of_long_heads(attention):
    for dims, there in (({}, True), ({"sequence": 4095}, False), ({"head_dim": 64}, False)):
        configs = gluon(attention, LARGE.with_dims(**dims))
        assert {config["persistent"] for config in configs} == {False, there}
