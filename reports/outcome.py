"""The outcome of one task in numbers, for summary, leaderboard and details."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reports.quantity import finite, rate
from reports.source import TaskData
from results_db.shipped import Shipped, describe_ratio, select_shipped
from results_db.stored_records import BaselineRecord
from search_spaces.records import Config, Device, Workload
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.base.statistics import median_interval
from workers import backend_kinds
from workers.backend_kinds import Peak

#: Each verdict with an icon and its meaning, so that colour is never the only sign. The first four
#: are against the fastest correct baseline, and where there is none against the default config.
VERDICTS = {
    Verdict.FASTER: ("▲", "faster than the fastest correct baseline, else the default config"),
    Verdict.SLOWER: ("▼", "slower than the fastest correct baseline, else the default config"),
    Verdict.SAME: ("=", "within 1 % of the fastest correct baseline, else the default config"),
    Verdict.UNDECIDED: ("?", "the noise is larger than the difference"),
    "unconfirmed": ("◔", "timed by the search, not confirmed yet"),
    "not timed": ("○", "compiled for a device that is absent, never timed"),
    "failed": ("✕", "no config gave correct results"),
    "no trials": ("·", "no config was tried"),
}
DEFAULT_KEPT = "default kept"
_HALF = ("float16", "bfloat16", "fp16", "bf16")
_EIGHT = ("float8", "fp8", "int8", "uint8")


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The chosen config of a task. A positive log-ratio means that it is faster."""

    #: Against the default config: a `Verdict` or `DEFAULT_KEPT`; else a state of `VERDICTS`.
    verdict: str
    #: The chosen config, or the fastest trial's where nothing is confirmed.
    config: Config | None
    #: Whether the times come from the confirmation, else from the search.
    confirmed: bool
    median_us: float | None
    #: 95 % interval of the median.
    interval_us: tuple[float, float] | None
    default_us: float | None
    #: ln(default time / time).
    over_default: LogRatio | None
    #: The fastest correct baseline.
    baseline: BaselineRecord | None
    #: ln(baseline time / time).
    over_baseline: LogRatio | None
    #: Share of the speed that the device's data sheet allows.
    roofline: float | None
    gb_s: float | None
    tflop_s: float | None
    #: Number of configs that cannot be distinguished from the chosen one, itself included.
    ties: int
    #: Launches that compiled on the device worker.
    compiled: int
    #: The config in the table; None where nothing is confirmed.
    ships: Shipped | None = None

    @property
    def kept_because(self) -> str:
        """Why the default config stays instead of the winner; empty where the winner is chosen."""
        return self.ships.kept_because if self.ships else ""

    def over(self, baseline: BaselineRecord) -> LogRatio | None:
        """ln(baseline time / time); None where nothing is confirmed."""
        return self.ships.over(baseline) if self.ships else None

    @property
    def standing(self) -> str:
        """A key of `VERDICTS`: against what one would run instead.

        That is the fastest correct baseline, and where there is none the default config.
        """
        over = self.over_baseline or self.over_default
        return (-over).verdict() if self.confirmed and over else self.verdict

    @property
    def icon(self) -> str:
        return VERDICTS[self.standing][0]

    @property
    def meaning(self) -> str:
        return VERDICTS[self.standing][1]

    @property
    def against_default(self) -> str:
        """`1.56x the default`; empty where unknown."""
        if self.kept_because:
            return "the default config stays"
        over = self.over_default
        return describe_ratio(over, "the default") or ""

    @property
    def against_baseline(self) -> str:
        """`1.08x eager`, `1.08x? eager [0.86, 1.35]` if undecided; empty where unknown."""
        over, best = self.over_baseline, self.baseline
        return describe_ratio(over, best.name) or "" if best else ""

    @property
    def phrase(self) -> str:
        """Both comparisons in words, else the state of the task."""
        if not self.confirmed:
            return self.standing
        baseline = self.against_baseline or "no correct baseline"
        return ", ".join(text for text in (self.against_default, baseline) if text)

    @property
    def rates(self) -> list[str]:
        """Its speed as TFLOP/s and GB/s, in units that fit, where known."""
        pairs = ((self.tflop_s, 1e12, "FLOP"), (self.gb_s, 1e9, "B"))
        return [rate(value * scale, unit) for value, scale, unit in pairs if value is not None]


def outcome(task: TaskData) -> TaskOutcome:
    """The outcome of a task: of its selection, or of its search where no selection is confirmed."""
    confirmed = task.state == "confirmed"
    selection = task.info.selection if confirmed else None
    fastest = task.fastest_trial if task.state == "unconfirmed" else None
    ships = select_shipped(selection) if selection else None
    config = ships.config if ships else fastest.config if fastest else None
    median_us = finite(ships.median_us if ships else fastest.median_us if fastest else None)
    gb_s, tflop_s, roofline = _rates(task, config, median_us)
    result = TaskOutcome(
        verdict=_verdict(task, ships),
        config=config,
        confirmed=confirmed,
        median_us=median_us,
        interval_us=median_interval(ships.samples_us(selection, task.info.finals))
        if ships and selection
        else None,
        default_us=finite(selection.default_us) if selection else None,
        over_default=ships.log_ratio if ships else None,
        baseline=task.fastest_baseline if confirmed else None,
        over_baseline=None,
        roofline=roofline,
        gb_s=gb_s,
        tflop_s=tflop_s,
        ties=len(ships.ties) if ships else 0,
        compiled=sum(trial.compiled for trial in task.trials)
        + (task.info.selection.compiled if task.info.selection else 0),
        ships=ships,
    )
    over_baseline = result.over(result.baseline) if result.baseline else None
    return replace(result, over_baseline=over_baseline)


def _verdict(task: TaskData, ships: Shipped | None) -> str:
    if ships is not None and ships.default_kept:
        return DEFAULT_KEPT
    selection = task.info.selection
    if task.state == "confirmed" and selection is not None:
        return selection.verdict
    return {
        "unconfirmed": "unconfirmed",
        "built": "not timed",
        "failed": "failed",
        "empty": "no trials",
    }[task.state]


def _rates(
    task: TaskData, config: Config | None, median_us: float | None
) -> tuple[float | None, float | None, float | None]:
    info = task.info
    if not median_us or config is None:
        return None, None, None
    flops, moved = finite(info.flops) or 0.0, finite(info.bytes) or 0.0
    bound_us = roofline_us(info.key.device, info.key.workload, config, flops, moved)
    return (
        moved / median_us / 1e3 if moved else None,
        flops / median_us / 1e6 if flops else None,
        bound_us / median_us if bound_us else None,
    )


def peak_of(device: Device) -> Peak | None:
    """The peak rates of a device, of a recorded one too; None where its backend has none."""
    backend = backend_kinds.spec_of_stored(device.kind)
    if backend.replayed:
        backend = backend_kinds.spec_of_stored(device.target.partition(":")[0])
    return backend.peak(device)


def roofline_us(
    device: Device, workload: Workload, config: Config, flops: float, moved_bytes: float
) -> float | None:
    """The roofline bound in microseconds; None for an unknown device."""
    peak = peak_of(device)
    if peak is None or (flops <= 0 and moved_bytes <= 0):
        return None
    rate = _rate(peak, workload, config)
    return max(moved_bytes / (peak.memory_gb_s * 1e3), flops / (rate * 1e6))


def _rate(peak: Peak, workload: Workload, config: Config) -> float:
    """TFLOP/s of the operand type that the config's precision or the workload's dtype names."""
    precision = f"{config.get('precision', '')}"
    if precision in ("tf32", "tf32x3") and peak.tf32:
        return peak.tf32 / (3 if precision == "tf32x3" else 1)
    words = (precision, *(f"{value}" for _, value in workload.dims))
    if any(word.startswith(_EIGHT) for word in words):
        return peak.eight_bit
    return peak.half if any(word.startswith(_HALF) for word in words) else peak.fp32
