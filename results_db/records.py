"""Records in and out of the store; SQLAlchemy models never leave `results_db`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from search_spaces.records import Config, Device, Status, Toolchain, Value, Workload
from workers.records import Calibration


@dataclass(frozen=True, slots=True)
class TaskKey:
    """What one search is about, and what makes two results interchangeable."""

    kernel: str
    #: Digest of what is launched: code and constants behind the launches.
    launch_hash: str
    #: Digest of what is correct: reference, inputs, tolerance, baselines; empty where unknown.
    check_hash: str
    space_hash: str
    workload: Workload
    device: Device
    toolchain: Toolchain
    #: Digest of the measuring protocol's constants.
    protocol: str = ""
    #: Digests of the jitted functions alone, as the runtime computes them; no part of a match.
    kernel_hashes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial, ready to be stored in one transaction.

    attempt_id: unique; storing the same attempt twice stores it once. number: position in the
    task's ask order. source: `measured`, `built` (no device: compiled and, where possible,
    verified), `binary` (same binary as another trial of the task), `reused` (from an earlier
    run) or `verified` (the time of an earlier run's equal binary, verified anew). twin: attempt_id
    of the trial a `binary`, `reused` or `verified` result was taken from.
    median_us: calibrated time, None when nothing was timed. log_ratio with its 95 % interval is
    against the incumbent whose config key is `incumbent`. error: ||out - ref|| / ||ref||.
    device_s: this trial's share of the seconds the device was held; timing_s: of these, the
    seconds spent timing. deterministic: whether a repetition gave the same bits, None when that
    was not looked at.
    """

    attempt_id: str
    number: int
    config: Config
    status: Status
    source: str = "measured"
    message: str = ""
    detail: str = ""
    strategy: str = ""
    twin: str = ""
    binary_hash: str = ""
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    binary_bytes: int | None = None
    build_s: float = 0.0
    device_s: float = 0.0
    timing_s: float = 0.0
    worker: str = ""
    method: str = ""
    cache: str = ""
    incumbent: str = ""
    median_us: float | None = None
    log_ratio: float | None = None
    log_ratio_low: float | None = None
    log_ratio_high: float | None = None
    error: float | None = None
    compiled: int = 0
    verified_by: str = ""
    deterministic: bool | None = None
    samples_us: tuple[float, ...] = field(default=(), repr=False)
    incumbent_samples_us: tuple[float, ...] = field(default=(), repr=False)
    clocks: Mapping[str, float | str] = field(default_factory=dict)
    finished_at: datetime | None = None


#: What a trial can come to but for `correct`.
FAILURES = tuple(status for status in Status if status is not Status.CORRECT)


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Which trials are meant; every condition must hold."""

    #: Of this run only, None for all.
    run_id: int | None = None
    #: Of the kernel with this name only, None for all.
    kernel: str | None = None
    #: Dims that the workload must have, as the words `M=32` of its key.
    words: tuple[str, ...] = ()
    #: With one of these statuses.
    statuses: tuple[Status, ...] = FAILURES
    #: With this text in the message or its details, in upper or lower case.
    text: str = ""


@dataclass(frozen=True, slots=True)
class FoundTrial:
    """A stored trial and the task it belongs to."""

    #: Its unique id.
    attempt_id: str
    #: The run of its task.
    run_id: int
    #: Its task.
    task_id: int
    #: The name of the kernel.
    kernel: str
    #: The problem.
    workload: Workload
    #: The name of the device.
    device: str
    #: The config.
    config: Config
    #: What it came to.
    status: Status
    #: Why, in one line; empty for a correct one.
    message: str


@dataclass(frozen=True, slots=True)
class BaselineRecord:
    """A baseline's time in the confirmation pass; status says why it has none.

    log_ratio is ln(baseline time / winner time): positive when the winner is faster.
    """

    name: str
    status: Status
    median_us: float | None = None
    log_ratio: float | None = None
    log_ratio_low: float | None = None
    log_ratio_high: float | None = None
    error: float | None = None
    message: str = ""
    samples_us: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class FinalRecord:
    """What the race or the confirmation measured of one finalist.

    stage: `race` or `confirm`. status and message say why a finalist has no time. log_ratio is
    ln(time / reference's time), so positive when slower; the reference of a race is its leader,
    that of a confirmation the winner, and its own ratio is 0. The intervals of a race hold
    together, with the probability its protocol states; those of a confirmation are 95 % each.
    dropped: left the race before its end, so its samples are fewer. samples_us: in order of the
    passes.
    """

    stage: str
    config: Config
    status: Status = Status.CORRECT
    median_us: float | None = None
    log_ratio: float | None = None
    log_ratio_low: float | None = None
    log_ratio_high: float | None = None
    samples_us: tuple[float, ...] = field(default=(), repr=False)
    dropped: bool = False
    message: str = ""
    method: str = ""
    cache: str = ""


@dataclass(frozen=True, slots=True)
class SelectionRecord:
    """The outcome of a task: the winner, all that cannot be told from it, and the verdict.

    winner, tie_set and runner_up are configs. verdict compares the winner with the default
    config: `faster`, `slower`, `same`, `undecided`. median_us and default_us come from the
    confirmation only. log_ratio is ln(default time / winner time) with its 95 % interval.
    reason: how the winner was chosen among its tie set.
    """

    winner: Config
    tie_set: tuple[Config, ...]
    verdict: str
    reason: str = ""
    runner_up: Config | None = None
    default: Config | None = None
    median_us: float | None = None
    default_us: float | None = None
    log_ratio: float | None = None
    log_ratio_low: float | None = None
    log_ratio_high: float | None = None
    samples_us: tuple[float, ...] = field(default=(), repr=False)
    compiled: int = 0
    clocks: Mapping[str, float | str] = field(default_factory=dict)
    confirmed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One execution of a campaign, as listings show it.

    status: `running`, `finished`, `interrupted` or `failed`. holder: `host:pid` of the driver that
    works on it, with its last sign of life; empty when none does.
    """

    run_id: int
    campaign: str
    status: str
    started_at: datetime
    finished_at: datetime | None
    spec_hash: str
    seed: int
    environment: Mapping[str, Value] = field(default_factory=dict)
    summary: Mapping[str, Value] = field(default_factory=dict)
    holder: str = ""
    #: By the database's clock.
    heartbeat_at: datetime | None = None
    #: Random token of the driver that holds the run; empty when none does.
    lease: str = ""
    #: Which process that driver is, as `tuner.campaign.process_identity.identity` says; empty
    #: where not known.
    process: str = ""
    #: Seconds since the last sign of life, by the database's clock, when this was read.
    silent_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task of a run: its key, its stage (`search`, `finals`, `confirm`, `done`) and result."""

    task_id: int
    run_id: int
    key: TaskKey
    stage: str
    flops: float = 0.0
    bytes: float = 0.0
    tolerance: float | None = None
    note: str = ""
    selection: SelectionRecord | None = None
    baselines: tuple[BaselineRecord, ...] = ()
    finals: tuple[FinalRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """One task as a listing shows it."""

    task_id: int
    kernel: str
    #: The workload's key.
    workload: str
    #: The device's name.
    device: str
    stage: str
    note: str
    trials: int
    #: Of these.
    correct: int
    #: The best time of a trial, in microseconds.
    best_us: float | None
    selection: SelectionRecord | None = None
    #: Where there are trials and none is correct: status and message of the commonest failure.
    failure: str = ""
    #: How often that failure happened.
    failures: int = 0


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """What one device and its clock could do when a worker on `host` started."""

    device: Device
    toolchain: Toolchain
    host: str
    measured_at: datetime
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class Fire:
    """One firing of a schedule: UNIQUE (schedule, instant) makes it happen once.

    state: `started`, `finished`, `failed`, `missed` (coalesced into a later one), `interrupted` (to
    be gone on with).
    """

    schedule: str
    instant: datetime
    state: str
    host: str = ""
    run_id: int | None = None
    #: By the database's clock.
    fired_at: datetime | None = None
    message: str = ""
    #: Which process took it, as `tuner.campaign.process_identity.identity` says; empty where not
    #: known.
    process: str = ""
    #: How often it was started.
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class ExportInfo:
    """One table or file written from results: its format, SHA-256 and the tasks it holds."""

    path: str
    format: str
    run_id: int | None
    sha256: str
    task_ids: tuple[int, ...]
    exported_at: datetime
