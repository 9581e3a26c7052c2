"""Sessions on a throttled or lost device, and times below the roofline bound."""

from __future__ import annotations

import math

import pytest
from measure_kernels import CpuAffine
from timer_contract import StillTeam

from search_spaces.records import Device, Status, Toolchain, Workload
from workers.job_records import (
    Artifact,
    Check,
    Failure,
    KernelRef,
    MeasureJob,
    MeasurementProtocol,
    Mode,
    Timing,
)
from workers.measure.gate.timed_run_check import TimedRunCheck
from workers.measure.measurement_session import MeasurementSession
from workers.measure.monitor import Monitor, Sample
from workers.measure.session_backend import PreparedCandidate
from workers.measure.task_tensors import TaskTensors
from workers.measure.timers.perf_counter import PerfCounterTimer
from workers.measure.timers.timer import Candidate, WarmUp

WORKLOAD = Workload.of(n=100, dtype="float32")
GOOD, BAD, FATAL = {"n": 0}, {"n": 1, "fault": "bad"}, {"n": 2, "fault": "fatal"}


class FakeDevice:
    """A device whose faults are given by its configs; it times a real function."""

    def __init__(self, reasons=(), roofline_us=0.0):
        self.poisoned = False
        self.called_after_loss = False
        self._reasons = iter(reasons)
        self._roofline_us = roofline_us

    def info(self):
        return Device("cpu", "device", "cpu:any"), Toolchain()

    def prepare(self, task, artifact, *, check):
        self.called_after_loss |= self.poisoned
        fault = artifact.config.get("fault")
        if fault:
            self.poisoned |= fault == "fatal"
            return Failure(Status.RUNTIME, fault)
        return self._entry(task, "good")

    def prepare_baseline(self, task, name):
        self.called_after_loss |= self.poisoned
        return self._entry(task, name) if name == "eager" else Failure(Status.RUNTIME, name)

    def timer(self, constants, entries):
        self.called_after_loss |= self.poisoned
        return PerfCounterTimer(1.0, WarmUp(), team=StillTeam())

    def plain_timer(self, constants):
        return PerfCounterTimer(1.0, WarmUp(), team=StillTeam())

    def check(self, ref, check):
        self.called_after_loss |= self.poisoned
        if check.artifact.config == BAD:
            return Failure(Status.CORRECTNESS, "odd")
        return PreparedCandidate(Candidate("check", int), int, 0.0)

    def monitor(self):
        bits = next(self._reasons, 0)
        return Monitor(lambda: Sample(1500.0, reasons=bits))

    def roofline_us(self, task, cache):
        return self._roofline_us

    def _entry(self, task, name):
        run = task.baselines["eager"]
        return PreparedCandidate(
            Candidate(name, lambda: run(task.inputs)), TimedRunCheck(task), 0.0, compiled=1
        )


def _compete(device, *configs, mode=Mode.SCREENING, baselines=(), incumbent=None, checks=()):
    candidates = tuple(Artifact(c, "cpu:any", Toolchain(), f"{c}") for c in configs)
    constants = MeasurementProtocol(pairs=(3,), final_pairs=4, warm_ms=0)
    job = MeasureJob(
        "j",
        KernelRef("k"),
        WORKLOAD,
        candidates,
        mode,
        incumbent=mode is Mode.SCREENING and len(candidates) > 1
        if incumbent is None
        else incumbent,
        baselines=baselines,
        checks=checks,
        protocol=constants,
    )
    found = MeasurementSession(
        device, job, TaskTensors(CpuAffine(), WORKLOAD, (1,), "cpu")
    ).compete()
    assert not device.called_after_loss
    return found


def _is_untimed(outcome):
    return isinstance(outcome, Timing) and outcome.median_us == 0 and not outcome.samples_us


def test_a_lost_device_fails_only_the_candidate_that_lost_it():
    device = FakeDevice()
    incumbent_lost_it = _compete(device, GOOD, FATAL).outcomes
    assert _is_untimed(incumbent_lost_it[0])
    assert incumbent_lost_it[0].error == -1.0
    assert isinstance(incumbent_lost_it[1], Failure)
    found = _compete(
        FakeDevice(), GOOD, FATAL, GOOD, mode=Mode.CONFIRM, baselines=("eager", "gone")
    )
    assert [isinstance(outcome, Failure) for outcome in found.outcomes] == [False, True, False]
    assert all(_is_untimed(found.outcomes[i]) for i in (0, 2))
    assert not found.baselines


@pytest.mark.parametrize(
    ("mode", "configs", "timed"),
    [
        (Mode.SCREENING, (GOOD, GOOD), [True, True]),
        (Mode.SCREENING, (BAD, GOOD), [False, False]),
        (Mode.SCREENING, (GOOD, BAD), [True, False]),
        (Mode.SCREENING, (BAD, GOOD, GOOD, GOOD), [False, True, True, True]),
        (Mode.RACE, (BAD, GOOD, GOOD), [False, True, True]),
        (Mode.RACE, (BAD,), [False]),
        (Mode.RACE, (), []),
    ],
)
def test_which_candidates_are_timed(mode, configs, timed):
    found = _compete(FakeDevice(), *configs, mode=mode)
    assert [bool(getattr(o, "samples_us", ())) for o in found.outcomes] == timed
    assert found.compiled == sum("fault" not in config for config in configs)


def test_failed_and_timed_baselines_keep_their_order():
    found = _compete(FakeDevice(), GOOD, mode=Mode.CONFIRM, baselines=("gone", "eager"))
    assert list(found.baselines) == ["gone", "eager"]
    assert isinstance(found.baselines["gone"], Failure)
    assert found.baselines["eager"].samples_us


def test_a_throttled_pass_is_repeated_once():
    repeated = _compete(FakeDevice(reasons=[0x40, 0x4]), GOOD).clocks
    assert repeated["repeated"] == 1.0
    assert repeated["throttle"] == "sw_power_cap"
    assert "throttled" not in repeated
    throttled = _compete(FakeDevice(reasons=[0x40, 0x40, 0x0]), GOOD).clocks
    assert throttled["throttled"] == "hw_thermal_slowdown"
    assert "repeated" not in _compete(FakeDevice(reasons=[0x4]), GOOD).clocks


def test_a_time_below_the_roofline_bound_is_refused():
    (failure,) = _compete(FakeDevice(roofline_us=1e9), GOOD).outcomes
    assert failure.status is Status.CORRECTNESS
    assert "faster than the device can move its bytes" in failure.message
    (timing,) = _compete(FakeDevice(roofline_us=1e-3), GOOD).outcomes
    assert math.isfinite(timing.median_us)


def test_a_winner_must_be_correct_at_check_sizes():
    def check(config):
        size = Workload.of(n=97, dtype="float32")
        return Check(size, Artifact(config, "cpu:any", Toolchain(), "odd"))

    wrong = _compete(FakeDevice(), GOOD, GOOD, mode=Mode.CONFIRM, checks=(check(GOOD), check(BAD)))
    assert isinstance(wrong.outcomes[0], Failure)
    assert wrong.outcomes[0].message == "odd (at n=97 dtype=float32)"
    assert wrong.outcomes[1].samples_us
    right = _compete(FakeDevice(), GOOD, GOOD, mode=Mode.CONFIRM, checks=(check(GOOD),))
    assert all(outcome.samples_us for outcome in right.outcomes)
