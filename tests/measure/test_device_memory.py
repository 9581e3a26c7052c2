"""Launches get the global memory they need: tensor descriptors created on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
from measure_child import Child
from triton.runtime import _allocation

from search_spaces.records import Workload
from workers.compiling import build
from workers.job_records import (
    Artifact,
    BuildJob,
    KernelRef,
    Measurement,
    MeasurementProtocol,
    Mode,
    Timing,
)
from workers.measure.triton_launch import provide_memory

KERNEL = KernelRef(f"{Path(__file__).parent / 'descriptor_kernels.py'}:Described")
WORKLOAD = Workload.of(dtype="float32")


def test_memory_has_the_requested_size():
    before = _allocation._allocator.get()
    with pytest.raises(RuntimeError, match="no allocator was set"):
        before(1000, 128, None)
    try:
        provide_memory("cpu")
        found = _allocation._allocator.get()(1000, 128, None)
    finally:
        _allocation._allocator.set(before)
    assert found.data_ptr() % 16 == 0
    assert found.untyped_storage().nbytes() >= 1000


def test_the_interpreter_creates_descriptors_too(tmp_path):
    child = Child("interpreter", "Described", tmp_path, module="descriptor_kernels")
    try:
        outcome = child.measure(WORKLOAD, {"block": 64}, mode=Mode.VERIFY).outcomes[0]
    finally:
        child.close()
    assert isinstance(outcome, Timing), outcome
    assert outcome.error >= 0


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["events", "graph", "cupti"])
def test_a_device_runs_kernels_with_descriptors(method, tmp_path):
    found = measured(tmp_path, {"block": 64}, method)
    assert isinstance(found.outcomes[0], Timing), found.outcomes[0]
    assert found.compiled == 0
    assert found.outcomes[0].note == ""


@pytest.mark.gpu
def test_a_launch_that_is_compiled_on_the_device_worker_says_why(tmp_path):
    found = measured(tmp_path, {"block": 64, "planted": True}, "events")
    assert found.compiled == 1
    assert found.outcomes[0].note == (
        "compiled on the device worker: `shifted`: "
        "option num_warps was 4 when built, is 8 when launched"
    )


def measured(tmp_path: Path, config: dict, method: str) -> Measurement:
    child = Child("cuda", "Described", tmp_path / "cache", module="descriptor_kernels")
    try:
        job = BuildJob("job", KERNEL, WORKLOAD, config, child.device)
        artifact = build(job, tmp_path / "builder")
        assert isinstance(artifact, Artifact), artifact
        protocol = MeasurementProtocol(method=method, final_pairs=8, warm_ms=1.0)
        found = child.measure(WORKLOAD, artifact, protocol=protocol)
    finally:
        child.close()
    assert isinstance(found, Measurement), found
    return found
