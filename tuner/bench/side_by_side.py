"""`bench`: one confirmation of a few variants, the default config and baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from search_spaces.baselines import list_baselines
from search_spaces.errors import FindingError, TunerError
from search_spaces.kernel import Cost
from search_spaces.records import Config, Device, Status, Toolchain, Workload
from tuner.base.log_ratio import EQUAL, LogRatio, Verdict
from tuner.bench.local_session import LocalSession, ProgressCallback, no_progress
from tuner.bench.named_configs import Variant
from tuner.bench.targets import BenchTarget
from tuner.settings.sections import Settings
from workers.job_records import Artifact, Calibration, Failure, MeasurementProtocol, Timing
from workers.measured_task import MeasuredTask

#: Parts of the names of baselines that each process compiles itself.
_COMPILED_BASELINES = ("compile", "autotune", "tuned")


@dataclass(frozen=True, slots=True)
class BenchRow:
    """The result of one candidate in a pass; a value that was not measured is None."""

    #: The config's name on the command line, or the baseline's name.
    variant: str
    #: `config` or `baseline`.
    kind: str
    config: Config | None = None
    status: Status = Status.CORRECT
    message: str = ""
    median_us: float | None = None
    #: ln(its time / the first timed candidate's).
    log_ratio: LogRatio | None = None
    #: From the interval; None for the first candidate.
    verdict: Verdict | None = None
    #: ln(the default config's time / its own).
    over_default: LogRatio | None = None
    gb_per_s: float | None = None
    tflop_per_s: float | None = None
    #: Its bandwidth over the device's calibrated copy bandwidth.
    copy_share: float | None = None
    #: ||out - reference|| / ||reference||, the largest over all seeds.
    error: float | None = None
    #: Whether a repetition gave the same bits.
    deterministic: bool | None = None
    registers: int | None = None
    samples_us: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Pass:
    """One interleaved pass in a fresh process."""

    kernel: str
    workload: Workload
    device: Device
    toolchain: Toolchain
    protocol: MeasurementProtocol
    rows: tuple[BenchRow, ...]
    method: str = ""
    cache: str = ""
    #: Launches that compiled on the device worker instead of hitting the build cache.
    compiled: int = 0
    #: Seconds for which the device was occupied, and those of them that were spent timing.
    device_s: float = 0.0
    timing_s: float = 0.0
    #: Device telemetry during the pass: clocks, power, temperature, throttle reasons.
    clocks: Mapping[str, float | str] = field(default_factory=dict)
    calibration: Calibration | None = None


def bench(
    settings: Settings,
    target: BenchTarget,
    chosen: Mapping[Workload, Sequence[Variant]],
    *,
    baselines: Sequence[str] | None = None,
    on_progress: ProgressCallback = no_progress,
) -> Iterator[Pass]:
    """Measure the chosen variants of each workload together with baselines, one pass per workload.

    A pass is the farm's confirmation: a fresh process verifies all candidates, then times them
    interleaved, `measure.final_pairs` times. The first variant must also be correct on the check
    size. baselines: names; None selects those that need no compiling. Nothing is stored. Raises
    `TunerError` for a baseline that the kernel lacks, and `FindingError` when a pass fails as a
    whole.
    """
    named = {workload: chosen_baselines(target, workload, baselines) for workload in chosen}
    with LocalSession(settings, target.runner, target.ref.paths, on_progress) as session:
        for workload, variants in chosen.items():
            yield SideBySide(
                settings, target, session, workload, variants, named[workload], on_progress
            ).run()


def chosen_baselines(
    target: BenchTarget, workload: Workload, names: Sequence[str] | None
) -> tuple[str, ...]:
    """The baselines to measure: the given names, `all`, `none`, or by default (None) those that
    need no compiling. Raises `TunerError` for a name that the kernel lacks."""
    known = sorted(list_baselines(target.kernel, workload))
    if names in (["all"], ("all",)):
        return tuple(known)
    if names in (["none"], ("none",)):
        return ()
    if names is None:
        return tuple(
            name for name in known if not any(word in name for word in _COMPILED_BASELINES)
        )
    for name in names:
        if name not in known:
            raise TunerError(
                f"{target.kernel.name} has no baseline {name!r}",
                f"it has {', '.join(known) or 'none'}; also: all, none",
            )
    return tuple(dict.fromkeys(names))


class Builds(NamedTuple):
    """The builds of all variants in their order, and the first one's for the check size."""

    variants: tuple[Artifact | Failure, ...]
    check: Artifact | None


@dataclass(frozen=True, slots=True)
class SideBySide:
    """One pass of `bench` on the workers of an open session: builds and measures variants."""

    settings: Settings
    target: BenchTarget
    session: LocalSession
    workload: Workload
    variants: Sequence[Variant]
    baselines: Sequence[str] = ()
    on_progress: ProgressCallback = no_progress

    @property
    def _task(self) -> MeasuredTask:
        target = self.target
        return target.measured_task(self.settings, self.session, self.workload, self.baselines)

    def run(self) -> Pass:
        """Build and measure. Raises `FindingError` when the pass fails as a whole."""
        return self.measure(self.build())

    def build(self) -> Builds:
        """Build all variants, and the first one for the check size where it is feasible there."""
        task, first = self._task, self.variants[0].config
        jobs = [task.make_build_job(f"{at}", v.config) for at, v in enumerate(self.variants)]
        if task.check_size is not None and self.target.space(task.check_size).feasible(first):
            jobs.append(task.make_build_job("check", first, check=True))
        results: dict[str, Artifact | Failure] = {}
        for job, result in self.session.build(jobs):
            results[job.job_id] = result
            self.on_progress("building", len(results), len(jobs))
        check = results.pop("check", None)
        built = tuple(results[f"{at}"] for at in range(len(self.variants)))
        return Builds(built, check if isinstance(check, Artifact) else None)

    def make_unmeasured(self, builds: Builds) -> Pass:
        """The pass whose rows say only which variants could not be built."""
        worker, task = self.session.worker, self._task
        return Pass(
            self.target.kernel.name,
            self.workload,
            task.device,
            worker.toolchain,
            task.protocol,
            self._rows(builds, builds.variants, {}, worker.calibration),
            calibration=worker.calibration,
        )

    def measure(self, builds: Builds) -> Pass:
        """Time what was built. Raises `FindingError` when the pass fails as a whole."""
        empty = self.make_unmeasured(builds)
        artifacts = tuple(item for item in builds.variants if isinstance(item, Artifact))
        if not artifacts:
            return empty
        self.on_progress(f"measuring {len(artifacts) + len(self.baselines)} side by side", 0, 0)
        check = builds.check if builds.variants[0] is artifacts[0] else None
        job_id = f"bench {self.workload.key}"
        result = self.session.measure(self._task.make_confirmation(job_id, artifacts, check))
        if isinstance(result, Failure):
            raise FindingError(
                f"the pass failed as a whole: {result.message}",
                "bench fewer configs at once to find it, or raise pool.measure_timeout",
            )
        measured = iter(result.outcomes)
        outcomes = [next(measured) if isinstance(b, Artifact) else b for b in builds.variants]
        return replace(
            empty,
            toolchain=result.toolchain,
            rows=self._rows(builds, outcomes, result.baselines, empty.calibration),
            method=result.method,
            cache=result.cache,
            compiled=result.compiled,
            device_s=result.device_s,
            timing_s=result.timing_s,
            clocks=result.clocks,
        )

    def _rows(
        self,
        builds: Builds,
        outcomes: Sequence[Artifact | Timing | Failure],
        baselines: Mapping[str, Timing | Failure],
        calibration: Calibration | None,
    ) -> tuple[BenchRow, ...]:
        cost = self.target.kernel.cost(self.workload)
        timed = [one for one in (*outcomes, *baselines.values()) if _is_timed(one)]
        by_variant = list(zip(self.variants, builds.variants, outcomes, strict=True))
        default = next((o for v, _, o in by_variant if "default" in v.name.split(", ")), None)
        reader = _RowReader(timed[0] if timed else None, default, cost, calibration)
        rows = []
        for variant, built, outcome in by_variant:
            registers = built.facts.registers or None if isinstance(built, Artifact) else None
            row = BenchRow(variant.name, "config", variant.config, registers=registers)
            rows.append(reader.read(row, outcome))
        rows += [reader.read(BenchRow(name, "baseline"), item) for name, item in baselines.items()]
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class _RowReader:
    """Turns outcomes into rows, relative to the first timed candidate and the default."""

    first: object
    default: object
    cost: Cost
    calibration: Calibration | None

    def read(self, row: BenchRow, outcome: Artifact | Timing | Failure) -> BenchRow:
        if isinstance(outcome, Failure):
            return replace(row, status=outcome.status, message=outcome.message)
        if not isinstance(outcome, Timing) or not outcome.median_us:
            return replace(row, message="not timed")
        bytes_per_us = self.cost.bytes / outcome.median_us
        return replace(
            row,
            median_us=outcome.median_us,
            log_ratio=outcome.log_ratio,
            verdict=None if outcome is self.first else outcome.log_ratio.verdict(),
            over_default=self._over_default(outcome),
            gb_per_s=bytes_per_us / 1e3 or None,
            tflop_per_s=self.cost.flops / outcome.median_us / 1e6 or None,
            copy_share=self._copy_share(bytes_per_us),
            error=outcome.error if outcome.error >= 0 else None,
            deterministic=outcome.deterministic,
            message=outcome.note,
            samples_us=outcome.samples_us,
        )

    def _over_default(self, outcome: Timing) -> LogRatio | None:
        if not isinstance(self.default, Timing) or not self.default.median_us:
            return None
        return EQUAL if outcome is self.default else self.default.log_ratio - outcome.log_ratio

    def _copy_share(self, bytes_per_us: float) -> float | None:
        copy = self.calibration.copy_bytes_per_us if self.calibration else 0.0
        return bytes_per_us / copy if copy and bytes_per_us else None


def _is_timed(outcome: Artifact | Timing | Failure) -> bool:
    return isinstance(outcome, Timing) and outcome.median_us > 0
