"""The CPU backend from job to measurement, in a process of its own, with the real clock."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from measure_child import QUICK, Child

from search_spaces.records import Status, Toolchain, Workload, config_key
from tuner.base.log_ratio import EQUAL
from tuner.base.statistics import tie_set
from workers.job_records import BuildJob, Failure, Measurement, MeasurementProtocol, Mode, Timing

WORKLOAD = Workload.of(n=20_000, dtype="float32")
#: A confirmation takes its passes once, however close times are.
ONCE = replace(QUICK, precision=1e9)


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    child = Child("cpu", "CpuAffine", tmp_path_factory.mktemp("cache"))
    yield child
    child.close()


def _is_timed(outcome, samples):
    return (
        isinstance(outcome, Timing)
        and len(outcome.samples_us) == samples
        and min(outcome.samples_us) <= outcome.median_us <= max(outcome.samples_us)
        and outcome.median_us > 0
    )


@pytest.mark.slow
def test_a_screening_drops_a_hopeless_candidate_and_tells_the_ratio(child):
    found = child.measure(WORKLOAD, {"work": 12}, {"work": 1})
    candidate, incumbent = found.outcomes
    assert _is_timed(candidate, 3) or _is_timed(candidate, 6)
    assert len(incumbent.samples_us) == len(candidate.samples_us)
    # The interval of so few samples on a busy machine may be wide.
    assert candidate.log_ratio.low < candidate.log_ratio.value < candidate.log_ratio.high
    assert candidate.log_ratio.value > math.log(2)
    assert incumbent.log_ratio == EQUAL
    assert incumbent.name == config_key({"work": 1})
    assert 0 <= candidate.error < 1e-6
    assert (found.method, found.cache, found.compiled) == ("perf_counter", "warm", 0)
    assert found.device == child.device
    assert found.toolchain == child.toolchain
    assert found.device_s > 0


def test_identical_variants_are_not_declared_different(child):
    protocol = MeasurementProtocol(pairs=(3, 9, 40), warm_ms=20)
    twins = [child.artifact({"work": 4}), child.artifact({"work": 4}, binary_hash="twin")]
    said = []
    for _ in range(3):
        timing = child.measure(WORKLOAD, *twins, protocol=protocol).outcomes[0]
        said.append(timing.log_ratio.verdict())
    assert said.count("slower") < 3
    assert said.count("faster") < 3


def test_a_lone_candidate_is_timed_alone(child):
    found = child.measure(WORKLOAD, {"work": 1})
    assert _is_timed(found.outcomes[0], 6)
    assert found.outcomes[0].log_ratio == EQUAL


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("mutate", Status.CORRECTNESS, "input `x` was modified"),
        ("dtype", Status.CORRECTNESS, "output `y` is float64 (20000,), not float32 (20000,)"),
        ("missing", Status.CORRECTNESS, "output `y` is missing"),
        ("raise", Status.RUNTIME, "RuntimeError: boom"),
    ],
)
def test_a_fault_is_the_candidates_alone(child, fault, status, reason):
    candidate, incumbent = child.measure(WORKLOAD, {"fault": fault}, {"work": 1}).outcomes
    assert isinstance(candidate, Failure)
    assert candidate.status is status
    assert reason in candidate.message
    assert candidate.binary_hash
    assert isinstance(incumbent, Timing)
    assert not incumbent.samples_us


def measure_verified(child, config):
    """Without the gate, whose number of calls depends on how long they take."""
    artifact = child.artifact(config)
    return child.measure(
        WORKLOAD, artifact, {"work": 1}, verified=frozenset([artifact.binary_hash])
    )


def test_a_result_that_becomes_wrong_is_the_candidates_alone(child):
    candidate, incumbent = measure_verified(child, {"fault": "late", "after": 3}).outcomes
    assert isinstance(candidate, Failure)
    assert candidate.status is Status.CORRECTNESS
    assert "wrong in the timed loop: relative error" in candidate.message
    assert candidate.binary_hash
    assert isinstance(incumbent, Timing)
    assert incumbent.samples_us


def test_a_failing_incumbent_is_not_blamed_on_the_candidate(child):
    candidate, incumbent = child.measure(WORKLOAD, {"work": 1}, {"fault": "raise"}).outcomes
    assert isinstance(incumbent, Failure)
    assert _is_timed(candidate, 6)
    assert candidate.log_ratio == EQUAL


def test_an_error_while_timing_fails_the_job_and_not_the_process(child):
    found = measure_verified(child, {"fault": "raise_later", "after": 3})
    assert isinstance(found, Failure)
    assert "boom" in found.message
    assert isinstance(child.measure(WORKLOAD, {"work": 1}), Measurement)


def test_what_is_verified_is_not_checked_again(child):
    artifact = child.artifact({"work": 2})
    verified = frozenset([artifact.binary_hash])
    assert child.measure(WORKLOAD, artifact, verified=verified).outcomes[0].error == -1.0
    verify = child.measure(WORKLOAD, artifact, verified=verified, mode=Mode.VERIFY).outcomes[0]
    assert (verify.median_us, verify.samples_us) == (0.0, ())
    assert verify.error >= 0


def test_other_bits_in_a_repetition_are_refused_where_they_matter(child):
    free = child.measure(WORKLOAD, {"fault": "noise"}, mode=Mode.VERIFY).outcomes[0]
    assert free.deterministic is False
    same = replace(ONCE, numerics="deterministic")
    given = {"mode": Mode.CONFIRM, "baselines": ("eager", "noisy"), "protocol": same}
    found = child.measure(WORKLOAD, {"fault": "noise"}, {"work": 1}, **given)
    noisy, steady = found.outcomes
    assert (noisy.status, noisy.message) == (
        Status.CORRECTNESS, "another run on the same inputs gave other bits",
    )  # fmt: skip
    assert steady.deterministic
    assert found.baselines["noisy"].message == noisy.message
    assert isinstance(found.baselines["eager"], Timing)
    # What another protocol has checked is checked again.
    assert isinstance(
        child.measure(WORKLOAD, {"work": 1}, **{**given, "protocol": ONCE}).baselines["noisy"],
        Timing,
    )
    again = child.measure(WORKLOAD, {"work": 1}, **given)
    assert again.baselines["noisy"].message == noisy.message


@pytest.mark.slow
def test_a_race_ranks_its_field_and_keeps_failures_in_place(child):
    field = [{"work": 1}, {"fault": "raise"}, {"work": 16}, {"work": 1, "again": True}]
    found = child.measure(WORKLOAD, *field, mode=Mode.RACE)
    first, failed, slow, twin = found.outcomes
    assert isinstance(failed, Failure)
    assert all(_is_timed(timing, len(timing.samples_us)) for timing in (first, slow, twin))
    assert len(slow.samples_us) in (4, 8)
    assert first.log_ratio == EQUAL
    assert slow.log_ratio.value > 0
    ties = tie_set({timing.name: timing.samples_us for timing in (first, slow, twin)})
    assert config_key({"work": 16}) not in ties.members


def test_a_confirmation_times_baselines_and_checks_them(child):
    names = ("eager", "rounded", "wrong", "raises", "missing", "no such thing")
    found = child.measure(WORKLOAD, {"work": 1}, mode=Mode.CONFIRM, baselines=names, protocol=ONCE)
    assert list(found.baselines) == list(names)
    eager = found.baselines["eager"]
    # Three passes where these tell that it differs clearly.
    assert _is_timed(eager, 3) or _is_timed(eager, 8)
    # A baseline rounds as it does, and less than four times what a variant may be off.
    rounded = found.baselines["rounded"]
    assert _is_timed(rounded, 3) or _is_timed(rounded, 8)
    assert found.baselines["eager"].name == "eager"
    assert found.baselines["wrong"].status is Status.CORRECTNESS
    assert re.fullmatch(
        r"baseline `raises`: RuntimeError: this library has no such kernel "
        r"\(measure_kernels\.py:\d+\)",
        found.baselines["raises"].message,
    )
    assert "is missing" in found.baselines["missing"].message
    assert "it has: eager, wrong" in found.baselines["no such thing"].message
    assert _is_timed(found.outcomes[0], 8)
    assert not child.measure(WORKLOAD, {"work": 1}, baselines=names).baselines


def test_every_candidate_runs_on_its_own_threads(child):
    field = [{"fault": "threads", "threads": count} for count in (1, 2, 1)]
    field[2]["again"] = True
    found = child.measure(WORKLOAD, *field, mode=Mode.CONFIRM, protocol=ONCE)
    assert all(_is_timed(timing, len(timing.samples_us)) for timing in found.outcomes)
    assert all(len(timing.samples_us) >= 3 for timing in found.outcomes)


def test_what_was_built_elsewhere_is_refused_in_words(child):
    other = child.artifact({"work": 1}, toolchain=Toolchain(python="3.11.2", torch="1.0"))
    failure = child.measure(WORKLOAD, other).outcomes[0]
    assert failure.status is Status.RUNTIME
    assert "torch 1.0" in failure.message
    foreign = child.artifact({"work": 1}, target="cuda:90")
    assert "built for cuda:90, but the device is cpu:" in (
        child.measure(WORKLOAD, foreign).outcomes[0].message
    )


def test_a_damaged_artifact_is_a_failure(child):
    damaged = child.artifact({"work": 1}, files={"inductor/x.so": b"no zlib"}, binary_hash="d")
    assert "damaged" in child.measure(WORKLOAD, damaged).outcomes[0].message


def test_a_kernel_that_cannot_be_loaded_fails_the_job_in_one_line(child):
    job = child.job(WORKLOAD, {"work": 1})
    lost = type(job)("job", type(job.kernel)("nowhere.py:Kernel"), WORKLOAD, job.candidates)
    found, poisoned = child.run(lost)
    assert isinstance(found, Failure)
    assert "there is no file nowhere.py" in found.message
    assert not poisoned


def test_a_compiled_variant_is_loaded_without_the_compiler(child, tmp_path):
    """Built in another process, installed and timed here: nothing is compiled on the way."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    config = {"work": 1, "compile": True}
    job = child.job(WORKLOAD, config)
    order = BuildJob("build", job.kernel, WORKLOAD, config, child.device)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as builder:
        from workers.compiling import build

        artifact = builder.submit(build, order, tmp_path).result()
    assert not isinstance(artifact, Failure), artifact
    assert any(name.endswith(".so") for name in artifact.files)
    found = child.measure(WORKLOAD, artifact, {"work": 1}, protocol=QUICK)
    assert _is_timed(found.outcomes[0], len(found.outcomes[1].samples_us))
    assert found.compiled == 0
    again = child.measure(WORKLOAD, child.artifact({"work": 3, "compile": True}))
    assert again.compiled == 1, "what no builder built is counted"
