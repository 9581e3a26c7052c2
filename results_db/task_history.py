"""The confirmed results of one kernel over runs: changes from run to run, breaks, steps.

Times of different passes are not directly comparable. A run is compared with the run before by an
anchor that both confirmed in one pass with what they ship: the default config, where code,
toolchain and device are the same; else the fastest baseline that neither changes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import median

from results_db.config_text import describe_changes
from results_db.promotion_records import QuarantineRecord
from results_db.shipped import Shipped, select_shipped
from results_db.step_detection import Point, Step, between_runs, detect_steps
from results_db.stored_records import RunInfo, TaskInfo
from search_spaces.records import config_key
from tuner.base.log_ratio import LogRatio

#: The name of the anchor that is the default config.
DEFAULT = "default"
#: The most results that say what is usual.
_FORMER = 5
#: Half of a 95 % interval over the standard error.
_HALF = 1.96
#: Facts that compiled code of baselines depends on.
_OF_BASELINES = ("torch", "cuda", "driver")


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run ships for a task, and how that differs from the run before."""

    run: RunInfo
    task: TaskInfo
    #: ln(time / that of the run before) by the anchor; None for the first, and without an anchor.
    change: LogRatio | None = None
    #: The name of the anchor; empty where there is none.
    anchor: str = ""
    #: The confirmed time, were the anchor as fast as in the median run since the last break.
    normalised_us: float | None = None
    #: What of device, toolchain, code and protocol differs, as `triton 3.7.1 -> 3.8.0`.
    breaks: tuple[str, ...] = ()
    #: Whether it is the record of the run before, taken over and not measured again.
    same_record: bool = False
    #: The parameters of the config that changed, as `num_warps 4 → 8`.
    config_changes: tuple[str, ...] = ()
    #: The step that begins here.
    step: Step | None = None
    #: Whether it was confirmed on a card that was in quarantine then, so that it does not count.
    suspect: bool = False

    @property
    def ships(self) -> Shipped | None:
        """The config that ships with its time; None where nothing is confirmed that counts."""
        selection = self.task.selection
        return select_shipped(selection) if selection and not self.suspect else None


@dataclass(frozen=True, slots=True)
class History:
    """The results of one workload on the devices of one name, oldest first."""

    kernel: str
    workload: str
    device: str
    results: tuple[RunResult, ...] = field(default=())

    def list_measured(self) -> list[RunResult]:
        """The results that count and that their run has measured itself."""
        return [each for each in self.results if each.ships and not each.same_record]

    def list_steps(self) -> Iterator[tuple[RunResult, RunResult, RunResult]]:
        """Of each step the last result before it, the first behind it, and that which shows it."""
        shipped = self.list_measured()
        for at, (before, result) in enumerate(pairwise(shipped), start=1):
            if step := result.step:
                shown = min(at + step.found_at - step.at, len(shipped) - 1)
                yield before, result, shipped[shown]

    def compare_with_usual(self, at: int) -> LogRatio | None:
        """ln(time / time before) of one result against the middle one of a few results before it,
        back to the last break, by an anchor that both have."""
        former: list[LogRatio] = []
        now = self.results[at].task
        for each in reversed(self.results[:at]):
            if each.ships and len(former) < _FORMER:
                _, change = find_change(each.task, now, tuple(list_breaks(each.task, now)))
                former += [change] if change else []
                if each.breaks:
                    break
        return sorted(former, key=lambda each: each.value)[len(former) // 2] if former else None


def list_histories(
    found: Iterable[tuple[RunInfo, TaskInfo]], away: Sequence[QuarantineRecord] = ()
) -> list[History]:
    """The histories of tasks with their runs, by kernel, workload and name of the device.

    Of several tasks of a run in one history, the last one counts. away: what these cover does not.
    """
    groups: dict[tuple[str, str, str], dict[int, RunResult]] = defaultdict(dict)
    for run, task in sorted(found, key=lambda each: (each[0].run_id, each[1].task_id)):
        key = task.key.kernel, task.key.workload.key, task.key.device.name
        groups[key][run.run_id] = RunResult(run, task, suspect=is_suspect(task, away))
    return [History(*key, _connect(tuple(groups[key].values()))) for key in sorted(groups)]


def is_suspect(task: TaskInfo, away: Iterable[QuarantineRecord]) -> bool:
    """Whether a task was confirmed on a card that was in quarantine then."""
    chosen = task.selection
    return chosen is not None and any(e.covers(chosen.clocks, chosen.confirmed_at) for e in away)


def _connect(results: Sequence[RunResult]) -> tuple[RunResult, ...]:
    """The results with their changes; those without a winner are passed over."""
    connected: list[RunResult] = []
    before: RunResult | None = None
    for result in results:
        if before is not None and result.ships is not None:
            result = _compare(before, result)
        connected.append(result)
        before = result if result.ships is not None else before
    for segment in _split_at_breaks(connected):
        _add_steps(connected, segment)
    return tuple(connected)


def _compare(before: RunResult, now: RunResult) -> RunResult:
    old, new = before.ships, now.ships
    assert old is not None
    assert new is not None
    breaks = tuple(list_breaks(before.task, now.task))
    same = not breaks and before.task.selection == now.task.selection
    anchor, change = ("", None) if same else find_change(before.task, now.task, breaks)
    return replace(
        now,
        change=change,
        anchor=anchor,
        breaks=breaks,
        same_record=same,
        config_changes=tuple(describe_changes(new.config, old.config)),
    )


def list_breaks(before: TaskInfo, now: TaskInfo) -> Iterator[str]:
    """What makes two results incomparable by their default config."""
    old, new = before.key, now.key
    if old.device.fingerprint != new.device.fingerprint:
        was, facts = asdict(old.device), asdict(new.device)
        differ = [name for name in facts if was[name] != facts[name] and name != "uuid"]
        yield from (f"{name} {_write(was[name])} -> {_write(facts[name])}" for name in differ)
    was, facts = asdict(old.toolchain), asdict(new.toolchain)
    for name, value in facts.items():
        if was[name] != value:
            yield f"{name} {_write(was[name])} -> {_write(value)}"
    if old.launch_hash != new.launch_hash:
        yield "kernel's code"
    if old.protocol != new.protocol:
        yield "measuring protocol"
    if _key_default(before) != _key_default(now):
        yield "default config"


def _write(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}" or "none"


def _key_default(task: TaskInfo) -> str:
    default = task.selection.default if task.selection else None
    return "" if default is None else config_key(default)


def find_change(
    before: TaskInfo, now: TaskInfo, breaks: Sequence[str]
) -> tuple[str, LogRatio | None]:
    """The anchor of both and ln(time / time before) by it, with the noise between runs.

    breaks: as `list_breaks` gives them. An empty name and None where no anchor is common.
    """
    old, new = _list_anchored(before), _list_anchored(now)
    if breaks:
        keys = before.key, now.key
        old.pop(DEFAULT, None)
        stable = [(key.device.fingerprint, key.protocol) for key in keys]
        stable = [
            (*facts, *(getattr(key.toolchain, name) for name in _OF_BASELINES))
            for facts, key in zip(stable, keys, strict=True)
        ]
        if stable[0] != stable[1]:
            old.clear()
    common = [name for name in new if name in old]
    if DEFAULT in common and not max(old[DEFAULT].half_width, new[DEFAULT].half_width):
        common.remove(DEFAULT)  # both ship it, and nothing compares it with itself
    if not common:
        return "", None
    anchor = DEFAULT if DEFAULT in common else max(common, key=lambda name: new[name].value)
    noise = _HALF * math.sqrt(2) * between_runs(now.key.device.kind)
    value = new[anchor].value - old[anchor].value
    half = math.hypot(new[anchor].half_width, old[anchor].half_width, noise)
    return anchor, LogRatio(value, value - half, value + half)


def _list_anchored(task: TaskInfo) -> dict[str, LogRatio]:
    """ln(shipped time / anchor's time) by anchors, where their intervals are known."""
    if task.selection is None:
        return {}
    ships = select_shipped(task.selection)
    ratios = {each.name: ships.over(each) for each in task.baselines}
    ratios[DEFAULT] = ships.log_ratio if _key_default(task) else None
    return {name: -ratio for name, ratio in ratios.items() if ratio and ratio.interval}


def _split_at_breaks(results: Sequence[RunResult]) -> Iterator[list[int]]:
    """Indices of measured results between breaks, each with the default config as its anchor."""
    segment: list[int] = []
    for at, result in enumerate(results):
        if result.breaks:
            yield segment
            segment = []
        if not result.suspect and DEFAULT in _list_anchored(result.task):
            segment.append(at)
    yield segment


def _add_steps(results: list[RunResult], segment: Sequence[int]) -> None:
    """Write the normalised times of a segment and its steps into its results."""
    if not segment:
        return
    reference_us = _find_reference(results, segment)
    anchored = {at: _list_anchored(results[at].task)[DEFAULT] for at in segment}
    if reference_us is not None:
        for at in segment:
            normalised = reference_us * anchored[at].ratio
            results[at] = replace(results[at], normalised_us=normalised)
    measured = [at for at in segment if not results[at].same_record]
    points = [Point(anchored[at].value, anchored[at].half_width / _HALF) for at in measured]
    kind = results[segment[0]].task.key.device.kind
    for step in detect_steps(points, between_runs(kind)):
        at = measured[step.at]
        results[at] = replace(results[at], step=step)


def _find_reference(results: Sequence[RunResult], segment: Sequence[int]) -> float | None:
    """The default config's time in the median run."""
    selections = [results[at].task.selection for at in segment]
    times = [each.default_us for each in selections if each and each.default_us is not None]
    return median(times) if times else None
