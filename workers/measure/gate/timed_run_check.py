"""What one timed call left behind, copied unseen and compared with the reference afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.measure.gate.buffers import POISONS, GuardedTensor
from workers.measure.gate.comparison import Comparisons, fetch, misfit, unwritten
from workers.measure.gate.integrity import Watch
from workers.measure.task_data import Task


class Audit:
    """Re-checks one timed call of one candidate, on the inputs of the first seed.

    outputs: the shared buffers a writing variant leaves its outputs in; None for one that returns
    them. Call `prime` right before the call that is to be audited and `take` right after it, both
    untimed; neither waits for the device nor allocates, so both may be captured in a CUDA graph.
    Storage for one set of outputs is held from the start until `problem`; where memory is short,
    candidates share one place and only the last of them to be taken is compared.
    """

    def __init__(
        self,
        task: Task,
        outputs: Mapping[str, GuardedTensor] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._task = task
        self._outputs = dict(outputs) if outputs is not None else None
        self._watch = watch
        self._storage, self._shared = task.storage()
        self._misfit = self._tampered = ""
        self._taken = False

    def prime(self) -> None:
        """Wipe what other candidates, or this one before, left in the shared outputs."""
        if self._watch is not None:
            # Who else changed something is not told; from here on it is this candidate.
            self._watch.tampered()
        for buffer in (self._outputs or {}).values():
            buffer.bytes.fill_(POISONS[0])
        self._task.wipe_output_copies(POISONS[0])

    def take(self, result: Any = None) -> None:
        """Enqueue a copy of the outputs a run left, given what it returned.

        What wrote to other than the shared outputs, a copy of them, returns where.
        """
        if self._watch is not None:
            self._tampered = self._tampered or self._watch.tampered(known_culprit=True)
        results = result
        if self._outputs is not None and result is None:
            results = {name: buffer.tensor for name, buffer in self._outputs.items()}
        self._taken, self._misfit = True, misfit(self._task, results)
        if not self._misfit:
            for name, place in self._storage.items():
                place.copy_(results[name])
        if self._shared:
            self._task.last_audited = self

    def problem(self) -> str:
        """Why the audited call is wrong; empty when it is right or none was taken.

        Waits for the device and gives the storage back.
        """
        taken, self._taken = self._taken, False
        storage, self._storage = self._storage, {}
        if found := self._tampered or self._misfit or self._spoiled():
            return found
        if not taken or (self._shared and self._task.last_audited is not self):
            return ""
        comparisons = Comparisons(self._task, 0, storage)
        left = comparisons.judge(fetch(comparisons.found))
        if not isinstance(left, str):
            return ""
        wiped = self._outputs is not None
        return (unwritten(self._task, 0, storage, POISONS[0]) if wiped else "") or left

    def _spoiled(self) -> str:
        if self._watch is None:
            return ""
        self._watch.tampered()
        return f"the pass is void, someone {self._watch.spoiled}" if self._watch.spoiled else ""
