"""The check of one timed run: its outputs are copied and compared with the reference afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.measure.gate.buffers import POISONS, GuardedTensor
from workers.measure.gate.comparison import Comparisons, fetch, invalid_outputs, unwritten
from workers.measure.gate.run_observer import RunObserver
from workers.measure.task_tensors import TaskTensors


class TimedRunCheck:
    """Checks one timed run of one candidate, on the inputs of the first seed.

    outputs: the shared buffers that a writing variant leaves its outputs in; None for a variant
    that returns them. Call `before` right before the run and `after` right after it, both untimed.
    Neither waits for the device nor allocates memory, so a CUDA graph can capture both. Storage for
    one set of outputs is held until `problem`. Where memory is short, candidates share one storage,
    and only the last of them is compared. The tolerance is multiplied by `slack`.
    """

    def __init__(
        self,
        task: TaskTensors,
        outputs: Mapping[str, GuardedTensor] | None = None,
        observer: RunObserver | None = None,
        slack: float = 1.0,
    ) -> None:
        self._task, self._slack = task, slack
        self._outputs = dict(outputs) if outputs is not None else None
        self._observer = observer
        self._storage, self._shared = task.storage()
        self._invalid = self._harness_change = ""
        self._done = False

    def before(self) -> None:
        """Poison the shared outputs, which hold the results of earlier runs."""
        if self._observer is not None:
            # A change up to here is not attributed; a later one is this candidate's.
            self._observer.harness_change()
        for buffer in (self._outputs or {}).values():
            buffer.bytes.fill_(POISONS[0])
        self._task.fill_output_copies(POISONS[0])

    def after(self, result: Any = None) -> None:
        """Enqueue a copy of the run's outputs.

        result: the outputs that the run returned, or None where it wrote to the shared outputs.
        """
        if self._observer is not None:
            change = self._observer.harness_change(attributed=True)
            self._harness_change = self._harness_change or change
        results = result
        if self._outputs is not None and result is None:
            results = {name: buffer.tensor for name, buffer in self._outputs.items()}
        self._done, self._invalid = True, invalid_outputs(self._task, results)
        if not self._invalid:
            for name, place in self._storage.items():
                place.copy_(results[name])
        if self._shared:
            self._task.last_check = self

    def problem(self) -> str:
        """Why the run is wrong; empty when it is right or no run was checked.

        Waits for the device and releases the storage.
        """
        done, self._done = self._done, False
        storage, self._storage = self._storage, {}
        if problem := self._harness_change or self._invalid or self._explain_unattributed():
            return problem
        if not done or (self._shared and self._task.last_check is not self):
            return ""
        comparisons = Comparisons(self._task, 0, storage, self._slack)
        outcome = comparisons.evaluate(fetch(comparisons.scalars))
        if not isinstance(outcome, str):
            return ""
        poisoned = self._outputs is not None
        return (unwritten(self._task, 0, storage, POISONS[0]) if poisoned else "") or outcome

    def _explain_unattributed(self) -> str:
        if self._observer is None:
            return ""
        self._observer.harness_change()
        change = self._observer.unattributed_change
        return f"the pass is void: another variant {change}" if change else ""
