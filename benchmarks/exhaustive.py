"""The exhaustive ranking of a space: all configs pass the gate and are timed interleaved.

A separate process holds the device, with the farm's own backend, clock and calibration. The last
heartbeat names a config that crashes the process; the measurement then continues without that
config. Every pass times all configs; more passes then time the fastest share. Two rankings are
independent: they share no process, buffers, loaded code, orders or selection of the fastest share.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankings import Stage, fastest, orders

from search_spaces.records import Device, Status, Toolchain, Workload, config_key
from workers.job_records import Artifact, Calibration, Failure, KernelRef, MeasurementProtocol
from workers.measure.gate.checks import refusal
from workers.measure.session_backend import PreparedCandidate
from workers.measure.task_tensors import TaskTensors
from workers.measure.timers.graph import CaptureFailed
from workers.supervision.heartbeat import heartbeat
from workers.supervision.supervised_child import ChildDied, ChildTimeout, SupervisedChild

HERE = Path(__file__).resolve().parent
#: Passes of one `collect` call. Readings of all configs shift a little from one call to the next.
_PASSES = 4
_BASELINE_PASSES = 24
#: A config that sends no heartbeat for this many seconds counts as hanging.
_MAX_SILENCE_S, _JOB_S = 60.0, 400.0
_DEATHS = 8
_ROOFLINE_SLACK = 0.9


@dataclass(frozen=True, slots=True)
class RankingJob:
    """The configs to measure, and the numbers of passes."""

    kernel: KernelRef
    workload: Workload
    #: One artifact per distinct binary; the first is the default, if its build succeeded.
    artifacts: tuple[Artifact, ...]
    protocol: MeasurementProtocol
    #: Passes over all configs.
    passes: int = 12
    #: Further passes over the fastest `share` of the configs, at least `least` of them.
    top_passes: int = 116
    share: float = 0.2
    least: int = 16
    #: Seed of the orders in which configs are timed.
    seed: str = "A"
    baselines: tuple[str, ...] = ()


@dataclass(slots=True)
class Ranking:
    """The samples of all stages by config key, and the failures."""

    failures: dict[str, Failure] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    #: Name -> the config it was compared with, and the ratios of its times to that config's.
    baselines: dict[str, tuple[str, list[float]]] = field(default_factory=dict)
    baseline_problems: dict[str, str] = field(default_factory=dict)
    method: str = ""
    cache: str = ""
    gate_s: float = 0.0
    timing_s: float = 0.0
    #: The config after which the device was lost. If it is set, all other fields are invalid.
    blamed: str = ""


class ExhaustiveRanking:
    """The parent's side of the process that holds the device."""

    def __init__(self, kind: str, name: str) -> None:
        from workers import backend_kinds

        self._child = SupervisedChild(
            "exhaustive:ExhaustiveService",
            {"kind": kind},
            environment=lambda cache_dir: backend_kinds.environment(kind, f"{cache_dir}"),
            paths=(f"{HERE}", f"{HERE.parent}"),
            name=f"ranking-{name}",
        )

    def info(self) -> tuple[Device, Toolchain, Calibration | None]:
        return self._child.request("info", timeout_s=180.0)

    def measure(self, job: RankingJob) -> Ranking:
        """Measure the job. Raises RuntimeError when the device is lost repeatedly."""
        failures: dict[str, Failure] = {}
        for _ in range(_DEATHS):
            left = [a for a in job.artifacts if config_key(a.config) not in failures]
            remaining = replace(job, artifacts=tuple(left))
            try:
                ranking = self._child.request(
                    "measure", remaining, timeout_s=_JOB_S, max_silence_s=_MAX_SILENCE_S
                )
            except (ChildDied, ChildTimeout) as loss:
                at_fault = loss.last_activity
                hung = isinstance(loss, ChildTimeout)
                failure = Failure(Status.TIMEOUT if hung else Status.RUNTIME, f"{loss}")
                known = {config_key(a.config) for a in left}
                if at_fault not in known:
                    raise RuntimeError(f"lost the device while {at_fault or 'idle'}") from loss
                failures[at_fault] = failure
                continue
            failures.update(ranking.failures)
            if not ranking.blamed:
                ranking.failures = failures
                return ranking
            self._child.kill()
        raise RuntimeError(f"the device was lost {_DEATHS} times")

    def close(self) -> None:
        self._child.close()


class ExhaustiveService:
    """The service inside the process that holds the device."""

    def __init__(self, cache_dir: Path, kind: str) -> None:
        from workers.backend_kinds import create

        self._kind = kind
        self._backend = create(kind, index=0, cache_dir=f"{cache_dir}")

    def info(self):
        return (*self._backend.info(), self._backend.calibration())

    def measure(self, job: RankingJob) -> Ranking:
        import torch

        with torch.no_grad(), _recompiling(self._kind):
            ranking = _Measuring(self._backend, job).ranking
        if self._kind == "cuda" and not ranking.blamed:
            # Release the memory of this space before another process needs it.
            gc.collect()
            torch.cuda.empty_cache()
        return ranking

    def close(self) -> None:
        self._backend.close()


class _Measuring:
    """One job on a backend."""

    def __init__(self, backend, job: RankingJob) -> None:
        self._backend, self._job, self.ranking = backend, job, Ranking()
        started = time.monotonic()
        entries = self._prepared()
        self.ranking.gate_s = time.monotonic() - started
        if self.ranking.blamed or not entries:
            return
        started = time.monotonic()
        try:
            self._time(entries, backend.timer(job.protocol, [next(iter(entries.values()))]))
        except CaptureFailed:
            self.ranking.stages.clear()
            self._time(entries, backend.plain_timer(job.protocol))
        self._audit(entries)
        self.ranking.timing_s = time.monotonic() - started

    def _task(self) -> TaskTensors:
        from search_spaces.registry import load

        job = self._job
        kernel = load(job.kernel.spec, job.kernel.paths)
        seeds = job.protocol.seeds
        return TaskTensors(kernel, job.workload, seeds, self._backend.torch_device)

    def _prepared(self) -> dict[str, PreparedCandidate]:
        """The candidates that pass the gate, by config key.

        A candidate that wrote outside its outputs may have damaged the reference data. All
        candidates are then checked again with new data, without that one.
        """
        while True:
            self.task, entries = self._task(), {}
            for artifact in self._job.artifacts:
                key = config_key(artifact.config)
                if key in self.ranking.failures:
                    continue
                heartbeat(key)
                entry = self._backend.prepare(self.task, artifact, check=True)
                if isinstance(entry, PreparedCandidate):
                    entries[key] = entry
                    continue
                self.ranking.failures[key] = entry
                if self._backend.poisoned:
                    self.ranking.blamed = key
                    return {}
                if self.task.suspect:
                    break
            else:
                return entries

    def _time(self, entries: Mapping[str, PreparedCandidate], timer) -> None:
        job = self._job
        self.ranking.method, self.ranking.cache = timer.method, timer.cache
        all_configs = self._stage(timer, entries, job.passes, f"{job.seed}/all")
        kept = fastest(all_configs.samples, job.share, job.least)
        few = {name: entries[name] for name in kept}
        top = self._stage(timer, few, job.top_passes, f"{job.seed}/top")
        self.ranking.stages += [all_configs, top]
        (best,) = fastest(top.samples, 0.0, 1)
        self._time_baselines(timer, best, entries[best])

    def _stage(
        self, timer, entries: Mapping[str, PreparedCandidate], passes: int, seed: str
    ) -> Stage:
        names = list(entries)
        candidates = [
            replace(e.candidate, after_checked_run=e.check.after) for e in entries.values()
        ]
        heartbeat(f"timing {seed}")
        timer.warm(candidates[0], self._job.protocol.warm_ms)
        # The first pass with a new set of candidates settles clock and caches.
        timer.collect(candidates, orders(len(names), 1, f"{seed}/settling"))
        samples: dict[str, list[float]] = {name: [] for name in names}
        held_s = 0.0
        for first in range(0, passes, _PASSES):
            heartbeat(f"timing {seed} from {first}")
            count = min(_PASSES, passes - first)
            started = time.perf_counter()
            taken = timer.collect(candidates, orders(len(names), count, seed, first))
            held_s += time.perf_counter() - started
            for name, times in zip(names, taken, strict=True):
                samples[name] += times
        busy_us = sum(map(sum, samples.values()))
        runs = passes * len(names)
        return Stage(samples, (held_s * 1e6 - busy_us) / max(1, runs))

    def _time_baselines(self, timer, best: str, entry: PreparedCandidate) -> None:
        """Time each baseline against the best config, in separate passes."""
        for name in self._job.baselines:
            heartbeat(f"baseline {name}")
            prepared = self._backend.prepare_baseline(self.task, name)
            if not isinstance(prepared, PreparedCandidate):
                self.ranking.baseline_problems[name] = prepared.message
                continue
            pair = [
                replace(e.candidate, after_checked_run=e.check.after) for e in (entry, prepared)
            ]
            clock = timer
            for clock in (timer, self._backend.plain_timer(self._job.protocol)):
                try:
                    best_us, baseline_us = clock.collect(pair, orders(2, _BASELINE_PASSES, name))
                except CaptureFailed:
                    continue
                ratios = [b / a for a, b in zip(best_us, baseline_us, strict=True)]
                self.ranking.baselines[name] = best, ratios
                break

    def _audit(self, entries: Mapping[str, PreparedCandidate]) -> None:
        """Fail configs that were wrong in the timed loop or faster than the roofline bound."""
        roofline_us = self._backend.roofline_us(self.task, self.ranking.cache)
        all_configs = self.ranking.stages[0].samples
        for key, entry in entries.items():
            problem = entry.check.problem()
            fastest_us = sorted(all_configs[key])[len(all_configs[key]) // 2]
            if fastest_us < _ROOFLINE_SLACK * roofline_us:
                problem = f"{fastest_us:.3g} us is below the roofline bound ({roofline_us:.3g} us)"
            if problem:
                self.ranking.failures[key] = refusal(problem)


def _recompiling(kind: str):
    """A context for CPU variants: each is a separate entry in Dynamo's cache."""
    if kind != "cpu":
        return nullcontext()
    import torch._dynamo

    limits = {"recompile_limit": 10_000, "accumulated_recompile_limit": 100_000}
    return torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, **limits)
