"""The correctness gate: no variant is timed before it has passed, on every seed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from search_spaces.records import Status
from workers.measure.gate.buffers import POISONS, GuardedTensor
from workers.measure.gate.comparison import Comparisons, compare_all, fetch, misfit, unwritten
from workers.measure.gate.integrity import Watch
from workers.measure.task_data import Task
from workers.records import Failure

if TYPE_CHECKING:
    import torch

    Run: TypeAlias = Callable[[], Mapping[str, torch.Tensor] | None]

#: a run on inputs already seen is suspiciously fast below this share of one on new inputs ...
_SUSPICIOUS = 0.8
#: ... by at least this much; it is guilty when so many of the repetitions agree on this ratio
_SAVED_US = 20.0
_GUILTY = 1.5
_REPETITIONS = 8
#: The host's lead over the device in the second run, so that its time has no launch in it; in the
#: last one it must be enough for the outputs to be read before what is on another stream can have
#: written them. Longer ones are tried.
_LEAD_US = 240.0
_LEADS = (1.5, 5.0, 20.0)
_LONGEST_US = 2000.0
#: further looks at a run on new inputs and a repeated one, where the first were suspicious or other
#: programs may have disturbed them
_CHANCES = 2
_AGREEING = 7


@dataclass(frozen=True, slots=True)
class Checked:
    """A variant that passed. error: the worst seed's relative error. deterministic: whether a
    repetition on the same inputs, over other poison, left the same bits."""

    error: float
    deterministic: bool


def check_variant(
    task: Task,
    run: Run,
    *,
    outputs: Mapping[str, GuardedTensor] | None = None,
    scratch: Sequence[GuardedTensor] = (),
    watch: Watch | None = None,
) -> Checked | Failure:
    """Run a variant on every seed of the task and on the first one again, or why it is refused.

    run: does the work on `task.inputs`, and returns the outputs unless it writes to `outputs`.
    Buffers are poisoned before and their guard bands inspected after each run; outputs are read in
    the order of the current stream, before anything waits for the device. watch: also refuse what
    starts threads, changes the harness or is fast only on inputs it has seen; None for what is
    trusted and, like a baseline, may do as it likes. Leaves the inputs of the first seed in
    `task.inputs`, whatever the variant did to them.
    """
    gate = _Gate(task, run, outputs, scratch, watch)
    try:
        found = gate.check()
    except BaseException:
        task.load(0)
        raise
    if isinstance(found, str):
        # What is still under way must not write over what comes next.
        if watch is not None:
            watch.wait()
        task.load(0)
        return refusal(found)
    return found


def refusal(reason: str) -> Failure:
    """The value of a variant that is wrong."""
    return Failure(Status.CORRECTNESS, reason)


class _Gate:
    """One variant on its way through the gate."""

    def __init__(
        self,
        task: Task,
        run: Run,
        outputs: Mapping[str, GuardedTensor] | None,
        scratch: Sequence[GuardedTensor],
        watch: Watch | None,
    ) -> None:
        self._task, self._run, self._watch = task, run, watch
        self._outputs = dict(outputs or {})
        self._buffers = (*self._outputs.values(), *scratch)
        self._laps_us: list[float] = []
        #: host time from the lead until the outputs' comparison is enqueued, and whether the device
        #: had got that far before
        self._host_us, self._overtaken = 0.0, False
        self._threads: frozenset[int] = frozenset()
        #: copies of what the first run left
        self._first: dict[str, torch.Tensor] = {}

    def check(self) -> Checked | str:
        task, worst = self._task, 0.0
        # A variant may leave threads behind only if they were there before it first ran.
        threads = self._watch.threads() if self._watch is not None else frozenset()
        for position in (0, *reversed(range(1, len(task.seeds)))):
            error = self._seed(position, POISONS[min(position, 1)])
            if not isinstance(error, str):
                worst = max(worst, error)
                error = self._misconduct(threads)
            if error:
                where = f" (seed {task.seeds[position]})" if len(task.seeds) > 1 else ""
                return error + where
        deterministic = True
        for factor in _LEADS:
            lead_us = min(factor * self._host_us, _LONGEST_US)
            again = self._seed(0, POISONS[1], again=True, lead_us=lead_us)
            if isinstance(again, str):
                return f"{again} (seed {task.seeds[0]}, repeated)"
            deterministic, worst = deterministic and again < 0, max(worst, again)
            if not self._overtaken:
                break
        return self._misconduct(threads) or self._memory() or Checked(worst, deterministic)

    def _seed(
        self, position: int, poison: int, *, again: bool = False, lead_us: float = _LEAD_US
    ) -> float | str:
        """The error on one seed; with `again` -1 when the first run's bits were left."""
        task = self._task
        started = time.perf_counter()
        returned, lap_us = self._lap(lambda: task.load(position), poison, lead_us)
        if self._watch is not None and (alive := self._watch.threads() - self._threads):
            return f"left {len(alive)} thread(s) running"
        results = self._results(returned)
        comparisons = Comparisons(task, position, results)
        if comparisons.problem:
            return comparisons.problem
        self._host_us = 1e6 * (time.perf_counter() - started)
        self._overtaken = self._watch is not None and self._watch.overtaken()
        changed: list[torch.Tensor] = []
        if again:
            changed = [_differ(self._first[name], results[name]) for name in task.specs]
        if position == 0 and not again:
            self._first = {name: results[name].clone() for name in task.specs}
        # Up to here nothing waited, so work on another stream may not have been seen.
        if self._watch is not None:
            self._watch.wait()
        bands = [band for buffer in self._buffers for band in buffer.band_changes()]
        found = fetch([*comparisons.found, *changed, *bands, *task.input_changes(position)])
        self._laps_us.append(lap_us())
        compared, rest = found[: len(comparisons.found)], found[len(comparisons.found) :]
        if damage := self._damage(rest[len(changed) :]):
            return damage
        # What was read early counts, even where the first run's bits were there in the end.
        error = comparisons.judge(compared)
        differs = any(rest[: len(changed)])
        if isinstance(error, str):
            reason = self._explain(position, results, poison, error)
            return f"two runs on the same inputs differ: {reason}" if differs else reason
        return -1.0 if again and not differs else error

    def _lap(
        self, load: Callable[[], object], poison: int, lead_us: float = _LEAD_US
    ) -> tuple[Any, Callable[[], float]]:
        """Load inputs, poison buffers, run."""
        if self._watch is not None:
            # The first run is slow on the host anyway: it loads its code.
            if self._laps_us:
                self._watch.lead(lead_us)
            self._threads = self._watch.threads()
        load()
        for buffer in self._buffers:
            buffer.poison(poison)
        if not self._outputs:
            self._soil(poison)
        if self._watch is not None:
            return self._watch.lap(self._run)
        return self._run(), lambda: 0.0

    def _soil(self, poison: int) -> None:
        """Leave poison in the memory that the next tensor of an output's size will be given."""
        import torch

        for spec in self._task.specs.values():
            dtype = getattr(torch, spec.dtype)
            soil = [
                torch.empty(spec.shape, dtype=dtype, device=self._task.device_type)
                for _ in range(2)
            ]
            for tensor in soil:
                tensor.view(-1).view(torch.uint8).fill_(poison)

    def _results(self, returned: Any) -> Any:
        if self._outputs:
            return {name: buffer.tensor for name, buffer in self._outputs.items()}
        return returned

    def _damage(self, flags: Sequence[float]) -> str:
        """What was written that belongs to others; flags of the bands, then of the inputs."""
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
        """Why the outputs are wrong, where more than the error can be told; the device is idle."""
        task, wrong = self._task, {name: results[name].clone() for name in self._task.specs}
        waits = self._outputs and self._watch is not None
        if waits and not isinstance(self._rerun(position, poison), str):
            return "work on another stream: outputs are right only once the device is idle"
        if stale := unwritten(task, position, wrong, poison):
            return stale
        if len(task.seeds) > 1:
            other = self._first if position else self._outputs_on(1, poison)
            if all(name in other and not bool(_differ(other[name], wrong[name])) for name in wrong):
                return f"the outputs do not follow the inputs: {error}"
        return error

    def _rerun(self, position: int, poison: int) -> float | str:
        """The error when the whole device is waited for before and after the run."""
        return compare_all(self._task, position, self._outputs_on(position, poison))

    def _outputs_on(self, position: int, poison: int) -> Mapping[str, torch.Tensor]:
        self._task.load(position)
        for buffer in self._buffers:
            buffer.poison(poison)
        if self._watch is not None:
            self._watch.wait()
        results = self._results(self._run())
        if self._watch is not None:
            self._watch.wait()
        return {} if misfit(self._task, results) else results

    def _misconduct(self, threads: frozenset[int]) -> str:
        """What the variant did beside its work."""
        if self._watch is None:
            return ""
        if alive := self._watch.threads() - threads:
            return f"left {len(alive)} thread(s) running"
        return self._watch.tampered(known_culprit=True)

    def _memory(self) -> str:
        """Whether the variant is fast only on inputs it has seen before.

        The second seed's run was on new inputs, the last one repeats the first. What looks like
        a kept result is looked at again on inputs made for the purpose, each run twice.
        """
        if self._watch is None or len(self._task.seeds) < 2:
            return ""
        fresh_us, seen_us = self._laps_us[len(self._task.seeds) - 1], self._laps_us[-1]
        for chance in range(_CHANCES):
            if not (self._watch.noisy or _suspicious(fresh_us, seen_us)):
                break
            fresh_us = min(fresh_us, self._time_rolled(2 * _REPETITIONS + 1 + chance))
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
        agreeing = [fresh > max(_GUILTY * seen, seen + _SAVED_US) for fresh, seen in pairs]
        if sum(agreeing) < _AGREEING:
            return ""
        fresh_us, seen_us = (statistics.median(times) for times in zip(*pairs, strict=True))
        return f"keeps results: {seen_us:.3g} us on inputs it has seen, {fresh_us:.3g} us on others"

    def _time_rolled(self, places: int) -> float:
        """Time in us on the first seed's inputs rolled."""
        assert self._watch is not None
        lead_us = min(max(_LEAD_US, self._host_us), _LONGEST_US)
        _, lap_us = self._lap(lambda: self._task.roll(places), POISONS[0], lead_us)
        self._watch.wait()
        return lap_us()


def _suspicious(fresh_us: float, seen_us: float) -> bool:
    return seen_us <= _SUSPICIOUS * fresh_us and fresh_us - seen_us >= _SAVED_US


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Whether any bit differs, as a scalar on the device."""
    from workers.measure.task_data import whole

    return (whole(one) != whole(other)).any()
