"""`bench`: one confirmation of a few variants, the default config and baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from results_db.stored_records import BaselineRecord, TrialRecord
from search_spaces.baselines import list_baselines
from search_spaces.errors import TunerError
from search_spaces.kernel import Cost
from search_spaces.records import Config, Device, Status, Toolchain, Workload
from tuner.base.log_ratio import EQUAL, LogRatio, Verdict
from tuner.compare.given_tasks import Evaluated, GivenTask, evaluate
from tuner.compare.targets import BenchTarget
from tuner.engine import Aim
from tuner.progress import ProgressCallback
from tuner.settings.sections import Settings
from workers.job_records import Calibration, MeasurementProtocol

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


def compare(
    settings: Settings, given: Sequence[GivenTask], on_progress: ProgressCallback | None = None
) -> list[Pass]:
    """Measure the variants of each task with its baselines, one pass per task, in their order.

    A pass is the farm's confirmation: a fresh process verifies all candidates, then times them
    interleaved, `measure.final_pairs` times. The first variant must also be correct on the check
    size. Nothing is stored.
    """
    found = evaluate(settings, given, Aim.COMPARE, on_progress=on_progress)
    return [make_pass(settings, each) for each in found]


def make_pass(settings: Settings, found: Evaluated) -> Pass:
    """The pass that a comparison made, or builds alone."""
    trials, key = list(found.trials.values()), found.task.key
    timed = [trial for trial in trials if trial.samples_us]
    first = timed[0] if timed else None
    return Pass(
        key.kernel,
        key.workload,
        key.device,
        key.toolchain,
        settings.measure.make_protocol(),
        tuple(_list_rows(found)),
        method=first.method if first else "",
        cache=first.cache if first else "",
        compiled=sum(trial.compiled for trial in trials),
        device_s=sum(trial.device_s for trial in trials),
        timing_s=sum(trial.timing_s for trial in trials),
        clocks=first.clocks if first else {},
        calibration=found.calibration,
    )


def _list_rows(found: Evaluated) -> Iterator[BenchRow]:
    """A row per config in the given order, then the baselines."""
    given = found.given
    named = [(variant, found.record_of(variant)) for variant in given.variants]
    default = next((record for variant, record in named if variant.is_default), None)
    first = next((record for _, record in named if record.samples_us), None)
    reader = _RowReader(default, given.target.kernel.cost(given.workload), found.calibration)
    for variant, record in named:
        row = BenchRow(variant.name, "config", variant.config, registers=record.registers or None)
        verdict = record.log_ratio and record is not first and record.log_ratio.verdict()
        row = replace(row, verdict=verdict or None, deterministic=record.deterministic)
        yield reader.read(row, record)
    for name in given.baselines:
        each = next((each for each in found.task.baselines if each.name == name), None)
        if each is not None:
            verdict = each.log_ratio and each.log_ratio.verdict()
            yield reader.read(BenchRow(name, "baseline", verdict=verdict or None), each)


@dataclass(frozen=True, slots=True)
class _RowReader:
    """Fills rows from records, relative to the default config."""

    default: TrialRecord | None
    cost: Cost
    calibration: Calibration | None

    def read(self, row: BenchRow, record: TrialRecord | BaselineRecord) -> BenchRow:
        if record.status is not Status.CORRECT:
            return replace(row, status=record.status, message=record.message, verdict=None)
        if not record.median_us:
            return replace(row, message="not timed", deterministic=None)
        bytes_per_us = self.cost.bytes / record.median_us
        return replace(
            row,
            median_us=record.median_us,
            log_ratio=record.log_ratio,
            over_default=self._over_default(record),
            gb_per_s=bytes_per_us / 1e3 or None,
            tflop_per_s=self.cost.flops / record.median_us / 1e6 or None,
            copy_share=self._copy_share(bytes_per_us),
            error=record.error,
            message=record.message,
            samples_us=record.samples_us,
        )

    def _over_default(self, record: TrialRecord | BaselineRecord) -> LogRatio | None:
        default = self.default.log_ratio if self.default is not None else None
        if default is None or record.log_ratio is None:
            return None
        return EQUAL if record is self.default else default - record.log_ratio

    def _copy_share(self, bytes_per_us: float) -> float | None:
        copy = self.calibration.copy_bytes_per_us if self.calibration else 0.0
        return bytes_per_us / copy if copy and bytes_per_us else None
