"""How long the tasks of a run stay in each stage."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.engine import Stage


@dataclass(slots=True)
class StageTimes:
    """Seconds of every task in each of its stages; a stage that is entered twice is added up."""

    #: Seconds by task and stage.
    stage_s: dict[int, dict[str, float]] = field(default_factory=dict)
    #: The stage of each task and when the task entered it.
    _entered: dict[int, tuple[Stage, float]] = field(default_factory=dict)

    def enter(self, task_id: int, stage: Stage, now: float) -> None:
        """A task enters a stage at the time `now` (seconds)."""
        left = self._entered.pop(task_id, None)
        if left is not None:
            seconds = self.stage_s.setdefault(task_id, {})
            name = left[0].value
            seconds[name] = seconds.get(name, 0.0) + now - left[1]
        if stage is not Stage.DONE:
            self._entered[task_id] = stage, now
