"""The correctness gate: every check that a variant must pass before it is timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from search_spaces.records import Status
from workers.job_records import Failure, RowRange
from workers.measure.gate.buffers import POISONS, GuardedTensor
from workers.measure.gate.comparison import (
    Comparisons,
    compare_all,
    fetch,
    invalid_outputs,
    unwritten,
)
from workers.measure.gate.edge_check import check_edges
from workers.measure.gate.row_bits import digest_rows
from workers.measure.gate.run_observer import RunObserver
from workers.measure.task_tensors import Checked, TaskTensors, as_integers

if TYPE_CHECKING:
    import torch

    Run: TypeAlias = Callable[[], Mapping[str, torch.Tensor] | None]

#: Reuse of results is suspected if a run on repeated inputs takes less than this share of a run on
#: new inputs and saves at least `_SAVED_US`.
_SUSPICIOUS_SHARE = 0.8
_SAVED_US = 20.0
#: Reuse is established if new inputs take this many times as long in `_AGREEING` of `_REPETITIONS`.
_REUSE_RATIO = 1.5
_REPETITIONS = 8
_AGREEING = 7
#: How often both runs are repeated first if reuse is suspected or the device is shared.
_RETRIES = 2
#: Delay of the device in the second run, so that its time contains no launch.
_DELAY_US = 240.0
#: Delays of the last run, in multiples of the host's time. With the right one the outputs are read
#: before work on another stream can have written them.
_DELAY_FACTORS = (1.5, 5.0, 20.0)
_LONGEST_DELAY_US = 2000.0


def check_variant(
    task: TaskTensors,
    run: Run,
    *,
    outputs: Mapping[str, GuardedTensor] | None = None,
    scratch: Sequence[GuardedTensor] = (),
    observer: RunObserver | None = None,
    repeat: bool = True,
    edges: bool = True,
    same_bits: bool = False,
    rows: RowRange | None = None,
    slack: float = 1.0,
) -> Checked | Failure:
    """Run a variant on every seed of the task and again on the first: its result or its refusal.

    run: does the work on `task.inputs`, and returns the outputs unless it writes to `outputs`.
    Buffers are poisoned before each run, and their guard bands are checked after it. Outputs are
    read in the order of the current stream, before anything waits for the device. observer: refuses
    variants that start threads, change the harness or reuse results; None for trusted code such as
    a baseline. repeat, edges: False omits the second run on the first seed, and the inputs that
    kernels declare as edges, for trusted code. same_bits: whether the second run must give the bits
    of the first. rows: rows that must have the same bits beside all others. slack: the tolerance is
    multiplied by it. On return `task.inputs` holds the inputs
    of the first seed, even if the variant changed them.
    """
    gate = _Gate(task, run, outputs, scratch, observer, slack)
    try:
        outcome = gate.check(repeat=repeat)
        if same_bits and isinstance(outcome, Checked) and not outcome.deterministic:
            outcome = "another run on the same inputs gave other bits"
        if not isinstance(outcome, str):
            outcome = (gate.check_edges() if repeat and edges else "") or outcome
            if rows is not None and isinstance(outcome, Checked):
                bits, refused = digest_rows(task, rows, gate.run_again)
                outcome = refused or replace(outcome, row_bits=bits)
            task.load(0)
    except BaseException:
        task.load(0)
        raise
    if isinstance(outcome, str):
        # Unfinished work must not overwrite the buffers of the next run.
        if observer is not None:
            observer.synchronize()
        task.load(0)
        return refusal(outcome)
    return outcome


def refusal(reason: str) -> Failure:
    """The failure of a variant that did not pass."""
    return Failure(Status.CORRECTNESS, reason)


class _Gate:
    """The checks of one variant."""

    def __init__(
        self,
        task: TaskTensors,
        run: Run,
        outputs: Mapping[str, GuardedTensor] | None,
        scratch: Sequence[GuardedTensor],
        observer: RunObserver | None,
        slack: float,
    ) -> None:
        self._task, self._run, self._observer, self._slack = task, run, observer, slack
        self._outputs = dict(outputs or {})
        self._buffers = (*self._outputs.values(), *scratch)
        self._times_us: list[float] = []
        #: Host time of the last run, from the delay until the comparison is enqueued.
        self._host_us = 0.0
        #: Whether the device began the last run before that, so that the delay was too short.
        self._delay_elapsed = False
        self._threads: frozenset[int] = frozenset()
        #: Copies of the outputs of the first run.
        self._first: dict[str, torch.Tensor] = {}

    def check(self, *, repeat: bool) -> Checked | str:
        task, worst = self._task, 0.0
        # Threads that run after the variant must have existed before its first run.
        threads = self._observer.threads() if self._observer is not None else frozenset()
        for position in (0, *reversed(range(1, len(task.seeds)))):
            error = self._run_seed(position, POISONS[min(position, 1)])
            if not isinstance(error, str):
                worst = max(worst, error)
                error = self._side_effects(threads)
            if error:
                where = f" (seed {task.seeds[position]})" if len(task.seeds) > 1 else ""
                return error + where
        if not repeat:
            return self._side_effects(threads) or Checked(worst, None)
        deterministic = True
        for factor in _DELAY_FACTORS:
            delay_us = min(factor * self._host_us, _LONGEST_DELAY_US)
            again = self._run_seed(0, POISONS[1], again=True, delay_us=delay_us)
            if isinstance(again, str):
                return f"{again} (seed {task.seeds[0]}, repeated)"
            deterministic, worst = deterministic and again < 0, max(worst, again)
            if not self._delay_elapsed:
                break
        return (
            self._side_effects(threads) or self._reused_results() or Checked(worst, deterministic)
        )

    def run_again(self) -> Mapping[str, torch.Tensor]:
        """The outputs on what the inputs are now."""
        results: Mapping[str, torch.Tensor] = self._results(self._run())
        return results

    def check_edges(self) -> str:
        return check_edges(self._task, self._run, self._outputs, self._buffers, self._slack)

    def _run_seed(
        self, position: int, poison: int, *, again: bool = False, delay_us: float = _DELAY_US
    ) -> float | str:
        """The error on one seed; with `again`, -1 if the outputs equal those of the first run."""
        task = self._task
        started = time.perf_counter()
        returned, time_us = self._load_and_run(lambda: task.load(position), poison, delay_us)
        if self._observer is not None and (alive := self._observer.threads() - self._threads):
            return f"left {len(alive)} thread(s) running"
        results = self._results(returned)
        comparisons = Comparisons(task, position, results, self._slack)
        if comparisons.problem:
            return comparisons.problem
        self._host_us = 1e6 * (time.perf_counter() - started)
        self._delay_elapsed = self._observer is not None and self._observer.delay_elapsed()
        changed: list[torch.Tensor] = []
        if again:
            changed = [_differ(self._first[name], results[name]) for name in task.specs]
        if position == 0 and not again:
            self._first = {name: results[name].clone() for name in task.specs}
        # Nothing has waited up to here, so the comparison has not seen work on another stream.
        if self._observer is not None:
            self._observer.synchronize()
        bands = [band for buffer in self._buffers for band in buffer.band_changes()]
        values = fetch([*comparisons.scalars, *changed, *bands, *task.input_changes(position)])
        self._times_us.append(time_us())
        split = len(comparisons.scalars)
        compared, rest = values[:split], values[split:]
        if damage := self._foreign_writes(rest[len(changed) :]):
            return damage
        # The early comparison counts, even if the outputs equal those of the first run in the end.
        error = comparisons.evaluate(compared)
        differs = any(rest[: len(changed)])
        if isinstance(error, str):
            reason = self._explain(position, results, poison, error)
            return f"two runs on the same inputs differ: {reason}" if differs else reason
        return -1.0 if again and not differs else error

    def _load_and_run(
        self, load: Callable[[], object], poison: int, delay_us: float = _DELAY_US
    ) -> tuple[Any, Callable[[], float]]:
        """Load inputs, poison buffers, run; the result of the run and its time."""
        if self._observer is not None:
            # The first run loads code; no delay would hide that.
            if self._times_us:
                self._observer.delay(delay_us)
            self._threads = self._observer.threads()
        load()
        for buffer in self._buffers:
            buffer.poison(poison)
        if not self._outputs:
            self._poison_free_memory(poison)
        if self._observer is not None:
            return self._observer.timed_run(self._run)
        return self._run(), lambda: 0.0

    def _poison_free_memory(self, poison: int) -> None:
        """Poison the free memory that the next tensor of an output's size will be allocated in."""
        import torch

        for spec in self._task.specs.values():
            dtype = getattr(torch, spec.dtype)
            blocks = [
                torch.empty(spec.shape, dtype=dtype, device=self._task.device_type)
                for _ in range(2)
            ]
            for tensor in blocks:
                tensor.view(-1).view(torch.uint8).fill_(poison)

    def _results(self, returned: Any) -> Any:
        if self._outputs:
            return {name: buffer.tensor for name, buffer in self._outputs.items()}
        return returned

    def _foreign_writes(self, flags: Sequence[float]) -> str:
        """Writes outside the outputs. flags: of the guard bands, then of the inputs."""
        sides = [(buffer, side) for buffer in self._buffers for side in ("before", "after")]
        for (buffer, side), flag in zip(sides, flags, strict=False):
            if flag:
                self._task.suspect = True
                return f"wrote outside `{buffer.name}`: guard band {side} it changed"
        for name, flag in zip(self._task.inputs, flags[len(sides) :], strict=True):
            if flag:
                return f"input `{name}` was modified"
        return ""

    def _explain(
        self, position: int, results: Mapping[str, torch.Tensor], poison: int, error: str
    ) -> str:
        """The cause of wrong outputs where it can be found, else the error. The device is idle."""
        task, wrong = self._task, {name: results[name].clone() for name in self._task.specs}
        can_wait = self._outputs and self._observer is not None
        if can_wait and not isinstance(self._rerun(position, poison), str):
            return "work on another stream: outputs are right only once the device is idle"
        if stale := unwritten(task, position, wrong, poison):
            return stale
        if len(task.seeds) > 1:
            other = self._first if position else self._outputs_on(1, poison)
            if all(name in other and not bool(_differ(other[name], wrong[name])) for name in wrong):
                return f"the outputs do not follow the inputs: {error}"
        return error

    def _rerun(self, position: int, poison: int) -> float | str:
        """The error if the host waits for the whole device before and after the run."""
        return compare_all(self._task, position, self._outputs_on(position, poison))

    def _outputs_on(self, position: int, poison: int) -> Mapping[str, torch.Tensor]:
        self._task.load(position)
        for buffer in self._buffers:
            buffer.poison(poison)
        if self._observer is not None:
            self._observer.synchronize()
        results = self._results(self._run())
        if self._observer is not None:
            self._observer.synchronize()
        return {} if invalid_outputs(self._task, results) else results

    def _side_effects(self, threads: frozenset[int]) -> str:
        """Threads that the variant left running, or what it changed in the harness."""
        if self._observer is None:
            return ""
        if alive := self._observer.threads() - threads:
            return f"left {len(alive)} thread(s) running"
        return self._observer.harness_change(attributed=True)

    def _reused_results(self) -> str:
        """Whether the variant reuses results: it is fast only on inputs it has seen before.

        The second seed's run had new inputs, the last run repeats the first. If their times suggest
        reuse, it is measured on rolled inputs, each of them run twice.
        """
        if self._observer is None or len(self._task.seeds) < 2:
            return ""
        fresh_us, seen_us = self._times_us[len(self._task.seeds) - 1], self._times_us[-1]
        for retry in range(_RETRIES):
            if not (self._observer.device_is_shared or _suspicious(fresh_us, seen_us)):
                break
            fresh_us = min(fresh_us, self._time_rolled(2 * _REPETITIONS + 1 + retry))
            seen_us = min(seen_us, self._time_rolled(0))
        if not _suspicious(fresh_us, seen_us):
            return ""
        if not self._task.roll(1):
            return ""
        pairs = []
        for first in range(1, 2 * _REPETITIONS, 2):
            fresh, seen = (
                min(self._time_rolled(places) for places in (first, first + 1)) for _ in range(2)
            )
            pairs.append((fresh, seen))
        self._task.load(0)
        agreeing = [fresh > max(_REUSE_RATIO * seen, seen + _SAVED_US) for fresh, seen in pairs]
        if sum(agreeing) < _AGREEING:
            return ""
        fresh_us, seen_us = (statistics.median(times) for times in zip(*pairs, strict=True))
        return f"keeps results: {seen_us:.3g} us on inputs it has seen, {fresh_us:.3g} us on others"

    def _time_rolled(self, places: int) -> float:
        """Time in us on the first seed's inputs, rolled by `places`."""
        assert self._observer is not None
        delay_us = min(max(_DELAY_US, self._host_us), _LONGEST_DELAY_US)
        _, time_us = self._load_and_run(lambda: self._task.roll(places), POISONS[0], delay_us)
        self._observer.synchronize()
        return time_us()


def _suspicious(fresh_us: float, seen_us: float) -> bool:
    return seen_us <= _SUSPICIOUS_SHARE * fresh_us and fresh_us - seen_us >= _SAVED_US


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Whether any bit differs, as a scalar on the device."""
    return (as_integers(one) != as_integers(other)).any()
