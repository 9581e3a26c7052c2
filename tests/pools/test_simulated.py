from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from made_up_spaces import synthesize

from search_spaces.recorded.recorded_kernel import load_kernel
from search_spaces.records import Status
from workers.backends.simulated.backend import SimulatedBackend
from workers.backends.simulated.build import simulate_build
from workers.job_records import (
    Artifact,
    BuildJob,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
    Timing,
)
from workers.processes.worker_lost import WorkerLost


class Recording:
    def __init__(self, folder, **arguments):
        self.space = synthesize(**arguments)
        self.space.save(folder / "space.json")
        self.kernel = load_kernel(folder / "space.json")
        self.ref = KernelRef(self.kernel.spec)

    def build(self, config):
        return simulate_build(
            BuildJob("b", self.ref, self.space.workload, config, self.kernel.device)
        )

    def artifacts(self):
        built = [self.build(entry.config) for entry in self.space.configs]
        return [result for result in built if isinstance(result, Artifact)]

    def job(self, *candidates, **changes):
        return replace(MeasureJob("m", self.ref, self.space.workload, candidates), **changes)


@pytest.fixture
def recording(tmp_path):
    return Recording(tmp_path, configs=120, failures=0.4, scenario="W1")


def measured(backend, job):
    result = backend.measure(job)
    assert isinstance(result, Measurement)
    return result


def test_builds_and_runs_end_as_recorded(recording):
    backend = SimulatedBackend()
    for entry in recording.space.configs:
        built = recording.build(entry.config)
        if entry.status in (Status.CONSTRAINTS, Status.COMPILE):
            assert isinstance(built, Failure)
            assert (built.status, built.message) == (entry.status, entry.message)
            continue
        assert isinstance(built, Artifact)
        assert built.binary_hash == entry.binary
        assert built.facts.registers == entry.registers
        outcome = measured(backend, recording.job(built)).outcomes[0]
        if entry.status is Status.CORRECT:
            assert isinstance(outcome, Timing)
            assert outcome.median_us == pytest.approx(entry.median_us, rel=0.1)
        else:
            assert isinstance(outcome, Failure)
            assert outcome.status is entry.status


def test_what_was_not_recorded_is_a_value(recording):
    built = recording.build({"BLOCK_M": 7})
    assert isinstance(built, Failure)
    assert built.status is Status.CONSTRAINTS


def test_samples_depend_on_seed_and_config_alone(recording):
    artifacts = recording.artifacts()
    good = [a for a in artifacts if recording.space[a.config].median_us][:2]
    job = recording.job(*good)
    first = measured(SimulatedBackend(seed=1, index=0), job)
    again = measured(SimulatedBackend(seed=1, index=5), replace(job, job_id="other"))
    other = measured(SimulatedBackend(seed=2), job)
    assert first == replace(again, clocks=first.clocks)  # but for the card
    assert first.outcomes != other.outcomes


def test_a_hopeless_candidate_is_dropped_early_and_interleaving_cancels_drift(tmp_path):
    recording = Recording(tmp_path, configs=120, scenario="W5")
    by_time = sorted(recording.artifacts(), key=lambda a: recording.space[a.config].median_us)
    best, close, slow = by_time[0], by_time[1], by_time[-1]
    backend = SimulatedBackend()
    screening = measured(backend, recording.job(slow, close, best, incumbent=True))
    dropped, contender, incumbent = screening.outcomes
    assert len(dropped.samples_us) == 1  # beyond any doubt
    assert len(contender.samples_us) == len(incumbent.samples_us) >= 9
    race = measured(backend, recording.job(best, close, mode=Mode.CONFIRM)).outcomes[1]
    truth = math.log(
        recording.space[close.config].median_us / recording.space[best.config].median_us
    )
    assert race.log_ratio.value == pytest.approx(truth, abs=0.01)
    assert len(race.samples_us) == MeasurementProtocol().final_pairs


def test_baselines_verification_and_raw_samples(recording, tmp_path):
    good = next(a for a in recording.artifacts() if recording.space[a.config].median_us)
    backend = SimulatedBackend()
    job = recording.job(good, mode=Mode.CONFIRM, baselines=("eager", "vendor", "none"))
    result = measured(backend, job)
    assert result.baselines["eager"].median_us == pytest.approx(150, rel=0.1)
    assert isinstance(result.baselines["none"], Failure)
    verified = measured(backend, recording.job(good, mode=Mode.VERIFY)).outcomes[0]
    assert (verified.median_us, verified.samples_us) == (0.0, ())
    assert verified.error >= 0
    known = recording.job(good, verified=frozenset({good.binary_hash}))
    assert measured(backend, known).outcomes[0].error == -1

    entry = replace(recording.space[good.config], samples_us=(5.0, 6.0, 7.0))
    space = replace(recording.space, configs=(entry,), default=entry.config)
    space.save(tmp_path / "raw.json")
    raw = replace(job, kernel=KernelRef(f"recorded:{tmp_path}/raw.json"), baselines=())
    assert set(measured(backend, raw).outcomes[0].samples_us) <= {5.0, 6.0, 7.0}


def test_faults_come_in_their_shares_and_a_worker_is_lost_once_per_config(recording, tmp_path):
    shares = {"crash": 0.1, "hang": 0.1, "wrong": 0.2, "lost": 0.3}
    backend = SimulatedBackend(**shares, lost_dir=str(tmp_path / "lost"))
    faults = [backend.fault({"x": value}) for value in range(3000)]
    for name, share in shares.items():
        assert faults.count(name) / 3000 == pytest.approx(share, abs=0.05)
    lost = next(
        a
        for a in recording.artifacts()
        if recording.space[a.config].median_us and backend.fault(a.config) == "lost"
    )
    with pytest.raises(WorkerLost):
        backend.measure(recording.job(lost))
    assert isinstance(measured(backend, recording.job(lost)).outcomes[0], Timing)


def test_a_simulated_child_loads_no_torch():
    script = (
        "import sys, workers.measure.device_runner, "
        "workers.compiling.process_builder, workers.backends.simulated.backend\n"
        "heavy = {'torch', 'triton', 'ray', 'numpy', 'optuna', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
