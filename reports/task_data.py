"""One task of a run with its trials, and its outcome: the chosen config, its speed and ratios."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from reports.quantity import clean, finite, pairs, rate
from results_db.config_text import describe_changes
from results_db.shipped import Shipped, describe_ratio, fastest_baseline, select_shipped
from results_db.stored_records import BaselineRecord, Source, TaskInfo, TrialRecord
from search_spaces.records import Config, Device, Status, Workload
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


def compiled(trial: TrialRecord) -> bool:
    """Whether the trial's build produced a binary."""
    return bool(trial.binary_hash) or trial.registers is not None


def time_us(trial: TrialRecord) -> float:
    """The trial's time; NaN where it has none."""
    value = finite(trial.median_us)
    return math.nan if value is None else value


@dataclass(frozen=True)  # without slots, for what is kept after its first use
class TaskData:
    """One task of the run."""

    info: TaskInfo
    #: In the order in which they finished.
    trials: tuple[TrialRecord, ...]
    #: Its anchor in the page.
    slug: str
    #: Kernel and workload, with the device where needed. Labels are unique in a run.
    label: str
    #: The workload with the sizes that its config serves, of a task that stands for them.
    served: str = ""
    #: In the run, from 1, as `tuner show` takes it.
    number: int = 0
    #: What was drawn of it, by section, so that it is drawn once.
    drawn: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def kernel(self) -> str:
        return self.info.key.kernel

    @property
    def workload(self) -> str:
        return self.served or self.info.key.workload.key

    @property
    def device(self) -> str:
        """Name of the device; the target where the device is absent."""
        device = self.info.key.device
        return device.target if self.absent else device.name or device.target

    @cached_property
    def absent(self) -> bool:
        """Whether the device is absent, so that variants were only compiled."""
        device = self.info.key.device
        backend = backend_kinds.spec_of_stored(device.kind)
        limits_only = backend.accelerator and not device.sm_count and not device.memory_bytes
        built = any(trial.source == Source.BUILT for trial in self.trials)
        return not backend.timed or (not self.timed and (built or limits_only))

    @cached_property
    def correct(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.trials if trial.status is Status.CORRECT)

    @property
    def failed(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.trials if trial.status is not Status.CORRECT)

    @cached_property
    def timed(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.correct if finite(trial.median_us) is not None)

    @cached_property
    def configs(self) -> tuple[str, ...]:
        """The config of each trial as text."""
        return tuple(clean(pairs(trial.config)) for trial in self.trials)

    @property
    def screened(self) -> tuple[TrialRecord, ...]:
        """Trials that were timed on the device in this run."""
        return tuple(t for t in self.trials if t.source == Source.MEASURED and t.samples_us)

    @property
    def fastest_trial(self) -> TrialRecord | None:
        """The fastest trial of the search, before the confirmation."""
        return min(self.timed, key=lambda trial: trial.median_us or 0.0, default=None)

    @cached_property
    def state(self) -> str:
        """`confirmed`, `unconfirmed` (timed by the search only), `built` (the device is absent),
        `failed` (no config was correct) or `empty`."""
        selection = self.info.selection
        if not self.trials and selection is None:
            return "empty"
        if self.absent:
            return "built" if any(map(compiled, self.trials)) else "failed"
        if selection is not None and finite(selection.median_us) is not None:
            return "confirmed"
        return "unconfirmed" if self.timed else "failed"

    # -- outcome: a positive log-ratio means that the chosen config is faster ----------------------
    @cached_property
    def ships(self) -> Shipped | None:
        """The config in the table; None where nothing is confirmed."""
        selection = self.info.selection
        return select_shipped(selection) if self.confirmed and selection else None

    @property
    def confirmed(self) -> bool:
        """Whether the times come from the confirmation, else from the search."""
        return self.state == "confirmed"

    @cached_property
    def verdict(self) -> str:
        """Against the default config: a `Verdict` or `DEFAULT_KEPT`; else a state of `VERDICTS`."""
        if self.ships and self.info.selection:
            return DEFAULT_KEPT if self.ships.default_kept else self.info.selection.verdict
        return {"built": "not timed", "empty": "no trials"}.get(self.state, self.state)

    @property
    def config(self) -> Config | None:
        """The chosen config, or the fastest trial's where nothing is confirmed."""
        chosen = self.ships or self._unconfirmed
        return chosen.config if chosen else None

    def describe(self, config: Config) -> list[str] | None:
        """What differs in a config from the default, by parameter; None without a default."""
        default = self.info.selection.default if self.info.selection else None
        return None if default is None else describe_changes(config, default)

    @property
    def median_us(self) -> float | None:
        """The time of the config."""
        chosen = self.ships or self._unconfirmed
        return finite(chosen.median_us) if chosen else None

    @property
    def _unconfirmed(self) -> TrialRecord | None:
        return self.fastest_trial if self.state == "unconfirmed" else None

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """95 % interval of the median of a confirmed config."""
        if self.ships is None or self.info.selection is None:
            return None
        return median_interval(self.ships.samples_us(self.info.selection, self.info.finals))

    @property
    def default_us(self) -> float | None:
        """The confirmed time of the default config."""
        selection = self.info.selection
        return finite(selection.default_us) if self.confirmed and selection else None

    @property
    def over_default(self) -> LogRatio | None:
        """ln(default time / time)."""
        return self.ships.log_ratio if self.ships else None

    @property
    def baseline(self) -> BaselineRecord | None:
        """The fastest correct baseline of a confirmed task."""
        return fastest_baseline(self.info.baselines) if self.confirmed else None

    def over(self, baseline: BaselineRecord | None) -> LogRatio | None:
        """ln(baseline time / time); None where nothing is confirmed."""
        return self.ships.over(baseline) if self.ships and baseline else None

    @cached_property
    def over_baseline(self) -> LogRatio | None:
        """ln(time of the fastest correct baseline / time)."""
        return self.over(self.baseline)

    @property
    def kept_because(self) -> str:
        """Why the default config stays instead of the winner; empty where the winner is chosen."""
        return self.ships.kept_because if self.ships else ""

    @property
    def ties(self) -> int:
        """Number of configs that cannot be distinguished from the chosen one, itself included."""
        return len(self.ships.ties) if self.ships else 0

    @property
    def device_compiles(self) -> int:
        """Launches that compiled on the device worker."""
        selection = self.info.selection
        late = sum(trial.compiled for trial in self.trials)
        return late + (selection.compiled if selection else 0)

    @property
    def standing(self) -> str:
        """A key of `VERDICTS`: against what one would run instead.

        That is the fastest correct baseline, and where there is none the default config.
        """
        over = self.over_baseline or self.over_default
        return (-over).verdict() if self.confirmed and over else self.verdict

    @property
    def against_baseline(self) -> str:
        """`1.08x eager`, `1.08x? eager [0.86, 1.35]` if undecided; empty where unknown."""
        best = self.baseline
        return describe_ratio(self.over_baseline, best.name) or "" if best else ""

    @property
    def phrase(self) -> str:
        """Both comparisons in words, else the state of the task."""
        if not self.confirmed:
            return self.standing
        kept = "the default config stays" if self.kept_because else ""
        default = kept or describe_ratio(self.over_default, "the default")
        texts = (default, self.against_baseline or "no correct baseline")
        return ", ".join(text for text in texts if text)

    # -- speed -------------------------------------------------------------------------------------
    @property
    def gb_s(self) -> float | None:
        moved = finite(self.info.bytes)
        return moved / self.median_us / 1e3 if moved and self.median_us else None

    @property
    def tflop_s(self) -> float | None:
        flops = finite(self.info.flops)
        return flops / self.median_us / 1e6 if flops and self.median_us else None

    @property
    def rates(self) -> list[str]:
        """Its speed as TFLOP/s and GB/s, in units that fit, where known."""
        known = ((self.tflop_s, 1e12, "FLOP"), (self.gb_s, 1e9, "B"))
        return [rate(value * scale, unit) for value, scale, unit in known if value is not None]

    @cached_property
    def roofline(self) -> float | None:
        """Share of the speed that the device's data sheet allows."""
        info, config = self.info, self.config
        if not self.median_us or config is None:
            return None
        flops, moved = finite(info.flops) or 0.0, finite(info.bytes) or 0.0
        bound_us = roofline_us(info.key.device, info.key.workload, config, flops, moved)
        return bound_us / self.median_us if bound_us else None


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
