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
    """

    config: Config
    target: str
    toolchain: Toolchain
    binary_hash: str
    facts: StaticFacts = StaticFacts()
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    build_s: float = 0.0


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
    """What a runner does with its entrants.

    DUEL: verify the first entrant, then race it against the second, the champion, if there is one;
    a loser is dropped early. RACE: verify and interleave all entrants to the full number of pairs.
    CONFIRM: the same in a fresh child process, with the named baselines among them.
    VERIFY: correctness only, nothing is timed.
    """

    DUEL = "duel"
    RACE = "race"
    CONFIRM = "confirm"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class Protocol:
    """The constants of the measuring protocol; part of what makes two timings comparable.

    pairs: cumulative interleaved pairs at which a duel may stop. hopeless: ratio to the champion
    beyond which (with confidence) a challenger is dropped. warm_ms: time spent warming the clock.
    cache: `cold` flushes the last-level cache before every launch, `warm` does not.
    """

    version: int = 1
    pairs: tuple[int, ...] = (3, 9, 40)
    final_pairs: int = 60
    hopeless: float = 1.02
    warm_ms: float = 100.0
    cache: str = "cold"
    seeds: tuple[int, ...] = (1, 2)
    min_batch_us: float = 200.0


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Verify and time entrants of one task on one device.

    entrants: artifacts, the challenger first; in a DUEL the second, if any, is the champion.
    verified: binary hashes whose correctness the farm has already established on this device kind.
    """

    job_id: str
    kernel: KernelRef
    workload: Workload
    entrants: tuple[Artifact, ...]
    mode: Mode = Mode.DUEL
    baselines: tuple[str, ...] = ()
    verified: frozenset[str] = frozenset()
    protocol: Protocol = Protocol()
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one entrant or baseline inside one interleaved pass.

    samples_us are raw and in order; samples of one pass at equal positions are pairs.
    log_ratio is ln(time / reference entrant's time) with its 95 % interval; the reference is the
    champion of a duel and the first entrant of a race. error is ||out - ref|| / ||ref||, the worst
    seed, negative when correctness was taken from `verified`.
    """

    name: str
    median_us: float
    samples_us: tuple[float, ...] = field(default=(), repr=False)
    log_ratio: float = 0.0
    log_ratio_low: float = 0.0
    log_ratio_high: float = 0.0
    error: float = -1.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one MeasureJob found.

    outcomes: one Timing or Failure per entrant, in their order (a Timing with no samples and
    median 0 where nothing was timed). baselines: the same for the named baselines.
    compiled: launches that compiled on the device worker; 0 is the promise.
    method: `events`, `perf_counter`, `simulated` or `interpreter`. clocks: what the device's
    monitor saw beside the timing (sm_mhz, power_w, temperature_c, throttle reasons).
    device_s: seconds the device was held.
    """

    device: Device
    toolchain: Toolchain
    outcomes: tuple[Timing | Failure, ...]
    baselines: Mapping[str, Timing | Failure] = field(default_factory=dict)
    method: str = ""
    cache: str = "cold"
    compiled: int = 0
    device_s: float = 0.0
    clocks: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A runner as the pool knows it: which worker holds which device, with which toolchain."""

    worker_id: str
    device: Device
    toolchain: Toolchain
    host: str = ""


# -- what a pool reports ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Built:
    job_id: str
    result: Artifact | Failure


@dataclass(frozen=True, slots=True)
class Measured:
    """`result` is a Failure when the whole job failed (crash, hang) rather than one entrant."""

    job_id: str
    worker_id: str
    result: Measurement | Failure


@dataclass(frozen=True, slots=True)
class JobLost:
    """The infrastructure lost the job (its worker died); the job itself is not to blame."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    worker: WorkerInfo


@dataclass(frozen=True, slots=True)
class WorkerGone:
    worker_id: str
    reason: str


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
