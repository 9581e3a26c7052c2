"""A task on its way through the stages, and how a run of tasks ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tuner.engine.finals import Finals
from tuner.engine.instructions import Fault, Finish
from tuner.engine.losses import Setbacks
from tuner.engine.search import Search
from tuner.engine.trial import TaskSpec
from workers.measure.timers.methods import METHODS
from workers.records import KernelRef


@dataclass(slots=True)
class Task:
    """A task on its way: `waiting`, `search`, `finals`, `confirm`, `done`.

    method: how its variants are timed, once that is known: the same for all of them. confirmed_by:
    the workers that have confirmed it. repeats_at: until when its repeated confirmation lets other
    jobs go first there, and waits for other workers.
    """

    search: Search
    stage: str = "waiting"
    finals: Finals | None = None
    method: str = ""
    confirmed_by: set[str] = field(default_factory=set)
    repeats_at: float | None = None
    #: Faults of the machine in a row, of builds.
    builds: Setbacks = field(default_factory=Setbacks)
    #: Faults of the machine in a row, of measurements.
    measurements: Setbacks = field(default_factory=Setbacks)
    #: The fault for which the task was given up, if any.
    fault: Fault | None = None

    def __post_init__(self) -> None:
        used = (record.method for record in self.spec.finished)
        self.method = next((method for method in used if method in METHODS), "")

    @property
    def spec(self) -> TaskSpec:
        return self.search.spec

    def give_up(self, fault: Fault) -> None:
        """End as if interrupted, for a later run: the machine does not recover."""
        self.fault, self.stage = fault, "done"
        self.search.stop()

    def close(self) -> None:
        """End with all artifacts forgotten."""
        self.stage = "done"
        for trial in self.search.trials.values():
            trial.artifact = trial.check_artifact = None


def ending(draining: bool, tasks: Iterable[Task]) -> Finish:
    """How a run of these tasks ends, once nothing is left to do."""
    faults = [(task.spec.label, task.fault) for task in tasks if task.fault is not None]
    if draining or not faults:
        return Finish("interrupted" if draining else "finished")
    label, fault = faults[0]
    more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
    message = f"{label}{more} given up: {fault.reason}"
    return Finish("interrupted", message, Fault(message, fault.remedy))


def deserted(tasks: Sequence[Task]) -> Finish:
    """How a run ends in which no worker can serve these tasks any more."""
    names = ", ".join(task.spec.label for task in tasks[:3])
    return Finish("failed", f"no worker is left for {names}")


def by_turns(tasks: Iterable[Task]) -> list[Task]:
    """In their order, but each kernel's second task after the first ones of all, and so on.

    Some kernels keep builders busy and others devices, which both are when they come together; and
    a kernel's later tasks start from the winners of its earlier ones.
    """
    opened: Counter[tuple[KernelRef, str]] = Counter()

    def turn(task: Task) -> int:
        kind = task.spec.kernel, task.spec.device.fingerprint
        opened[kind] += 1
        return opened[kind]

    return sorted(tasks, key=turn)
