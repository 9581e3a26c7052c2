from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.records import Device, Status, Toolchain, Workload
from workers.job_records import (
    Artifact,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    Mode,
    Timing,
    WorkerInfo,
)
from workers.processes.fault_attribution import FaultAttribution, Loss, Reply
from workers.processes.supervised_child import ChildDied
from workers.processes.worker_lost import WorkerLost

DEVICE, TOOLCHAIN = Device("cuda", "GPU", "cuda:90"), Toolchain()
WRONG = Failure(Status.CORRECTNESS, "wrong")
LOST_CONTEXT = Failure(Status.RUNTIME, "illegal memory access")
#: Faults of a candidate, and the status it must end with.
FAULTS = {
    "crash": Status.RUNTIME,
    "hang": Status.TIMEOUT,
    "poison": Status.RUNTIME,
    "wrong": Status.CORRECTNESS,
    "crash timed": Status.RUNTIME,
    "hang timed": Status.TIMEOUT,
    "poison timed": Status.RUNTIME,
}


@dataclass
class Process:
    """A device process as its parent sees it."""

    #: What each candidate and baseline does to it.
    faults: dict[str, str]
    #: Numbers of the attempts during which it is killed from outside.
    killed: set[int] = field(default_factory=set)
    attempts: list[MeasureJob] = field(default_factory=list)

    def __call__(self, job: MeasureJob) -> Reply | Loss:
        self.attempts.append(job)
        assert len(self.attempts) < 300, "the attempts do not end"
        names = [artifact.binary_hash for artifact in job.candidates]
        outcomes: dict[str, Timing | Failure] = {name: Timing(name, 0.0) for name in names}
        order = [*names[-1:], *names[:-1]] if job.incumbent else names
        for name in order:
            activity = f"candidate {names.index(name)}"
            if loss := self._lost_at(name, activity):
                return loss
            if self.faults.get(name) == "poison":
                outcomes[name] = LOST_CONTEXT
                return self._reply(outcomes, {}, poisoned=True, activity=activity)
            if self.faults.get(name) == "wrong":
                outcomes[name] = WRONG
        baselines: dict[str, Timing | Failure] = {}
        for name in job.baselines:
            if loss := self._lost_at(name, f"baseline {name}"):
                return loss
            baselines[name] = Timing(name, 2.0, (2.0,))
        fit = [name for name, outcome in outcomes.items() if isinstance(outcome, Timing)]
        if job.mode is Mode.VERIFY or set(fit) <= set(names[-1:] if job.incumbent else []):
            return self._reply({n: _checked(o) for n, o in outcomes.items()}, baselines)
        if len(self.attempts) in self.killed:
            return _died("SIGKILL", "timing")
        for name in fit:
            fault = self.faults.get(name, "")
            if fault.endswith(" timed"):
                if fault == "poison timed":
                    return Reply(LOST_CONTEXT, poisoned=True, activity="timing")
                return self._end(fault.removesuffix(" timed"), "timing")
            outcomes[name] = Timing(name, 1.0, (1.0,))
        return self._reply(outcomes, baselines)

    def _lost_at(self, name: str, activity: str) -> Loss | None:
        fault = self.faults.get(name)
        return self._end(fault, activity) if fault in ("crash", "hang") else None

    def _end(self, fault: str, activity: str) -> Loss:
        if fault == "crash":
            return _died("SIGSEGV", activity)
        return Loss(Failure(Status.TIMEOUT, "no result within 2 s"), activity)

    def _reply(self, outcomes, baselines, *, poisoned=False, activity="timing") -> Reply:
        found = Measurement(DEVICE, TOOLCHAIN, tuple(outcomes.values()), baselines, device_s=1.0)
        return Reply(found, poisoned, activity)


def _checked(outcome: Timing | Failure) -> Timing | Failure:
    return replace(outcome, error=0.0) if isinstance(outcome, Timing) else outcome


def _died(ended: str, activity: str) -> Loss:
    death = ChildDied("gpu", ended, "the cause", activity)
    return Loss(Failure(Status.RUNTIME, f"{death}", death.output), activity, death)


def no_info() -> WorkerInfo:
    pytest.fail("no attempt succeeded, but one measured")


def job_of(count: int, mode: Mode, **changes) -> MeasureJob:
    workload = Workload.of(n=1)
    candidates = tuple(
        Artifact({"x": index}, "cuda:90", TOOLCHAIN, f"e{index}") for index in range(count)
    )
    return replace(MeasureJob("m", KernelRef("k"), workload, candidates, mode), **changes)


def measured(job: MeasureJob, process: Process) -> Measurement:
    info = WorkerInfo("cuda-0", DEVICE, TOOLCHAIN)
    result = FaultAttribution(job, process, lambda: info).measure()
    assert isinstance(result, Measurement), result
    return result


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[MeasureJob, Process]:
    mode = draw(st.sampled_from(list(Mode)))
    count = draw(st.integers(2, 8))
    incumbent = mode is Mode.SCREENING and draw(st.booleans())
    kinds = [fault for fault in FAULTS if mode is not Mode.VERIFY or " timed" not in fault]
    share = st.sampled_from([""] * 6 + kinds)
    faults = {f"e{index}": draw(share) for index in range(count)}
    if incumbent:
        faults[f"e{count - 1}"] = draw(st.sampled_from(["", "", "", "crash", "hang", "poison"]))
    job = job_of(count, mode, incumbent=incumbent)
    if mode is Mode.CONFIRM:
        job = replace(job, baselines=("eager", "vendor"))
        faults["eager"] = draw(st.sampled_from(["", "crash", "hang"]))
    killed = set(draw(st.lists(st.integers(1, 6), max_size=1)))
    return job, Process({name: fault for name, fault in faults.items() if fault}, killed)


@settings(max_examples=400)
@given(scenarios())
def test_each_fault_is_attributed_to_its_candidate_and_the_others_are_measured(scenario):
    job, process = scenario
    found = measured(job, process)
    names = [artifact.binary_hash for artifact in job.candidates]
    candidates = names[:-1] if job.incumbent else names
    sound = [name for name in candidates if name not in process.faults]
    for name, outcome in zip(names, found.outcomes, strict=True):
        if name in process.faults:
            assert isinstance(outcome, Failure), (name, outcome)
            assert outcome.status is FAULTS[process.faults[name]]
        else:
            assert isinstance(outcome, Timing), (name, outcome)
            if job.mode is Mode.VERIFY:
                assert outcome.error == 0.0
            elif name in sound or sound:
                assert outcome.samples_us, name
    if sound:
        assert set(found.baselines) == set(job.baselines)
        for name, outcome in found.baselines.items():
            assert isinstance(outcome, Failure) == (name in process.faults)


def test_a_batch_without_faults_is_one_attempt():
    process = Process({})
    found = measured(job_of(16, Mode.SCREENING, incumbent=True), process)
    assert len(process.attempts) == 1
    assert all(isinstance(outcome, Timing) for outcome in found.outcomes)


@pytest.mark.parametrize(("fault", "attempts"), [("hang", 2), ("poison", 2), ("crash", 3)])
def test_one_candidate_at_fault_costs_the_others_one_attempt(fault, attempts):
    process = Process({"e3": fault})
    measured(job_of(8, Mode.SCREENING, incumbent=True), process)
    assert len(process.attempts) == attempts
    assert len(process.attempts[1].candidates) == 7  # six others and the incumbent
    if fault == "crash":
        alone = process.attempts[2]
        assert [artifact.binary_hash for artifact in alone.candidates] == ["e3", "e7"]
        assert alone.incumbent


def test_a_crash_caused_by_another_candidate_is_not_attributed_to_its_victim():
    class Corrupting(Process):
        """e0 corrupts the process, which crashes at the next candidate."""

        def __call__(self, job: MeasureJob) -> Reply | Loss:
            names = [artifact.binary_hash for artifact in job.candidates]
            if "e0" in names and "e1" in names:
                self.attempts.append(job)
                return _died("SIGSEGV", f"candidate {names.index('e1')}")
            return super().__call__(job)

    found = measured(job_of(4, Mode.SCREENING, incumbent=True), Corrupting({}))
    assert all(isinstance(outcome, Timing) and outcome.samples_us for outcome in found.outcomes)


def test_an_incumbent_that_crashes_only_with_others_stays():
    class Corrupting(Process):
        """e1 corrupts the process, which crashes at the incumbent."""

        def __call__(self, job: MeasureJob) -> Reply | Loss:
            names = [artifact.binary_hash for artifact in job.candidates]
            if "e1" in names and "e3" in names:
                self.attempts.append(job)
                return _died("SIGSEGV", f"candidate {names.index('e3')}")
            return super().__call__(job)

    found = measured(job_of(4, Mode.SCREENING, incumbent=True), Corrupting({}))
    kinds = [type(outcome) for outcome in found.outcomes]
    assert kinds == [Timing, Failure, Timing, Timing]


def test_a_job_that_fails_before_its_first_candidate_fails_as_a_whole(caplog):
    def attempt(_: MeasureJob) -> Loss:
        return _died("SIGSEGV", "")

    caplog.set_level(logging.INFO, "workers.processes")
    result = FaultAttribution(job_of(4, Mode.RACE), attempt, no_info).measure()
    assert isinstance(result, Failure)
    assert result.message == "crashed the device process (SIGSEGV) twice: the cause"
    assert caplog.messages == ["m: retried after gpu died (SIGSEGV) (before its first candidate)"]
    answer = Reply(Failure(Status.RUNTIME, "kernel k: no such workload"))
    result = FaultAttribution(job_of(4, Mode.SCREENING), lambda _: answer, no_info).measure()
    assert result == answer.result


def test_costs_add_up_and_check_sizes_belong_to_the_first_candidate():
    job = job_of(3, Mode.CONFIRM, baselines=("eager",))
    process = Process({"e1": "poison"})
    found = measured(job, process)
    assert found.device_s == 2.0

    def attempt(part: MeasureJob) -> Reply | Loss:
        first = part.candidates[0].binary_hash == "e0"
        assert bool(part.checks) == first
        return _died("SIGSEGV", "check") if first else process(part)

    process = Process({})
    found = measured(replace(job, checks=(object(),)), attempt)
    assert isinstance(found.outcomes[0], Failure)
    assert isinstance(found.outcomes[1], Timing)


def test_a_job_without_candidates_is_attempted_once():
    job = job_of(0, Mode.SCREENING)
    answer = Reply(Failure(Status.RUNTIME, "no memory for the inputs"))
    attempted: list[MeasureJob] = []

    def attempt(whole: MeasureJob) -> Reply | Loss:
        attempted.append(whole)
        return answer

    found = FaultAttribution(job, attempt, no_info).measure()
    assert (found, attempted) == (answer.result, [job])
    loss = _died("SIGKILL", "")
    assert FaultAttribution(job, lambda _: loss, no_info).measure() == loss.failure


@pytest.mark.parametrize("activity", ["", "candidate 0", "timing"])
def test_a_process_that_is_only_killed_is_a_fault_of_the_machine(activity):
    attempts = []

    def attempt(job: MeasureJob) -> Loss:
        attempts.append(job)
        return _died("SIGKILL", activity)

    with pytest.raises(WorkerLost, match="was killed \\(SIGKILL\\) 4 times") as caught:
        FaultAttribution(job_of(1, Mode.SCREENING), attempt, no_info).measure()
    assert "memory" in caught.value.remedy
    assert len(attempts) == 4
