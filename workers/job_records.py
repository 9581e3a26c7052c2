"""Jobs of builders and runners, their results, and the events of a pool.

A bad config is a value (`Failure`), never an exception. Standard library only, so that these
records cross process and cluster boundaries cheaply. Times are in seconds (`_s`) or microseconds
(`_us`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from search_spaces.records import Config, Device, Status, Toolchain, Value, Workload, digest
from tuner.base.log_ratio import EQUAL, LogRatio


@dataclass(frozen=True, slots=True)
class KernelRef:
    """How another process finds a kernel."""

    #: A registered name, `module:object` or `file.py:object`.
    spec: str
    #: Import paths, appended to those of the process.
    paths: tuple[str, ...] = ()
    #: Its files as the driver has read them, each with a digest of its contents.
    sources: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StaticFacts:
    """Facts of a binary that need no run; the worst over a variant's launches."""

    #: 32-bit registers per thread.
    registers: int = 0
    #: Local memory per thread.
    spill_bytes: int = 0
    #: Static plus dynamic shared memory per block.
    shared_bytes: int = 0
    #: Warps per block.
    num_warps: int = 0
    #: Size of the binaries.
    binary_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built variant: the files of the compiler's cache and the facts of its binaries."""

    config: Config
    #: What the code is generated for, e.g. `cuda:90`.
    target: str
    toolchain: Toolchain
    #: Digest of code, grid and launch options. Equal digests run the same machine code.
    binary_hash: str
    facts: StaticFacts = StaticFacts()
    #: Contents (compressed by zlib) by path relative to the compiler's cache folder.
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    #: Duration of the build.
    build_s: float = 0.0
    #: Per Triton kernel, the parts of its key in the compiler's cache, as text by name.
    keys: tuple[Mapping[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial has no measurement."""

    status: Status
    #: One line for people.
    message: str
    #: The complete text, e.g. a traceback or the output of a compiler.
    detail: str = ""
    #: Duration of the build.
    build_s: float = 0.0
    #: Facts and digest of the binary, if the build produced one.
    facts: StaticFacts | None = None
    binary_hash: str = ""

    def of(self, artifact: Artifact) -> Failure:
        """The same failure, with facts and digest of this binary."""
        return replace(self, facts=artifact.facts, binary_hash=artifact.binary_hash)


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Build one variant for a target."""

    job_id: str
    kernel: KernelRef
    workload: Workload
    config: Config
    #: The device to build for; it gives the target and the limits that the binary must keep.
    device: Device
    #: The longest the build may take.
    timeout_s: float = 60.0
    #: Whether the artifact has the compiler's assembly texts (`.ptx`, `.amdgcn`), too.
    assembly: bool = False
    #: Whether it has what Triton compiles for the host, too, for machines without a C compiler.
    host_modules: bool = False
    #: Whether a variant that cannot keep in registers what its loops carry is refused.
    refuse_spills: bool = False


@dataclass(frozen=True, slots=True)
class DeclarationJob:
    """Check the declaration of a kernel for a workload (`search_spaces.declaration.check`)."""

    kernel: KernelRef
    workload: Workload
    #: The default config of the workload on the device.
    config: Config
    #: What torch and Triton describe to the kernel.
    device: Device


class Mode(StrEnum):
    """What a runner does with the candidates of a job."""

    #: Verify the candidates and compare them, interleaved, with the incumbent. Candidates that
    #: cannot be the best are dropped early.
    SCREENING = "screening"
    #: Verify all candidates and interleave them, dropping losers, until the best one is known.
    RACE = "race"
    #: Measure all candidates and the named baselines to the full number of passes, in a process
    #: that has launched no variant of the task.
    CONFIRM = "confirm"
    #: Verify only; nothing is timed.
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class MeasurementProtocol:
    """Constants of the measurement. Timings are comparable only if theirs are equal."""

    #: Revision of the measuring code.
    version: int = 3
    #: `events`, `graph`, `cupti`, or `auto`: chosen once per task by the kernel's duration.
    method: str = "auto"
    #: `cold` flushes the last-level cache before every launch, `rotate` changes the buffers
    #: instead, `warm` does neither.
    cache: str = "cold"
    #: Milliseconds of work before the first sample, which raise the clock.
    warm_ms: float = 100.0
    #: Seeds of the inputs on which a variant must be correct.
    seeds: tuple[int, ...] = (1, 2)
    #: `deterministic`: variants and baselines whose repetition gives other bits are refused.
    #: `batch_invariant`: variants are refused, too, whose bits of a row depend on the other rows.
    #: `any`: no bits are compared.
    numerics: str = "any"
    #: Cumulative samples of a candidate at which its screening may stop.
    pairs: tuple[int, ...] = (1, 3, 9, 24)
    #: Ratio to the incumbent above which a screening stops after the first sample.
    cap: float = 1.6
    #: Ratio above which it stops up to the third sample, by the fastest of its samples.
    near: float = 1.15
    #: Ratio above which it stops later, if the interval says so with confidence.
    hopeless: float = 1.02
    #: The most rounds of a race.
    rounds: int = 24
    #: Passes per round.
    round_pairs: int = 16
    #: A race ends when every candidate left is within this share of the leader.
    epsilon: float = 0.005
    #: The highest probability of any wrong decision in a race.
    delta: float = 0.05
    #: Passes of a confirmation; up to eight times as many for ratios close to 1.
    final_pairs: int = 64
    #: Half width of the interval of ln(ratio) at which a confirmation of such a ratio ends.
    precision: float = 0.004
    #: The shortest batch of launches that a timer with a coarse clock takes as one sample.
    min_batch_us: float = 200.0

    @property
    def key(self) -> str:
        """A digest; times measured under another protocol are not reused."""
        return digest(asdict(self))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Speed of a device and resolution of its clock, measured when a worker starts.

    Values that could not be measured are 0 or missing.
    """

    #: The step of the clock.
    quantum_us: float = 0.0
    #: The reading of a pair of events (or clock readings) with nothing in between, by method.
    #: Timings have it subtracted.
    overhead_us: Mapping[str, float] = field(default_factory=dict)
    #: Time to flush the last-level cache.
    flush_us: float = 0.0
    #: Bytes read plus bytes written by a copy in the device's memory.
    copy_bytes_per_us: float = 0.0
    #: Rate of matrix products by dtype: `bfloat16`, `float16`, `tf32`, `float32`.
    flops_per_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """A check size: another workload on which a variant must be correct."""

    workload: Workload
    #: The variant, built for that workload.
    artifact: Artifact


#: How a refusal begins of what is right but for the bits of rows that a range has.
OTHER_BITS = "rows have other bits"


@dataclass(frozen=True, slots=True)
class RowRange:
    """The sizes at which a row of the outputs must have the same bits."""

    #: The dim that counts rows.
    dim: str
    low: int
    high: int
    #: The digest that all configs of the range have; empty while any will do.
    bits: str = ""

    def why_refused(self, bits: str) -> str:
        """Why a variant is refused whose rows have these bits; empty where it is not."""
        if self.bits in ("", bits):
            return ""
        return f"{OTHER_BITS} ({bits}) than in the rest of the range ({self.bits})"


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Verify and time candidates of one task on one device."""

    job_id: str
    kernel: KernelRef
    workload: Workload
    #: The candidates, followed by the incumbent if there is one. A screening without candidates
    #: prepares the task.
    candidates: tuple[Artifact, ...]
    mode: Mode = Mode.SCREENING
    #: Whether the last candidate is the incumbent of a screening.
    incumbent: bool = False
    #: Names of the kernel's baselines to measure in a confirmation.
    baselines: tuple[str, ...] = ()
    #: The baselines of the task's confirmation, which a standby process prepares meanwhile.
    upcoming_baselines: tuple[str, ...] = ()
    #: Digests of binaries that are known to be correct on this kind of device.
    verified: frozenset[str] = frozenset()
    #: Check sizes on which the first candidate of a confirmation must be correct.
    checks: tuple[Check, ...] = ()
    #: Under `batch_invariant`: the rows whose bits every variant must keep.
    rows: RowRange | None = None
    protocol: MeasurementProtocol = MeasurementProtocol()
    #: The device's calibration, so that a fresh process need not measure it again.
    calibration: Calibration | None = None
    #: The longest the whole job may take.
    timeout_s: float = 60.0
    #: The longest a candidate may occupy the device process without a heartbeat.
    candidate_timeout_s: float = 60.0
    #: The longest a baseline may take to compile, warm up and be checked.
    baseline_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one candidate or baseline inside one interleaved pass."""

    #: The key of the config, or the baseline's name.
    name: str
    #: The median of the samples; 0 if nothing was timed.
    median_us: float
    #: Samples in order. Samples of one pass at equal positions are pairs. A dropped candidate has
    #: fewer.
    samples_us: tuple[float, ...] = field(default=(), repr=False)
    #: ln(time / time of the reference) with its 95 % interval. The reference is the incumbent of a
    #: screening, and otherwise the first candidate that was timed.
    log_ratio: LogRatio = EQUAL
    #: ||out - ref|| / ||ref|| of the worst seed; negative if correctness is known from `verified`.
    error: float = -1.0
    #: Whether a repetition gave the same bits; None if it was not tried.
    deterministic: bool | None = None
    #: Digest of the bits of single rows (`workers/measure/gate/row_bits.py`); None if not tried.
    row_bits: str | None = None
    #: Why a variant could not be checked, or that it compiled on the device worker; else empty.
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one MeasureJob."""

    device: Device
    toolchain: Toolchain
    #: One per candidate, in their order. A Timing without samples means that nothing was timed.
    outcomes: tuple[Timing | Failure, ...]
    #: The same for each named baseline.
    baselines: Mapping[str, Timing | Failure] = field(default_factory=dict)
    #: `events`, `graph`, `cupti`, `perf_counter`, `simulated` or `interpreter`.
    method: str = ""
    #: The cache policy: `cold`, `rotate` or `warm`.
    cache: str = "cold"
    #: Launches that compiled on the device worker; 0 if the build delivered everything.
    compiled: int = 0
    #: Seconds for which the device was occupied.
    device_s: float = 0.0
    #: Seconds of these that were spent timing.
    timing_s: float = 0.0
    #: Readings of the device's monitor during the timing: sm_mhz, power_w, temperature_c, throttle
    #: reasons.
    clocks: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A runner as its pool knows it."""

    worker_id: str
    device: Device
    toolchain: Toolchain
    #: The name of its machine.
    host: str = ""
    calibration: Calibration | None = None


# -- events of a pool ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Built:
    """A build has ended."""

    job_id: str
    result: Artifact | Failure


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement has ended."""

    job_id: str
    worker_id: str
    #: A Failure if the job as a whole failed (crash, hang) rather than single candidates.
    result: Measurement | Failure


@dataclass(frozen=True, slots=True)
class JobLost:
    """The worker, not the job, is at fault; the job can be given to another one."""

    job_id: str
    #: One line for people.
    reason: str
    #: What a user can do about a fault of the machine or of the kernel; empty for other causes.
    remedy: str = ""
    #: Whether other workers will probably lose it too: the kernel cannot be imported, or the
    #: machine lacks what a build needs.
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A runner has started, or is back after a loss."""

    worker: WorkerInfo


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A runner is lost; `WorkerReady` follows if it comes back."""

    worker_id: str
    #: One line for people.
    reason: str
    #: What a user can do about a fault of the machine; empty for other causes.
    remedy: str = ""


PoolEvent = Built | Measured | JobLost | WorkerReady | WorkerGone


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The workers that a pool is to start."""

    #: The pool's name: `local`, `ray`, or one of an entry point.
    kind: str = "local"
    #: Number of runners by backend kind; None means one per device found.
    runners: Mapping[str, int | None] = field(default_factory=dict)
    #: Number of builders; None means the processors that the runners leave.
    builders: int | None = None
    #: Address of a Ray cluster; None for a local one.
    address: str | None = None
    #: The longest a connection to a cluster may take.
    connect_timeout_s: float = 30.0
    #: Keyword arguments of backends, by kind.
    options: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    #: Whether its workers reserve the CPUs and GPUs of a cluster.
    reserve: bool = True
    #: Of its runners among those of all pools that wait for one device: -10 to 10.
    priority: int = 0
    #: Import paths of kernels.
    paths: tuple[str, ...] = ()
    #: Whether all kernels are built-in families for GPUs. Their variants compile without torch, so
    #: builders start before torch is loaded.
    torch_free: bool = False


# -- parts of preparing a confirmation, which the standby process does one at a time ---------------
class PartKind(StrEnum):
    """What a part does."""

    #: Import the compiler of baselines. Like `COMPILE`, it leaves the device alone.
    IMPORT = "import"
    #: Make the task's inputs and references.
    TASK = "task"
    #: Compile a baseline without launching it.
    COMPILE = "compile"
    #: Warm a baseline up and check its outputs. It compiles nothing.
    LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class PreparationPart:
    """One part of preparing the confirmation of one task."""

    kind: PartKind
    #: The name of the baseline; empty for parts that concern all of them.
    baseline: str = ""

    @property
    def on_device(self) -> bool:
        """Whether it launches work on the device."""
        return self.kind in (PartKind.TASK, PartKind.LAUNCH)


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result of a part."""

    #: False: the confirmation does this part itself.
    done: bool
    #: Baselines that must be compiled before they are launched.
    compile_first: tuple[str, ...] = ()
