"""The contract of pools under faults; run for each implementation."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from made_up_spaces import synthesize
from processes import LIMIT_S, asleep, forked, kill, named, parents, wait_until

from search_spaces.recorded.recorded_kernel import RecordedKernel, load_kernel
from search_spaces.records import Config, Status, config_key
from workers.backends.simulated.backend import SimulatedBackend
from workers.job_records import (
    Artifact,
    BuildJob,
    Built,
    Failure,
    JobLost,
    KernelRef,
    Measured,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
    PoolEvent,
    PoolSpec,
    Timing,
    WorkerGone,
    WorkerReady,
)
from workers.roles import Pool

FAULTS = {"crash": 0.1, "hang": 0.04, "wrong": 0.1, "lost": 0.1, "seed": 3, "time_scale": 1.0}
#: Time per sample of a slow job beyond the kernel, long enough to kill a process meanwhile.
SLOW_US = 5e5
QUICK = MeasurementProtocol(warm_ms=0.0, pairs=(3,), final_pairs=8)


@dataclass
class Farm:
    """A pool of two simulated runners and two builders, and jobs for it."""

    pool: Pool
    kernel: RecordedKernel
    slow_kernel: RecordedKernel
    ready: dict[str, bool]

    @classmethod
    def start(cls, pool: Pool, folder: Path) -> Farm:
        for name, build_s, sample_us in (("quick", 0.0, 0.0), ("slow", 1.5, SLOW_US)):
            space = synthesize(120, seed=1, failures=0.1, build_s=build_s, scenario="quiet")
            noise = replace(space.noise, overhead_us=sample_us)
            replace(space, noise=noise).save(folder / f"{name}.json")
        kernels = [load_kernel(folder / f"{name}.json") for name in ("quick", "slow")]
        farm = cls(pool, kernels[0], kernels[1], {})
        pool.start()
        farm.until(lambda: len(farm.ready) == pool.runners)
        return farm

    def until(self, condition) -> list[PoolEvent]:
        """Events up to the moment the condition holds."""
        events: list[PoolEvent] = []

        def step() -> bool:
            if condition():
                return True
            new = self.pool.poll(0.2)
            for event in new:
                if isinstance(event, WorkerReady):
                    self.ready[event.worker.worker_id] = True
                if isinstance(event, WorkerGone):
                    self.ready[event.worker_id] = False
            events.extend(new)
            return bool(condition())

        wait_until(step)
        return events

    def answer(self, job_id: str) -> tuple[PoolEvent, list[PoolEvent]]:
        """The one event of a job, and the others before it."""
        found: list[PoolEvent] = []
        others: list[PoolEvent] = []

        def step() -> bool:
            for event in self.pool.poll(0.2):
                mine = getattr(event, "job_id", None) == job_id
                (found if mine else others).append(event)
            return bool(found)

        wait_until(step)
        assert len(found) == 1
        return found[0], others

    def build_job(self, job_id: str, config: Config, *, slow: bool = False) -> BuildJob:
        kernel = self.slow_kernel if slow else self.kernel
        return BuildJob(job_id, kernel_ref(kernel), kernel.workloads()[0], config, kernel.device)

    def measure_job(self, job_id: str, *configs: Config, slow: bool = False) -> MeasureJob:
        candidates = tuple(self.artifact(config) for config in configs)
        kernel = self.slow_kernel if slow else self.kernel
        limit_s = 20.0 if slow else 2.0
        job = MeasureJob(
            job_id, kernel_ref(kernel), kernel.workloads()[0], candidates, timeout_s=limit_s
        )
        return replace(job, protocol=QUICK)

    def artifact(self, config: Config) -> Artifact:
        space = self.kernel.recorded
        entry = space[config]
        return Artifact(config, space.device.target, space.toolchain, entry.binary)

    def config(self, fault: str) -> Config:
        """A config recorded as correct, with this fault injected (`` for none)."""
        return self.configs(fault, 1)[0]

    def configs(self, fault: str, count: int) -> list[Config]:
        entries = self.kernel.recorded.configs
        suited = [
            entry.config
            for entry in entries
            if entry.status is Status.CORRECT and backend().fault(entry.config) == fault
        ]
        assert len(suited) >= count
        return suited[:count]


def backend() -> SimulatedBackend:
    return SimulatedBackend(**FAULTS)


def kernel_ref(kernel: RecordedKernel) -> KernelRef:
    return KernelRef(kernel.spec)


def spec(kind: str, **changes: object) -> PoolSpec:
    made = PoolSpec(
        kind=kind, runners={"simulated": 2}, builders=2, options={"simulated": dict(FAULTS)}
    )
    return replace(made, **changes)


def child_of(name: str) -> int:
    """The worker process of a builder or runner of this test process; 0 while it is replaced."""
    tree, servers = parents(), forked(os.getpid())
    reapers = [pid for pid in named(os.getpid(), name) if tree.get(pid) in servers]
    workers = [pid for pid in reapers if tree[pid] in reapers]
    return workers[0] if len(workers) == 1 else 0


def owner_of(name: str) -> int:
    """The process that holds the builder or runner, once it has a worker: this one, or Ray's."""
    wait_until(lambda: child_of(name) > 0)
    tree, servers = parents(), forked(os.getpid())
    owner = tree[child_of(name)]
    while owner in servers:
        owner = tree[owner]
    return owner


def kinds(events: Iterable[PoolEvent]) -> Counter[str]:
    return Counter(type(event).__name__ for event in events)


class PoolContract:
    """What every pool does. Needs a fixture `farm`, started with `spec(...)`."""

    def test_every_job_has_exactly_one_event_under_all_faults(self, farm: Farm):
        failed = [e.config for e in farm.kernel.recorded.configs if e.status is Status.COMPILE][:2]
        shares = {"": 6, "crash": 2, "hang": 1, "wrong": 2, "lost": 2}
        configs = failed + [c for fault, n in shares.items() for c in farm.configs(fault, n)]
        for index, config in enumerate(configs):
            farm.pool.submit_build(farm.build_job(f"build-{index}", config))
        seen: Counter[str] = Counter()
        artifacts: list[Artifact] = []
        waiting = len(configs)
        idle = [name for name, ready in farm.ready.items() if ready]
        present, lost = {*idle}, 0
        while waiting or artifacts:
            while artifacts and idle:
                artifact, worker = artifacts.pop(), idle.pop()
                job = farm.measure_job(f"measure-{len(seen)}-{worker}", artifact.config)
                farm.pool.submit_measure(worker, replace(job, timeout_s=1.0))
                waiting += 1
            for event in farm.pool.poll(5.0):
                job_id = getattr(event, "job_id", "")
                if job_id:
                    seen[job_id] += 1
                    waiting -= 1
                if isinstance(event, Built) and isinstance(event.result, Artifact):
                    artifacts.append(event.result)
                elif isinstance(event, Measured):
                    idle.append(event.worker_id)
                elif isinstance(event, WorkerReady):
                    idle.append(event.worker.worker_id)
                    present.add(event.worker.worker_id)
                elif isinstance(event, WorkerGone):
                    idle = [name for name in idle if name != event.worker_id]
                    present.discard(event.worker_id)
                elif isinstance(event, JobLost):
                    # A worker that is lost is gone first, or it would get the next job.
                    lost += 1
                    assert not any(job_id.endswith(f"-{name}") for name in present)
        assert lost
        assert set(seen.values()) == {1}
        farm.ready.update(dict.fromkeys(farm.ready, False))
        farm.ready.update(dict.fromkeys(idle, True))
        farm.until(lambda: all(farm.ready.values()))
        assert not [event for event in farm.pool.poll(0.3) if hasattr(event, "job_id")]

    def test_a_screening_is_measured_and_a_wrong_result_is_a_failure(self, farm: Farm):
        default = farm.kernel.recorded.default
        job = farm.measure_job("screening", farm.config("wrong"), farm.config(""), default)
        farm.pool.submit_measure("simulated-0", job)
        event, _ = farm.answer("screening")
        assert isinstance(event, Measured)
        assert isinstance(event.result, Measurement)
        wrong = event.result.outcomes[0]
        assert isinstance(wrong, Failure)
        assert wrong.status is Status.CORRECTNESS
        farm.pool.submit_measure("simulated-0", replace(job, job_id="race", mode=Mode.RACE))
        event, _ = farm.answer("race")
        assert isinstance(event, Measured)
        assert isinstance(event.result, Measurement)
        assert isinstance(event.result.outcomes[1], Timing)
        assert event.result.device.kind == "simulated"
        farm.pool.submit_measure("simulated-0", farm.measure_job("prepare"))
        event, _ = farm.answer("prepare")
        assert event.result.outcomes == ()

    def test_a_job_for_a_worker_that_is_not_there_is_lost(self, farm: Farm):
        farm.pool.submit_measure("missing-7", farm.measure_job("x", farm.config("")))
        event, _ = farm.answer("x")
        assert isinstance(event, JobLost)
        assert "missing-7" in event.reason


class PoolFaultContract:
    """What every pool does when the processes of its builders and runners fail."""

    def test_in_a_batch_only_the_candidates_at_fault_fail(self, farm: Farm):
        sound = farm.configs("", 4)
        batch = [sound[0], *farm.configs("crash", 2), sound[1], farm.config("hang")]
        batch += [farm.config("wrong"), sound[2], sound[3]]
        job = farm.measure_job("batch", *batch)
        job = replace(job, incumbent=True, timeout_s=LIMIT_S, candidate_timeout_s=6.0)
        farm.pool.submit_measure("simulated-0", job)
        event, others = farm.answer("batch")
        assert isinstance(event, Measured)
        assert isinstance(event.result, Measurement), event.result
        assert not [other for other in others if isinstance(other, WorkerGone)]
        outcomes = event.result.outcomes
        found = [o.status.value if isinstance(o, Failure) else o.name for o in outcomes]
        names = [config_key(config) for config in batch]
        names[1] = names[2] = "runtime"
        names[4:6] = ["timeout", "correctness"]
        assert found == names
        assert all(o.samples_us for o in outcomes if isinstance(o, Timing))
        assert "(SIGSEGV) twice" in getattr(outcomes[1], "message", "")
        assert "illegal memory access" in getattr(outcomes[1], "message", "")
        assert "within 6 s" in getattr(outcomes[4], "message", "")
        assert event.result.device.kind == "simulated"

    def test_builders_are_warm_before_their_first_build(self, farm: Farm):
        farm.until(lambda: farm.pool.warm)
        assert child_of("builder-0")
        assert child_of("builder-1")

    def test_killing_a_runners_child_costs_no_trial(self, farm: Farm):
        farm.pool.submit_measure("simulated-0", farm.measure_job("m", farm.config(""), slow=True))
        wait_until(lambda: child_of("simulated-0") > 0)
        victim = child_of("simulated-0")
        kill(victim)
        event, others = farm.answer("m")
        assert isinstance(event, Measured)
        assert isinstance(event.result, Measurement)
        assert child_of("simulated-0") != victim
        assert not others

    def test_killing_a_builders_child_costs_no_trial(self, farm: Farm):
        config = farm.config("")
        for index in range(2):
            farm.pool.submit_build(farm.build_job(f"b{index}", config, slow=True))
        wait_until(lambda: child_of("builder-0") > 0)
        kill(child_of("builder-0"))
        seen: dict[str, Built] = {}
        while len(seen) < 2:
            built = [event for event in farm.pool.poll(5.0) if isinstance(event, Built)]
            seen |= {event.job_id: event for event in built}
        assert all(isinstance(event.result, Artifact) for event in seen.values())

    def test_a_compiler_that_crashes_twice_is_a_compile_failure(self, farm: Farm):
        config = farm.config("")
        jobs = {f"b{index}" for index in range(2)}
        for job_id in sorted(jobs):
            farm.pool.submit_build(farm.build_job(job_id, config, slow=True))
        results = []
        killed: list[int] = []

        def both() -> bool:
            victim = child_of("builder-1")
            # A death while starting counts against no job; a simulated build sleeps.
            if victim and victim not in killed and asleep(victim):
                os.kill(victim, signal.SIGSEGV)
                killed.append(victim)
            results.extend(e.result for e in farm.pool.poll(0.2) if isinstance(e, Built))
            return len(results) == 2

        wait_until(both)
        failures = [result for result in results if isinstance(result, Failure)]
        assert [failure.status for failure in failures] == [Status.COMPILE]
        assert "(SIGSEGV) twice" in failures[0].message

    def test_waiting_ends_though_a_signal_took_longer_than_was_left(self, farm: Farm):
        alarms = []

        def handle(number: int, frame: object) -> None:
            alarms.append(number)
            assert len(alarms) == 1, "still waiting"
            time.sleep(0.3)

        farm.pool.poll(0.0)
        before = signal.signal(signal.SIGALRM, handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05, LIMIT_S)
            farm.pool.poll(0.2)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
        assert alarms
