"""`bench`: some variants, the default and baselines side by side in one confirmation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from search_spaces.errors import FindingError, TunerError
from search_spaces.kernel import Cost
from search_spaces.records import Config, Device, Status, Toolchain, Workload
from search_spaces.statistics import verdict
from tuner.bench.named_configs import Variant
from tuner.bench.session import LocalSession, Tell, silent
from tuner.bench.target import BenchTarget
from tuner.campaign import environment
from tuner.settings.models import Settings
from workers.records import (
    Artifact,
    BuildJob,
    Calibration,
    Check,
    Failure,
    MeasureJob,
    MeasurementProtocol,
    Mode,
    Timing,
)

#: Words in the names of baselines that are compiled anew in every process.
_DEAR = ("compile", "autotune", "tuned")
#: Confirmations hold several candidates, each of which gets a share of the time at least.
_LEAST_SHARES = 3


@dataclass(frozen=True, slots=True)
class Row:
    """What the pass found of one candidate.

    kind: `config` or `baseline`. ratio is its time over that of the first candidate that was
    timed, with its 95 % interval, and verdict what that says (empty for the first itself). speedup
    is the default config's time over its own. What was not found out is None.
    """

    variant: str
    kind: str
    config: Config | None = None
    status: Status = Status.CORRECT
    message: str = ""
    median_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    verdict: str = ""
    speedup: float | None = None
    gb_per_s: float | None = None
    tflop_per_s: float | None = None
    copy_share: float | None = None
    error: float | None = None
    deterministic: bool | None = None
    registers: int | None = None
    samples_us: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Pass:
    """One interleaved pass in a fresh process. clocks: what was seen of the card beside it."""

    kernel: str
    workload: Workload
    device: Device
    toolchain: Toolchain
    protocol: MeasurementProtocol
    rows: tuple[Row, ...]
    method: str = ""
    cache: str = ""
    compiled: int = 0
    timing_s: float = 0.0
    clocks: Mapping[str, float | str] = field(default_factory=dict)
    calibration: Calibration | None = None


def bench(
    settings: Settings,
    subject: BenchTarget,
    chosen: Mapping[Workload, Sequence[Variant]],
    *,
    baselines: Sequence[str] | None = None,
    tell: Tell = silent,
) -> Iterator[Pass]:
    """Measure the chosen variants of each workload beside baselines, one pass per workload.

    Each pass is the farm's confirmation: in a fresh process, everything verified first, then
    interleaved `measure.final_pairs` times; the first variant must be right on the kernel's odd
    size too. baselines: names; None for those that need no compiling. Nothing is stored. Raises
    `TunerError` for baselines the kernel lacks, and `FindingError` when a pass fails as a whole.
    """
    named = {workload: baselines_of(subject, workload, baselines) for workload in chosen}
    with LocalSession(settings, subject, tell) as bed:
        for workload, variants in chosen.items():
            yield _Bench(settings, subject, bed, workload, variants, named[workload], tell).run()


def baselines_of(
    subject: BenchTarget, workload: Workload, names: Sequence[str] | None
) -> tuple[str, ...]:
    """The names, checked. `all` and `none` are words for what they say; None is for those of the
    kernel's baselines that need no compiling."""
    known = sorted(subject.kernel.baselines(workload))
    if names in (["all"], ("all",)):
        return tuple(known)
    if names in (["none"], ("none",)):
        return ()
    if names is None:
        return tuple(name for name in known if not any(word in name for word in _DEAR))
    for name in names:
        if name not in known:
            raise TunerError(
                f"{subject.kernel.name} has no baseline {name!r}",
                f"it has {', '.join(known) or 'none'}; also: all, none",
            )
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class _Bench:
    """One pass on its way."""

    settings: Settings
    subject: BenchTarget
    bed: LocalSession
    workload: Workload
    variants: Sequence[Variant]
    baselines: Sequence[str]
    tell: Tell

    def run(self) -> Pass:
        worker = self.bed.worker
        built, odd = self._build(worker.device)
        artifacts = {at: item for at, item in built.items() if isinstance(item, Artifact)}
        protocol = environment.protocol(self.settings.measure)
        empty = Pass(
            self.subject.kernel.name,
            self.workload,
            self.subject.device if self.subject.runner == "simulated" else worker.device,
            worker.toolchain,
            protocol,
            self._rows(built, {}, worker.calibration),
            calibration=worker.calibration,
        )
        if not artifacts:
            return empty
        self.tell(f"measuring {len(artifacts) + len(self.baselines)} side by side", 0, 0)
        result = self.bed.measured(self._job(tuple(artifacts.values()), odd, protocol))
        if isinstance(result, Failure):
            raise FindingError(
                f"the pass failed as a whole: {result.message}",
                "bench fewer configs at once to see which it was, or raise pool.measure_timeout",
            )
        outcomes: dict[int, Artifact | Timing | Failure] = {**built}
        outcomes.update(zip(artifacts, result.outcomes, strict=True))
        return replace(
            empty,
            toolchain=result.toolchain,
            rows=self._rows(outcomes, result.baselines, worker.calibration, built),
            method=result.method,
            cache=result.cache,
            compiled=result.compiled,
            timing_s=result.timing_s,
            clocks=result.clocks,
        )

    def _build(self, device: Device) -> tuple[dict[int, Artifact | Failure], Check | None]:
        """All variants in their order, and the first for the odd size, where it can be."""
        if self.subject.runner == "simulated":
            device = self.subject.device
        jobs = [
            self._build_job(f"{at}", v, self.workload, device) for at, v in enumerate(self.variants)
        ]
        small = self.subject.odd(self.workload)
        if small is not None and self.subject.space(small).feasible(self.variants[0].config):
            jobs.append(self._build_job("odd", self.variants[0], small, device))
        found: dict[str, Artifact | Failure] = {}
        for job, result in self.bed.built(jobs):
            found[job.job_id] = result
            self.tell("building", len(found), len(jobs))
        odd = found.pop("odd", None)
        check = Check(small, odd) if small is not None and isinstance(odd, Artifact) else None
        return {at: found[f"{at}"] for at in range(len(self.variants))}, check

    def _build_job(
        self, job_id: str, variant: Variant, workload: Workload, device: Device
    ) -> BuildJob:
        timeout_s = self.settings.pool.build_timeout
        return BuildJob(job_id, self.subject.ref, workload, variant.config, device, timeout_s)

    def _job(
        self, candidates: tuple[Artifact, ...], odd: Check | None, protocol: MeasurementProtocol
    ) -> MeasureJob:
        first = odd is not None and candidates[0].config == odd.artifact.config
        limit_s = self.settings.pool.measure_timeout
        baseline_s = self.settings.pool.baseline_timeout
        return MeasureJob(
            job_id=f"bench {self.workload.key}",
            kernel=self.subject.ref,
            workload=self.workload,
            candidates=candidates,
            mode=Mode.CONFIRM,
            baselines=tuple(self.baselines),
            checks=(odd,) if first and odd is not None else (),
            protocol=protocol,
            calibration=self.bed.worker.calibration,
            timeout_s=limit_s * max(_LEAST_SHARES, len(candidates))
            + baseline_s * len(self.baselines),
            candidate_timeout_s=limit_s,
            baseline_timeout_s=baseline_s,
        )

    def _rows(
        self,
        outcomes: Mapping[int, Artifact | Timing | Failure],
        baselines: Mapping[str, Timing | Failure],
        calibration: Calibration | None,
        built: Mapping[int, Artifact | Failure] | None = None,
    ) -> tuple[Row, ...]:
        cost = self.subject.kernel.cost(self.workload)
        timed = [o for o in (*outcomes.values(), *baselines.values()) if _is_timed(o)]
        default = next(
            (o for at, o in outcomes.items() if "default" in self.variants[at].name.split(", ")),
            None,
        )
        reader = _Reader(timed[0] if timed else None, default, cost, calibration)
        rows = []
        for at, outcome in outcomes.items():
            artifact = (built or outcomes)[at]
            registers = artifact.facts.registers or None if isinstance(artifact, Artifact) else None
            row = Row(self.variants[at].name, "config", self.variants[at].config)
            rows.append(reader.read(replace(row, registers=registers), outcome))
        beside = [reader.read(Row(name, "baseline"), found) for name, found in baselines.items()]
        return (*rows, *beside)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns outcomes into rows: against the first that was timed, the default and the device."""

    first: object
    default: object
    cost: Cost
    calibration: Calibration | None

    def read(self, row: Row, outcome: Artifact | Timing | Failure) -> Row:
        if isinstance(outcome, Failure):
            return replace(row, status=outcome.status, message=outcome.message)
        if not isinstance(outcome, Timing) or not outcome.median_us:
            return replace(row, message="not timed")
        is_first = outcome is self.first
        low, high = outcome.log_ratio_low, outcome.log_ratio_high
        bytes_per_us = self.cost.bytes / outcome.median_us
        return replace(
            row,
            median_us=outcome.median_us,
            ratio=math.exp(outcome.log_ratio),
            ratio_low=math.exp(low) if math.isfinite(low) else None,
            ratio_high=math.exp(high) if math.isfinite(high) else None,
            verdict="" if is_first else verdict(outcome.log_ratio, low, high),
            speedup=self._speedup(outcome),
            gb_per_s=bytes_per_us / 1e3 or None,
            tflop_per_s=self.cost.flops / outcome.median_us / 1e6 or None,
            copy_share=self._copy_share(bytes_per_us),
            error=outcome.error if outcome.error >= 0 else None,
            deterministic=outcome.deterministic,
            message=outcome.note,
            samples_us=outcome.samples_us,
        )

    def _speedup(self, outcome: Timing) -> float | None:
        if not isinstance(self.default, Timing) or not self.default.median_us:
            return None
        return math.exp(self.default.log_ratio - outcome.log_ratio)

    def _copy_share(self, bytes_per_us: float) -> float | None:
        known = self.calibration.copy_bytes_per_us if self.calibration else 0.0
        return bytes_per_us / known if known and bytes_per_us else None


def _is_timed(outcome: Artifact | Timing | Failure) -> bool:
    return isinstance(outcome, Timing) and outcome.median_us > 0
