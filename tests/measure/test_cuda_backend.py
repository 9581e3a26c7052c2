"""The CUDA backend from artifact to measurement, on a real GPU."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest
from measure_child import Child

from search_spaces.records import Status, Workload, config_key
from tuner.base.log_ratio import EQUAL
from workers.compiling import build
from workers.job_records import (
    Artifact,
    BuildJob,
    Failure,
    Measurement,
    MeasurementProtocol,
    Mode,
    Timing,
)

pytestmark = [
    pytest.mark.gpu,
]

WORKLOAD = Workload.of(n=1 << 22, dtype="float32")
PROTOCOL = MeasurementProtocol(final_pairs=20, warm_ms=20.0)


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    child = Child("cuda", "TritonAffine", tmp_path_factory.mktemp("cache"))
    yield child
    child.close()


@pytest.fixture(scope="module")
def built(child, tmp_path_factory):
    """Artifacts of configs, compiled in a process that has no part in the measuring."""
    cache, known = tmp_path_factory.mktemp("builder"), {}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as builder:

        def artifact(**config) -> Artifact:
            key = config_key(config)
            if key not in known:
                ref = child.job(WORKLOAD).kernel
                order = BuildJob("build", ref, WORKLOAD, config, child.device)
                known[key] = builder.submit(build, order, cache).result()
                assert isinstance(known[key], Artifact), known[key]
            return known[key]

        yield artifact


def _measure(child, *candidates, workload=WORKLOAD, **given) -> Measurement:
    found = child.measure(workload, *candidates, **{"protocol": PROTOCOL, **given})
    assert isinstance(found, Measurement), found
    return found


def _said(timing):
    return timing.log_ratio.verdict()


def test_a_screening_launches_without_compiling_and_finds_the_slower(child, built):
    slow, fast = built(block=1024, repeat=40), built(block=1024)
    found = _measure(child, slow, fast)
    candidate, incumbent = found.outcomes
    assert (found.compiled, found.method, found.cache) == (0, "graph", "cold")
    assert candidate.log_ratio.value > math.log(PROTOCOL.cap)
    assert len(candidate.samples_us) == len(incumbent.samples_us) == PROTOCOL.pairs[0]
    assert 0 <= candidate.error < 1e-5
    assert found.clocks["sm_mhz"] > 0
    assert found.clocks["power_w"] > 0
    winner, loser = _measure(child, fast, slow).outcomes
    assert _said(winner) == "faster"
    assert len(winner.samples_us) == len(loser.samples_us) == PROTOCOL.pairs[-1]


def test_identical_variants_are_not_declared_different(child, built):
    artifact = built(block=1024)
    for method in ("events", "graph", "graph", "cupti"):
        protocol = replace(PROTOCOL, method=method)
        found = _measure(child, artifact, artifact, protocol=protocol)
        timing = found.outcomes[0]
        assert found.method == method
        assert _said(timing) in ("same", "undecided"), timing


def test_a_batch_shares_its_incumbent_and_its_failures_stay_in_place(child, built):
    field = [built(block=512), built(block=256, fault="mutate"), built(block=1024, repeat=40)]
    found = _measure(child, *field, built(block=1024))
    good, wrong, slow, incumbent = found.outcomes
    assert isinstance(wrong, Failure)
    assert len(slow.samples_us) < len(good.samples_us) == len(incumbent.samples_us)
    assert found.timing_s <= found.device_s


def test_rotating_buffers_are_as_cold_as_flushed_ones(child, built):
    artifact = built(block=1024)
    small = Workload.of(n=1 << 20, dtype="float32")
    median_us = {}
    for cache in ("cold", "rotate", "warm"):
        found = _measure(child, artifact, workload=small, protocol=replace(PROTOCOL, cache=cache))
        assert found.cache == cache
        median_us[cache] = found.outcomes[0].median_us
    assert median_us["warm"] < median_us["rotate"] < 1.3 * median_us["cold"]


def test_the_device_is_calibrated(child):
    found = child.calibration()
    assert 0 < found.quantum_us < 1
    assert {"events", "graph", "events unflushed", "graph unflushed"} == set(found.overhead_us)
    assert found.copy_bytes_per_us > 100_000
    assert found.flops_per_us["bfloat16"] > found.flops_per_us["float32"] > 0


def test_what_no_builder_built_is_counted(child):
    config = {"block": 2048, "repeat": 2}
    assert _measure(child, config).compiled == 1


def test_a_warm_cache_is_faster_than_a_cold_one(child, built):
    small = Workload.of(n=1 << 20, dtype="float32")
    artifact = built(block=1024)
    cold = _measure(child, artifact, workload=small)
    warm = _measure(child, artifact, workload=small, protocol=MeasurementProtocol(cache="warm"))
    assert (cold.cache, warm.cache) == ("cold", "warm")
    assert warm.outcomes[0].median_us < cold.outcomes[0].median_us


def test_a_race_and_a_confirmation_against_baselines(child, built):
    field = [built(block=512), built(block=1024, via="scratch"), built(block=1024, repeat=40)]
    race = _measure(child, *field, mode=Mode.RACE)
    assert race.compiled == 0
    counts = [len(timing.samples_us) for timing in race.outcomes]
    assert counts[0] >= PROTOCOL.round_pairs > counts[2]
    assert race.outcomes[0].log_ratio == EQUAL
    assert _said(race.outcomes[2]) == "slower"
    names = ("eager", "wrong", "raises")
    confirm = _measure(child, field[0], mode=Mode.CONFIRM, baselines=names)
    eager = confirm.baselines["eager"]
    assert isinstance(eager, Timing)
    assert eager.log_ratio.value == pytest.approx(
        math.log(eager.median_us / confirm.outcomes[0].median_us), abs=0.05
    )
    assert confirm.baselines["wrong"].status is Status.CORRECTNESS
    assert confirm.baselines["raises"].status is Status.RUNTIME
    assert confirm.compiled == 0


def test_verification_includes_the_odd_shape_and_times_nothing(child, built):
    found = _measure(child, built(block=1024), mode=Mode.VERIFY)
    (outcome,) = found.outcomes
    assert (outcome.median_us, outcome.samples_us, found.compiled) == (0.0, (), 0)
    assert 0 <= outcome.error < 1e-5


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("partial", "output `y` not written: 5 of"),
        ("after", "wrote outside `y`: guard band after it changed"),
        ("before", "wrote outside `y`: guard band before it changed"),
        ("mutate", "input `x` was modified"),
        ("constant", "relative error"),
        ("nan", "cannot match: 1 NaN"),
        ("precision", "relative error"),
        ("one_element", "of `y`"),
    ],
)
def test_a_fault_is_refused_with_its_name(child, built, fault, reason):
    outcomes = _measure(child, built(block=256, fault=fault), built(block=1024)).outcomes
    assert isinstance(outcomes[0], Failure)
    assert outcomes[0].status is Status.CORRECTNESS
    assert reason in outcomes[0].message
    assert isinstance(outcomes[1], Timing)


def test_writing_beyond_the_scratch_is_refused(child, built):
    (failure,) = _measure(child, built(block=256, via="scratch", fault="scratch")).outcomes
    assert "wrote outside `scratch s`" in failure.message


def test_a_time_below_the_physical_floor_is_refused(child, built):
    impossible = WORKLOAD.with_dims(bytes=1 << 40)
    (failure,) = _measure(child, built(block=1024), workload=impossible).outcomes
    assert failure.status is Status.CORRECTNESS
    assert "faster than the device can move its bytes" in failure.message
    possible = WORKLOAD.with_dims(bytes=8 << 22)
    assert isinstance(_measure(child, built(block=1024), workload=possible).outcomes[0], Timing)


def test_an_illegal_access_poisons_the_backend_and_blames_its_variant_alone(built, tmp_path):
    child = Child("cuda", "TritonAffine", tmp_path)
    try:
        bad, good = built(block=256, fault="illegal"), built(block=1024)
        found, poisoned = child.run(child.job(WORKLOAD, bad, good, protocol=PROTOCOL))
        assert poisoned
        assert isinstance(found, Measurement)
        failure, incumbent = found.outcomes
        assert isinstance(failure, Failure)
        assert failure.status is Status.RUNTIME
        assert "illegal memory access" in failure.message
        assert isinstance(incumbent, Timing)
        assert incumbent.samples_us == ()
    finally:
        child.close()
