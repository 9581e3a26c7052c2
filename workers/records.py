"""What builders and runners are given and give back. A bad config is a value, never an exception.

Standard library only, so that these records cross process and cluster boundaries cheaply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from search_spaces.records import Config, Device, Status, Toolchain, Value, Workload


@dataclass(frozen=True, slots=True)
class KernelRef:
    """Where another process finds a kernel: its spec and extra import paths."""

    spec: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StaticFacts:
    """What a binary says of itself without being run; the worst of a variant's launches.

    registers: 32-bit registers per thread. spill_bytes: local memory per thread.
    shared_bytes: static plus dynamic shared memory of one block.
    """

    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    num_warps: int = 0
    binary_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built variant: the compiler cache's files and the facts read from its binaries.

    binary_hash covers code, grid and launch options: equal hashes run the same machine code.
    files maps paths relative to the compiler's cache folder to their (zlib-compressed) contents.
    keys: of each Triton kernel, the parts of its key in the compiler's cache, as text by name.
    """

    config: Config
    target: str
    toolchain: Toolchain
    binary_hash: str
    facts: StaticFacts = StaticFacts()
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    build_s: float = 0.0
    keys: tuple[Mapping[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial has no measurement: a status, one line for people, and the raw detail.

    facts and binary_hash are given where a build got far enough to have them.
    """

    status: Status
    message: str
    detail: str = ""
    build_s: float = 0.0
    facts: StaticFacts | None = None
    binary_hash: str = ""


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Build one variant for a target. `device` gives the limits the binary must keep."""

    job_id: str
    kernel: KernelRef
    workload: Workload
    config: Config
    device: Device
    timeout_s: float = 60.0


class Mode(StrEnum):
    """What a runner does with its candidates.

    SCREENING: verify the candidates and screen them, interleaved, against the incumbent; who
    cannot be the best is dropped early. RACE: verify all candidates and interleave them, dropping
    losers, until the best is known. CONFIRM: in a fresh child process, all candidates and the named
    baselines to the full number of passes. VERIFY: correctness only, nothing is timed.
    """

    SCREENING = "screening"
    RACE = "race"
    CONFIRM = "confirm"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class MeasurementProtocol:
    """The constants of the measuring protocol; part of what makes two timings comparable.

    method: `events`, `graph`, `cupti`, or `auto`, which chooses by the kernel's duration, once for
    all candidates of a task. cache: `cold` flushes the last-level cache before every launch,
    `rotate` changes the buffers instead, `warm` does neither. warm_ms: warming of the clock.

    pairs: cumulative samples of a candidate at which its screening may stop; after the first it
    does beyond the ratio `cap` to the incumbent, up to the third sample beyond `near` (by the
    fastest of its samples), later beyond `hopeless` with confidence. A race runs up to `rounds`
    rounds of `round_pairs` passes and is over when all losers are dropped or within `epsilon` of
    the leader; the probability of any wrong decision in it is at most `delta`. final_pairs: the
    passes of a confirmation, which takes them up to eight times where a ratio close to 1 is not yet
    known to within `precision` (half of its interval, in ln).
    """

    version: int = 3
    method: str = "auto"
    cache: str = "cold"
    warm_ms: float = 100.0
    seeds: tuple[int, ...] = (1, 2)
    pairs: tuple[int, ...] = (1, 3, 9, 24)
    cap: float = 1.6
    near: float = 1.15
    hopeless: float = 1.02
    rounds: int = 24
    round_pairs: int = 16
    epsilon: float = 0.005
    delta: float = 0.05
    final_pairs: int = 64
    precision: float = 0.004
    min_batch_us: float = 200.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a device and its clock can do, measured when a worker starts; stored with the device.

    quantum_us: the clock's step. overhead_us: what a pair of events (or clock readings) reads when
    nothing lies between, by method; timings have it subtracted. flush_us: time to flush the
    last-level cache. copy_bytes_per_us: bytes read plus written by a copy in the device's memory.
    flops_per_us: matrix products at the device's best, by dtype (`bfloat16`, `float16`, `tf32`,
    `float32`). Numbers that could not be measured are 0 or missing.
    """

    quantum_us: float = 0.0
    overhead_us: Mapping[str, float] = field(default_factory=dict)
    flush_us: float = 0.0
    copy_bytes_per_us: float = 0.0
    flops_per_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """Another workload a variant must be right on, with its artifact for that workload."""

    workload: Workload
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Verify and time candidates of one task on one device.

    candidates: artifacts, candidates first; without any, a screening only prepares the task.
    incumbent: the last candidate is the one to beat in a SCREENING.
    verified: binary hashes whose correctness the farm has already established on this device kind.
    checks: odd sizes on which the first candidate of a CONFIRM must be right as well.
    candidate_timeout_s: the longest any one candidate may keep the device process without a sign of
    life; baseline_timeout_s: the longest a baseline may take to compile, to warm up and to be
    checked; timeout_s: the longest the whole job may. calibration: of the device and its clock,
    which a fresh process then need not repeat.
    """

    job_id: str
    kernel: KernelRef
    workload: Workload
    candidates: tuple[Artifact, ...]
    mode: Mode = Mode.SCREENING
    incumbent: bool = False
    baselines: tuple[str, ...] = ()
    verified: frozenset[str] = frozenset()
    checks: tuple[Check, ...] = ()
    protocol: MeasurementProtocol = MeasurementProtocol()
    calibration: Calibration | None = None
    timeout_s: float = 60.0
    candidate_timeout_s: float = 60.0
    baseline_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one candidate or baseline inside one interleaved pass.

    samples_us are in order; samples of one pass at equal positions are pairs. A candidate that was
    dropped has fewer. log_ratio is ln(time / reference candidate's time) with its 95 % interval;
    the reference is the incumbent of a screening and the first candidate that was timed otherwise.
    error is ||out - ref|| / ||ref||, the worst seed, negative when correctness was taken from
    `verified`. deterministic: whether a repetition gave the same bits, None when that was not
    looked at. note: why a variant could not be checked, or was compiled on the device worker; else
    empty.
    """

    name: str
    median_us: float
    samples_us: tuple[float, ...] = field(default=(), repr=False)
    log_ratio: float = 0.0
    log_ratio_low: float = 0.0
    log_ratio_high: float = 0.0
    error: float = -1.0
    deterministic: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one MeasureJob found.

    outcomes: one Timing or Failure per candidate, in their order (a Timing with no samples and
    median 0 where nothing was timed). baselines: the same for the named baselines.
    compiled: launches that compiled on the device worker; 0 is the promise.
    method: `events`, `graph`, `cupti`, `perf_counter`, `simulated` or `interpreter`. clocks: what
    the device's monitor saw beside the timing (sm_mhz, power_w, temperature_c, throttle reasons).
    device_s: seconds the device was held; timing_s: of these, the seconds spent timing.
    """

    device: Device
    toolchain: Toolchain
    outcomes: tuple[Timing | Failure, ...]
    baselines: Mapping[str, Timing | Failure] = field(default_factory=dict)
    method: str = ""
    cache: str = "cold"
    compiled: int = 0
    device_s: float = 0.0
    timing_s: float = 0.0
    clocks: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A runner as the pool knows it: which worker holds which device, with which toolchain."""

    worker_id: str
    device: Device
    toolchain: Toolchain
    host: str = ""
    calibration: Calibration | None = None


# -- what a pool reports ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Built:
    job_id: str
    result: Artifact | Failure


@dataclass(frozen=True, slots=True)
class Measured:
    """`result` is a Failure when the whole job failed (crash, hang) rather than one candidate."""

    job_id: str
    worker_id: str
    result: Measurement | Failure


@dataclass(frozen=True, slots=True)
class JobLost:
    """The infrastructure lost the job (its worker died); the job itself is not to blame."""

    job_id: str
    reason: str
    #: What a user can do about a fault of the machine; empty where it is none.
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    worker: WorkerInfo


@dataclass(frozen=True, slots=True)
class WorkerGone:
    worker_id: str
    reason: str
    #: What a user can do about a fault of the machine; empty where it is none.
    remedy: str = ""


PoolEvent = Built | Measured | JobLost | WorkerReady | WorkerGone


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What a pool is to bring up.

    runners maps backend kinds (`cuda`, `hip`, `cpu`, `interpreter`, `simulated`) to how many, None
    meaning one per device found. builders None means what the machine has to spare. options maps
    backend kinds to the keyword arguments of their backend. paths are import paths of kernels.
    """

    kind: str = "local"
    runners: Mapping[str, int | None] = field(default_factory=dict)
    builders: int | None = None
    address: str | None = None
    connect_timeout_s: float = 30.0
    options: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
