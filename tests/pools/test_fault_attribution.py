from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.records import Device, Status, Toolchain, Workload
from workers.build.process_builder import WorkerLost
from workers.records import (
    Artifact,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    Mode,
    Timing,
    WorkerInfo,
)
from workers.supervision.fault_attribution import Blame, Loss, Reply
from workers.supervision.supervised_child import ChildDied

DEVICE, TOOLCHAIN = Device("cuda", "GPU", "cuda:90"), Toolchain()
WRONG = Failure(Status.CORRECTNESS, "wrong")
LOST_CONTEXT = Failure(Status.RUNTIME, "illegal memory access")
#: What a candidate does to its process, and how it must be told in the end.
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
    """A device process as seen by its supervisor: what each candidate and baseline does to it.

    killed: attempts (by number) during which somebody kills it from outside.
    """

    faults: dict[str, str]
    killed: set[int] = field(default_factory=set)
    attempts: list[MeasureJob] = field(default_factory=list)

    def __call__(self, job: MeasureJob) -> Reply | Loss:
        self.attempts.append(job)
        assert len(self.attempts) < 300, "it goes round in circles"
        names = [artifact.binary_hash for artifact in job.candidates]
        outcomes: dict[str, Timing | Failure] = {name: Timing(name, 0.0) for name in names}
        order = [*names[-1:], *names[:-1]] if job.incumbent else names
        for name in order:
            note = f"candidate {names.index(name)}"
            if loss := self._suffer(name, note):
                return loss
            if self.faults.get(name) == "poison":
                outcomes[name] = LOST_CONTEXT
                return self._reply(outcomes, {}, poisoned=True, note=note)
            if self.faults.get(name) == "wrong":
                outcomes[name] = WRONG
        baselines: dict[str, Timing | Failure] = {}
        for name in job.baselines:
            if loss := self._suffer(name, f"baseline {name}"):
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
                    return Reply(LOST_CONTEXT, poisoned=True, note="timing")
                return self._end(fault.removesuffix(" timed"), "timing")
            outcomes[name] = Timing(name, 1.0, (1.0,))
        return self._reply(outcomes, baselines)

    def _suffer(self, name: str, note: str) -> Loss | None:
        fault = self.faults.get(name)
        return self._end(fault, note) if fault in ("crash", "hang") else None

    def _end(self, fault: str, note: str) -> Loss:
        if fault == "crash":
            return _died("SIGSEGV", note)
        return Loss(Failure(Status.TIMEOUT, "no result within 2 s"), note)

    def _reply(self, outcomes, baselines, *, poisoned=False, note="timing") -> Reply:
        found = Measurement(DEVICE, TOOLCHAIN, tuple(outcomes.values()), baselines, device_s=1.0)
        return Reply(found, poisoned, note)


def _checked(outcome: Timing | Failure) -> Timing | Failure:
    return replace(outcome, error=0.0) if isinstance(outcome, Timing) else outcome


def _died(ended: str, note: str) -> Loss:
    death = ChildDied("gpu", ended, "the cause", note)
    return Loss(Failure(Status.RUNTIME, f"{death}", death.output), note, death)


def job_of(count: int, mode: Mode, **changes) -> MeasureJob:
    workload = Workload.of(n=1)
    candidates = tuple(
        Artifact({"x": index}, "cuda:90", TOOLCHAIN, f"e{index}") for index in range(count)
    )
    return replace(MeasureJob("m", KernelRef("k"), workload, candidates, mode), **changes)


def measured(job: MeasureJob, process: Process) -> Measurement:
    info = WorkerInfo("cuda-0", DEVICE, TOOLCHAIN)
    result = Blame(job, process, lambda: info).measure()
    assert isinstance(result, Measurement), result
    return result


@st.composite
def worlds(draw: st.DrawFn) -> tuple[MeasureJob, Process]:
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


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_everybody_answers_for_themselves_and_the_innocent_are_measured(world):
    job, process = world
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


def test_a_batch_in_which_nobody_is_at_fault_is_one_attempt():
    process = Process({})
    found = measured(job_of(16, Mode.SCREENING, incumbent=True), process)
    assert len(process.attempts) == 1
    assert all(isinstance(outcome, Timing) for outcome in found.outcomes)


@pytest.mark.parametrize(("fault", "attempts"), [("hang", 2), ("poison", 2), ("crash", 3)])
def test_one_culprit_costs_the_others_one_attempt(fault, attempts):
    process = Process({"e3": fault})
    measured(job_of(8, Mode.SCREENING, incumbent=True), process)
    assert len(process.attempts) == attempts
    assert len(process.attempts[1].candidates) == 7  # six innocents and the incumbent
    if fault == "crash":
        alone = process.attempts[2]
        assert [artifact.binary_hash for artifact in alone.candidates] == ["e3", "e7"]
        assert alone.incumbent


def test_a_crash_caused_by_another_is_not_blamed_on_its_victim():
    class Corrupting(Process):
        """e0 leaves something behind that kills whoever comes next."""

        def __call__(self, job: MeasureJob) -> Reply | Loss:
            names = [artifact.binary_hash for artifact in job.candidates]
            if "e0" in names and "e1" in names:
                self.attempts.append(job)
                return _died("SIGSEGV", f"candidate {names.index('e1')}")
            return super().__call__(job)

    found = measured(job_of(4, Mode.SCREENING, incumbent=True), Corrupting({}))
    assert all(isinstance(outcome, Timing) and outcome.samples_us for outcome in found.outcomes)


def test_a_incumbent_that_dies_only_in_company_stays():
    class Corrupting(Process):
        """e1 leaves something behind that kills the incumbent when it is there too."""

        def __call__(self, job: MeasureJob) -> Reply | Loss:
            names = [artifact.binary_hash for artifact in job.candidates]
            if "e1" in names and "e3" in names:
                self.attempts.append(job)
                return _died("SIGSEGV", f"candidate {names.index('e3')}")
            return super().__call__(job)

    found = measured(job_of(4, Mode.SCREENING, incumbent=True), Corrupting({}))
    kinds = [type(outcome) for outcome in found.outcomes]
    assert kinds == [Timing, Failure, Timing, Timing]


def test_a_job_that_fails_before_anybodys_turn_fails_as_a_whole():
    def attempt(_: MeasureJob) -> Loss:
        return _died("SIGSEGV", "")

    result = Blame(job_of(4, Mode.RACE), attempt, lambda: pytest.fail("not asked")).measure()
    assert isinstance(result, Failure)
    assert result.message == "crashed the device process (SIGSEGV) twice: the cause"
    answer = Reply(Failure(Status.RUNTIME, "kernel k: no such workload"))
    result = Blame(
        job_of(4, Mode.SCREENING), lambda _: answer, lambda: pytest.fail("not asked")
    ).measure()
    assert result == answer.result


def test_what_was_spent_adds_up_and_odd_sizes_are_the_first_candidates():
    job = job_of(3, Mode.CONFIRM, baselines=("eager",))
    process = Process({"e1": "poison"})
    found = measured(job, process)
    assert found.device_s == 2.0

    def attempt(asked: MeasureJob) -> Reply | Loss:
        first = asked.candidates[0].binary_hash == "e0"
        assert bool(asked.checks) == first
        return _died("SIGSEGV", "check") if first else process(asked)

    process = Process({})
    found = measured(replace(job, checks=(object(),)), attempt)
    assert isinstance(found.outcomes[0], Failure)
    assert isinstance(found.outcomes[1], Timing)


def test_a_job_without_candidates_is_attempted_once():
    job = job_of(0, Mode.SCREENING)
    answer = Reply(Failure(Status.RUNTIME, "no memory for the inputs"))
    asked: list[MeasureJob] = []

    def attempt(whole: MeasureJob) -> Reply | Loss:
        asked.append(whole)
        return answer

    found = Blame(job, attempt, lambda: pytest.fail("not asked")).measure()
    assert (found, asked) == (answer.result, [job])
    loss = _died("SIGKILL", "")
    assert Blame(job, lambda _: loss, lambda: pytest.fail("not asked")).measure() == loss.failure


@pytest.mark.parametrize("note", ["", "candidate 0", "timing"])
def test_a_process_that_is_only_ever_killed_is_the_machines_fault(note):
    attempts = []

    def attempt(job: MeasureJob) -> Loss:
        attempts.append(job)
        return _died("SIGKILL", note)

    with pytest.raises(WorkerLost, match="was killed \\(SIGKILL\\) 4 times") as caught:
        Blame(job_of(1, Mode.SCREENING), attempt, lambda: pytest.fail("not asked")).measure()
    assert "memory" in caught.value.remedy
    assert len(attempts) == 4
