"""The records that the store takes and returns. Rows never leave `results_db`.

The columns of a table follow from the fields of its record: see `results_db.tables`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from search_spaces.records import Config, Device, Status, Toolchain, Value, Workload
from search_spaces.size_range import RangePlace
from tuner.base.log_ratio import LogRatio, Verdict
from workers.job_records import Calibration, Mode

#: Metadata of fields that `measurement` keeps, the table of trials that were timed or verified.
_MEASURED = {"table": "measurement"}


class Source(StrEnum):
    """Where the result of a trial comes from."""

    MEASURED = "measured"
    #: Compiled for a device that is absent and, where possible, verified.
    BUILT = "built"
    #: The binary equals that of another trial of the task.
    BINARY = "binary"
    #: An earlier run's result.
    REUSED = "reused"
    #: An earlier run's time of an equal binary, with its outputs verified in this run.
    VERIFIED = "verified"


class RunStatus(StrEnum):
    """How far a run has come."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class FireState(StrEnum):
    """How far a firing of a schedule has come."""

    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    #: Merged into a later firing.
    MISSED = "missed"
    #: Can be resumed.
    INTERRUPTED = "interrupted"


class Stage(StrEnum):
    """How far a task has come."""

    #: Not opened yet, which is never stored: the run searches a bounded number of tasks at once.
    WAITING = "waiting"
    #: Configs are asked, built, verified and screened against the incumbent.
    SEARCH = "search"
    #: The finalists are built again where needed, and raced.
    FINALS = "finals"
    #: The winner of the race is measured in a fresh process.
    CONFIRM = "confirm"
    #: Over: selected, without any correct variant, or left for a later run.
    DONE = "done"


#: How the note of a size of a range begins that was not tried, since its neighbours serve it.
LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class TaskKey:
    """The identity of a search. Results of two tasks are interchangeable if their keys match.

    `convert.reuse_key` is the rule for a match.
    """

    #: Name of the kernel.
    kernel: str
    #: The kernel's identity: a digest of its code and state.
    launch_hash: str
    #: Digest of the declared search space. It is not part of a match.
    space_hash: str
    workload: Workload
    device: Device
    toolchain: Toolchain
    #: Digest of the measurement protocol's constants.
    protocol: str = ""
    #: Digests of the jitted functions alone, as `tuner.runtime` computes them. Not part of a match.
    kernel_hashes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial, stored in one transaction. Times are in the unit of their name."""

    #: Unique name of the attempt; the same attempt stored twice is stored once.
    attempt_id: str
    #: Position in the order in which the strategy proposed the task's configs, from 0.
    number: int
    config: Config
    status: Status
    source: Source = Source.MEASURED
    #: One line on a failure.
    message: str = ""
    #: Raw text of a failure.
    detail: str = ""
    #: The strategy that proposed the config.
    strategy: str = ""
    #: The attempt that a `binary`, `reused` or `verified` result was copied from.
    copied_from: str = ""
    #: Equal hashes are equal machine code.
    binary_hash: str = ""
    #: 32-bit registers per thread; None where unknown, like the sizes below.
    registers: int | None = None
    #: Local memory per thread, bytes.
    spill_bytes: int | None = None
    #: Shared memory of a block, bytes.
    shared_bytes: int | None = None
    #: Size of the binaries, bytes.
    binary_bytes: int | None = None
    #: Seconds of building.
    build_s: float = 0.0
    #: This trial's share of the seconds for which the device was held.
    device_s: float = 0.0
    #: Of `device_s`, the seconds spent timing.
    timing_s: float = field(default=0.0, metadata=_MEASURED)
    #: The runner, or the builder of a trial that no runner received.
    worker: str = ""
    #: The timing method; empty when nothing was timed.
    method: str = field(default="", metadata=_MEASURED)
    #: The cache policy: `cold`, `rotate` or `warm`.
    cache: str = field(default="", metadata=_MEASURED)
    #: Config key of the incumbent in the same screening.
    incumbent: str = field(default="", metadata=_MEASURED)
    #: Calibrated median time; None when nothing was timed.
    median_us: float | None = field(default=None, metadata=_MEASURED)
    #: ln(time / incumbent's time) in the same screening.
    log_ratio: LogRatio | None = field(default=None, metadata=_MEASURED)
    #: ||out - ref|| / ||ref||, the largest over all seeds.
    error: float | None = field(default=None, metadata=_MEASURED)
    #: Launches that compiled on the device worker.
    compiled: int = field(default=0, metadata=_MEASURED)
    #: The check that the outputs passed.
    verified_by: str = field(default="", metadata=_MEASURED)
    #: Whether a repetition gave the same bits; None where no repetition was compared.
    deterministic: bool | None = field(default=None, metadata=_MEASURED)
    #: Digest of the bits of single rows, equal for configs that give them the same bits; None where
    #: they were not compared.
    row_bits: str | None = field(default=None, metadata=_MEASURED)
    #: Raw times in the order of measurement.
    samples_us: tuple[float, ...] = field(default=(), repr=False, metadata=_MEASURED)
    #: Raw times of the incumbent in the same screening.
    incumbent_samples_us: tuple[float, ...] = field(default=(), repr=False, metadata=_MEASURED)
    #: What the device monitor recorded during the measurement.
    clocks: Mapping[str, float | str] = field(default_factory=dict, metadata=_MEASURED)
    finished_at: datetime | None = None

    @property
    def must_spill(self) -> bool:
        """Whether the build was refused because the variant has to spill: it is slow, as far as
        anybody knows, and not impossible."""
        return self.status is Status.CONSTRAINTS and not self.registers and bool(self.spill_bytes)

    @property
    def state(self) -> str:
        """Its status, or `NOT_CHECKED`."""
        return describe_state(self.status, self.verified_by, self.median_us)


#: The state of a variant that was built, and that nothing ran.
NOT_CHECKED = "not checked"


def describe_state(status: Status, verified_by: str | None, median_us: float | None) -> str:
    """The status of a trial; `NOT_CHECKED` where nothing says that a correct one was run."""
    run = status is not Status.CORRECT or verified_by or median_us is not None
    return str(status) if run else NOT_CHECKED


def describe_wrong(count: int, config: Config, message: str) -> str:
    """`13 wrong results, e.g. BLOCK=2048: 7.781, not 6.723`, of trials and one of them."""
    values = " ".join(f"{name}={value}" for name, value in config.items())
    what = f"{count:,} wrong results, e.g." if count > 1 else "1 wrong result,"
    return f"{what} {values}: {message}"


@dataclass(frozen=True, slots=True)
class RunChecks:
    """What the checks of a run's trials found."""

    #: `describe_wrong` of the trials with wrong results; empty without any.
    wrong: str
    #: Trials that were checked, not timed; and those that nothing ran.
    checked: int
    unchecked: int


#: Every status but `correct`.
FAILURES = tuple(status for status in Status if status is not Status.CORRECT)


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """A selection of trials; every condition must hold."""

    #: Only trials of this run; None for all runs.
    run_id: int | None = None
    #: Only trials of the kernel with this name; None for all kernels.
    kernel: str | None = None
    #: Dims that the workload must have, written as in its key: `M=32`.
    words: tuple[str, ...] = ()
    #: Only trials with one of these statuses.
    statuses: tuple[Status, ...] = FAILURES
    #: Only trials with this text in their message or detail, in upper or lower case.
    text: str = ""


@dataclass(frozen=True, slots=True)
class FoundTrial:
    """A stored trial and the task it belongs to."""

    attempt_id: str
    run_id: int
    task_id: int
    #: Name of the kernel.
    kernel: str
    workload: Workload
    #: Name of the device.
    device: str
    config: Config
    status: Status
    #: The failure in one line; empty for a correct trial.
    message: str
    #: As in `TrialRecord`, like those that follow.
    number: int
    source: Source
    strategy: str
    median_us: float | None
    verified_by: str | None
    registers: int | None
    spill_bytes: int | None
    shared_bytes: int | None

    @property
    def state(self) -> str:
        """Its status, or `NOT_CHECKED`."""
        return describe_state(self.status, self.verified_by, self.median_us)


@dataclass(frozen=True, slots=True)
class BaselineRecord:
    """One baseline in the confirmation."""

    name: str
    #: Why the baseline has no time, else `correct`.
    status: Status
    #: Confirmed median time.
    median_us: float | None = None
    #: ln(baseline time / winner time): positive when the winner is faster.
    log_ratio: LogRatio | None = None
    #: ||out - ref|| / ||ref||.
    error: float | None = None
    #: One line on a failure.
    message: str = ""
    #: Raw times in the order of measurement.
    samples_us: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class FinalRecord:
    """The measurement of one finalist in the race or in the confirmation."""

    #: `race` or `confirm`.
    stage: Mode
    config: Config
    #: Why the finalist has no time, else `correct`.
    status: Status = Status.CORRECT
    median_us: float | None = None
    #: ln(time / reference's time): positive when slower. The reference of a race is its leader;
    #: the reference of a confirmation is the winner. A reference's own ratio is 0.
    #: The intervals of a race hold jointly, with the probability that the protocol states.
    log_ratio: LogRatio | None = None
    #: Raw times in the order of the passes.
    samples_us: tuple[float, ...] = field(default=(), repr=False)
    #: Whether the finalist was dropped before the end of the race, and so has fewer samples.
    dropped: bool = False
    #: One line on a failure.
    message: str = ""
    #: The timing method.
    method: str = ""
    #: The cache policy.
    cache: str = ""


@dataclass(frozen=True, slots=True)
class SelectionRecord:
    """The outcome of a task: the winner, its tie set and the verdict."""

    winner: Config
    #: All configs that cannot be distinguished from the winner, itself included.
    tie_set: tuple[Config, ...]
    #: The winner against the default config.
    verdict: Verdict
    #: How the winner was chosen from its tie set.
    reason: str = ""
    runner_up: Config | None = None
    default: Config | None = field(default=None, metadata={"column": "default_config"})
    #: The winner's median time in the confirmation.
    median_us: float | None = None
    #: The default config's median time in the confirmation.
    default_us: float | None = None
    #: ln(default time / winner time): positive when the winner is faster.
    log_ratio: LogRatio | None = None
    #: The winner's raw times in the confirmation.
    samples_us: tuple[float, ...] = field(default=(), repr=False)
    #: Launches that compiled on the device worker during the confirmation.
    compiled: int = 0
    #: What the device monitor recorded during the confirmation.
    clocks: Mapping[str, float | str] = field(default_factory=dict)
    confirmed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One execution of a campaign, as listings show it."""

    run_id: int
    campaign: str
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None
    #: Digest of what was requested; equal hashes may be resumed.
    spec_hash: str
    seed: int
    #: Facts about host, code and configuration.
    environment: Mapping[str, Value] = field(default_factory=dict)
    #: Figures that listings show.
    summary: Mapping[str, Value] = field(default_factory=dict)
    #: `host:pid` of the driver that holds the run; empty when no driver holds it.
    holder: str = ""
    #: The driver's last heartbeat, by the database's clock.
    heartbeat_at: datetime | None = None
    #: Random token of the driver that holds the run; empty when no driver holds it.
    lease: str = ""
    #: Identity of the driver's process as `tuner.campaign.lease.identity` writes it;
    #: empty where unknown.
    process: str = ""
    #: The name that a user has given to this run alone; None without one.
    tag: str | None = None
    #: Seconds since the last heartbeat when this was read, by the database's clock.
    silent_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task of a run with its outcome."""

    task_id: int
    run_id: int
    key: TaskKey
    stage: Stage
    #: Least operations of the workload.
    flops: float = 0.0
    #: Least bytes of the workload through device memory.
    bytes: float = 0.0
    #: Admissible relative error of the outputs.
    tolerance: float | None = None
    #: One line on the task, for example why its search ended.
    note: str = ""
    selection: SelectionRecord | None = None
    baselines: tuple[BaselineRecord, ...] = ()
    finals: tuple[FinalRecord, ...] = ()
    #: Where the workload is one of the sizes of a range.
    place: RangePlace | None = None

    @property
    def left_out(self) -> bool:
        """Whether it is a size of a range that was not tried."""
        return self.stage is Stage.DONE and self.note.startswith(LEFT_OUT)


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """One task as a listing shows it."""

    task_id: int
    kernel: str
    #: The workload's key.
    workload: str
    #: The device's name.
    device: str
    stage: Stage
    #: One line on the task.
    note: str
    #: Number of finished trials.
    trials: int
    #: Number of trials with correct outputs.
    correct: int
    #: The least median time of a correct trial, in microseconds.
    best_us: float | None
    selection: SelectionRecord | None = None
    #: The baselines of the confirmation, without their samples.
    baselines: tuple[BaselineRecord, ...] = ()
    #: Status and message of the most frequent failure, where no trial is correct.
    failure: str = ""
    #: Number of trials with that failure.
    failures: int = 0

    @property
    def left_out(self) -> bool:
        """Whether it is a size of a range that was not tried."""
        return self.stage == Stage.DONE and self.note.startswith(LEFT_OUT)

    @property
    def why_none_correct(self) -> str:
        """The commonest failure where no trial of the task is correct; else empty."""
        if not self.failure:
            return ""
        return f"none of {self.trials} variants is correct; {self.failure} ({self.failures}x)"


@dataclass(frozen=True, slots=True)
class ConfirmedTask:
    """A task with a confirmed time, in outline: enough to say which result is the best known."""

    task_id: int
    #: Name of the kernel.
    kernel: str
    #: The kernel's identity: a digest of its code and state.
    launch_hash: str
    #: The workload's key.
    workload: str
    #: The device's backend kind, such as `cuda`.
    device_kind: str
    #: The device's name.
    device: str
    #: The device's target, such as `cuda:90`.
    target: str
    #: The digest that equal devices share.
    fingerprint: str
    #: Version of torch; empty where unknown, like Triton's.
    torch: str
    triton: str
    #: Times of the winner and of the default config in the confirmation.
    median_us: float
    default_us: float | None


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """The calibration of one device and its clock when a worker started."""

    device: Device
    toolchain: Toolchain
    #: Name of the worker's host.
    host: str
    measured_at: datetime
    calibration: Calibration


#: What the record of firings calls the morning note; no campaign has that name.
NOTE = "tuner note"


@dataclass(frozen=True, slots=True)
class Fire:
    """One firing of a schedule. UNIQUE (schedule, instant) makes it happen once."""

    schedule: str
    #: The time for which the schedule asks.
    instant: datetime
    state: FireState
    #: The host that claimed the firing.
    host: str = ""
    #: The run that the firing started.
    run_id: int | None = None
    #: The time of the claim, by the database's clock.
    fired_at: datetime | None = None
    #: One line on a failure.
    message: str = ""
    #: Identity of the claiming process as `tuner.campaign.lease.identity` writes it;
    #: empty where unknown.
    process: str = ""
    #: Number of starts.
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class ExportInfo:
    """One file that was written from results."""

    path: str
    #: Name of the exporter.
    format: str
    run_id: int | None
    #: SHA-256 of the content.
    sha256: str
    #: The tasks whose results the file holds.
    task_ids: tuple[int, ...]
    exported_at: datetime
