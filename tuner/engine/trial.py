"""What one task is to do, and its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from results_db.records import TaskInfo, TrialRecord
from search_spaces.records import Config, Device, Workload
from search_spaces.space import BoundSpace
from tuner.strategies.strategy import Strategy
from workers.records import Artifact, Failure, KernelRef, MeasurementProtocol

_PROTOCOL = MeasurementProtocol()


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """Whichever comes first ends the search; polish trials are part of `trials`.

    gain: end when untried configs are expected to gain less than this share, and polish then
    (budget `auto`); None: do not. ends_at: when on the engine's clock the run has no time left for
    a search; one that has not begun by then tries nothing.
    """

    trials: int | None = None
    device_s: float | None = None
    wall_s: float | None = None
    ends_at: float | None = None
    polish: int = 0
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Everything the engine needs to know of one task.

    compile_only: no such device here; variants are built for the target and, if `verify`, run in
    Triton's interpreter. finished: this run's trials from before an interruption.
    listed: configs among which users choose by measuring; the fastest is the default where
    `default` fails. known: results of other runs that count here. settled: an earlier task of the
    very same kind with its confirmed outcome. neighbours: winners of neighbouring workloads. odd: a
    workload of odd sizes on which a winner must be right as well.
    """

    task_id: int
    label: str
    kernel: KernelRef
    workload: Workload
    device: Device
    space: BoundSpace
    strategy: Strategy
    default: Config
    budget: TaskBudget
    compile_only: bool = False
    verify: bool = True
    baselines: tuple[str, ...] = ()
    protocol: MeasurementProtocol = _PROTOCOL
    finalists: int = 8
    build_timeout_s: float = 120.0
    measure_timeout_s: float = 120.0
    baseline_timeout_s: float = 120.0
    listed: Sequence[Config] = ()
    finished: Sequence[TrialRecord] = ()
    known: Sequence[TrialRecord] = ()
    #: Times that other revisions of the kernel have of binaries, by their digests. A time holds for
    #: an equal binary, whose outputs are verified again.
    timed: Mapping[str, TrialRecord] = field(default_factory=dict)
    settled: TaskInfo | None = None
    neighbours: Sequence[Config] = ()
    check_size: Workload | None = None


class State(StrEnum):
    ASKED = "asked"
    BUILDING = "building"
    READY = "ready"
    WAITING = "waiting"
    MEASURING = "measuring"
    DONE = "done"
    DROPPED = "dropped"


@dataclass(slots=True)
class Trial:
    """One config on its way. score is ln(time in us) once it is known.

    alone: it was in a job that failed as a whole, and is measured by itself the next time. odd: its
    artifact for the task's odd size, or why there is none. asked_at: when, by the engine's clock.
    """

    number: int
    config: Config
    strategy: str
    state: State = State.ASKED
    attempt: int = 0
    artifact: Artifact | None = None
    record: TrialRecord | None = None
    score: float | None = None
    alone: bool = False
    check_artifact: Artifact | Failure | None = field(default=None, repr=False)
    asked_at: float = 0.0
    #: The incumbent the screening in flight is against.
    screened_against: Trial | None = field(default=None, repr=False)
