"""The entries of a table for ranges of sizes, and what is known of their coverage.

The sizes of a range that were measured are divided into the fewest segments that one config serves
within the gain (`results_db/range_outcomes.py`). A segment is one entry: its key is a measured size
at which its config ships, its `serves` the sizes for which it was chosen. A segment ends at the
roundest size before the next one, among those at which both configs are valid. Sizes that were held
out have no part in this; they say what the choice costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from results_db.range_outcomes import (
    RangePart,
    RangeTasks,
    SizeOutcome,
    find_loss,
    find_switch,
    group_ranges,
)
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo, TrialRecord
from search_spaces.baselines import is_compiled
from search_spaces.records import Status, Value, config_key
from tuner.base.log_ratio import THRESHOLD, LogRatio, Verdict
from tuner.runtime import Entry, Span, Table, TableError, read


# -- which implementation an entry of a table names: its config, or a baseline that is surely faster
# Notation: a ratio is ln(time of a baseline / time of a config), with its interval.
def compare_baselines(task: TaskInfo, loss: float = 0.0) -> dict[str, LogRatio]:
    """The ratio of each baseline that a task has timed.

    loss: ln(time of the config / time of what ships); 0 for what ships.
    """
    assert task.selection is not None
    ships, lost = select_shipped(task.selection), LogRatio(loss, loss, loss)
    over = {each.name: ships.over(each) for each in task.baselines if each.median_us is not None}
    return {name: ratio - lost for name, ratio in over.items() if ratio is not None}


def average_ratios(sizes: Sequence[Mapping[str, LogRatio]]) -> dict[str, LogRatio]:
    """The mean over several sizes of the ratio of each baseline that all of them have.

    Its interval is the mean of theirs: errors of one device have a part in common.
    """
    names = [name for name in sizes[0] if all(name in each for each in sizes)]
    parts = {name: [each[name] for each in sizes] for name in names}
    return {
        name: LogRatio(
            fmean(one.value for one in found),
            fmean(one.low for one in found),
            fmean(one.high for one in found),
        )
        for name, found in parts.items()
    }


def name_implementation(entry: Entry, over: Mapping[str, LogRatio]) -> Entry:
    """The entry with what is fastest by these ratios, and with the ratios themselves.

    A baseline is not known to give rows the bits that the config gives them.
    """
    baselines = {name: round(ratio.ratio, 4) for name, ratio in over.items()}
    fastest = "tuned" if entry.provenance.get("row_bits") else pick_fastest(over)
    return replace(entry, implementation=fastest, baselines=baselines)


def pick_fastest(over: Mapping[str, LogRatio]) -> str:
    """`tuned`, or the baseline that is surely faster by these ratios; of several within 1 %, the
    plainest: eager before others, and one that is compiled last."""
    if not over:
        return "tuned"
    fastest = min(over, key=lambda name: over[name].value)
    if (-over[fastest]).verdict() is not Verdict.SLOWER:
        return "tuned"
    near = over[fastest].value + math.log1p(THRESHOLD)
    equal = [name for name, ratio in over.items() if ratio.value <= near]
    return min(equal, key=lambda name: (name != "eager", is_compiled(name), name))


# -- the entries of a table for ranges of sizes, and what is known of their coverage ---------------
#: Sizes that are looked up to count the share that a table serves.
_LOOKED_UP = 1000

#: The trials of a task, by its number.
_Trials: TypeAlias = Callable[[int], Sequence[TrialRecord]]


def list_entries(
    tasks: Sequence[TaskInfo], make_entry: Callable[[TaskInfo], Entry], trials: _Trials
) -> list[Entry]:
    """The entries of tasks that lie in ranges.

    tasks: of one kernel and device, with a confirmed time. make_entry: the entry of one task.
    trials: the trials of a task.
    """
    groups = group_ranges(tasks)
    entries = []
    for group in groups:
        boxes, dim, parts = _box_others(group, groups), group.place.dim, group.list_parts()
        made = [_name_fastest(make_entry(part.task), part, group) for part in parts]
        # Without a declaration, a config is right between the sizes where it passed the gate.
        declared = all(dim in entry.sizes for entry in made)
        verdicts = {} if declared else _list_verdicts(group, trials)
        valid = [
            entry.sizes[dim] if dim in entry.sizes else _find_verified(part, verdicts)
            for entry, part in zip(made, parts, strict=True)
        ]
        for entry, span, serves in zip(made, valid, _list_served(parts, valid), strict=True):
            sizes = {dim: span, **entry.sizes}
            shown = {n: s for n, s in {**boxes, dim: serves}.items() if n in sizes}
            entries.append(replace(entry, sizes=sizes, serves=shown))
    return entries


def _name_fastest(entry: Entry, part: RangePart, group: RangeTasks) -> Entry:
    """The entry with the implementation that is fastest over all measured sizes of its part."""
    config = part.segment.config
    sizes = [
        compare_baselines(task, outcome.loss(config))
        for outcome, task in group.known
        if outcome.size in part.segment.sizes
    ]
    return name_implementation(entry, average_ratios(sizes))


def _list_verdicts(group: RangeTasks, trials: _Trials) -> dict[int, dict[str, bool]]:
    """By size and config, whether the config passed the gate in all trials of that size."""
    found: dict[int, dict[str, bool]] = {}
    for outcome, task in group.known:
        verdicts = found[outcome.size] = dict.fromkeys(outcome.losses, True)
        for trial in trials(task.task_id):
            key = config_key(trial.config)
            verdicts[key] = verdicts.get(key, True) and trial.status is Status.CORRECT
    return found


def _find_verified(part: RangePart, verdicts: Mapping[int, Mapping[str, bool]]) -> Span:
    """The sizes between which the config of a part ran and passed the gate wherever it ran."""
    config, first, last = part.segment.config, part.segment.sizes[0], part.segment.sizes[-1]
    ran = {size: found[config] for size, found in verdicts.items() if config in found}
    smaller = sorted((size for size in ran if size < first), reverse=True)
    larger = sorted(size for size in ran if size > last)
    low, high = ([*itertools.takewhile(ran.__getitem__, each)] for each in (smaller, larger))
    return Span(min(low, default=first), max(high, default=last))


def _list_served(parts: Sequence[RangePart], valid: Sequence[Span]) -> list[Span]:
    """What each part serves: between two, the switch is where both are valid, if there is such."""
    low, served = parts[0].low, []
    for part, own, after in zip(parts, valid, [*valid[1:], None], strict=True):
        high = part.high
        if after is not None:
            high = max(part.segment.sizes[-1], min(max(high, after.low - 1), own.high))
        served.append(Span(low, high))
        low = high + 1
    return served


def list_coverage(
    table: Table, tasks: Sequence[TaskInfo], trials: _Trials
) -> list[Mapping[str, Value]]:
    """What is known of each range of a table, as scalars that the table holds.

    tasks: all of the kernel and device. trials: the trials of a task.
    """
    found: list[Mapping[str, Value]] = []
    for group in group_ranges(tasks):
        dim, sizes = group.place.dim, group.place.sizes
        losses = {
            outcome.size: loss
            for outcome, task in group.held_out
            if (loss := _find_loss(table, outcome, task, trials(task.task_id))) is not None
        }
        worst = max(losses, key=losses.__getitem__, default=None)
        hits = _look_up(table, group)
        found.append(
            {
                "dim": dim,
                "sizes": f"{sizes}",
                "of": group.fixed.key,
                "gain": group.place.gain,
                "measured": len(group.known),
                "configs": len({*hits} - {None}),
                "served": round(1 - hits.count(None) / len(hits), 4),
                "held_out": len(losses),
                "mean_loss": round(sum(losses.values()) / len(losses), 4) if losses else None,
                "worst_loss": None if worst is None else round(losses[worst], 4),
                "worst_at": worst,
            }
        )
    return found


def list_coverage_lines(paths: Iterable[str | Path]) -> list[str]:
    """What is known of the ranges of tables, one line each; other files are passed over."""
    lines = []
    for path in paths:
        try:
            table = read(path)
        except TableError:
            continue
        lines += [f"{table.kernel} {describe_coverage(each)}" for each in table.coverage]
    return lines


def describe_coverage(coverage: Mapping[str, Value]) -> str:
    """What is known of a range, in one line."""
    of = f" ({coverage['of']})" if coverage["of"] else ""
    text = (
        f"{coverage['dim']}={coverage['sizes']}{of}: {coverage['configs']} configs from "
        f"{coverage['measured']} sizes serve {coverage['served']:.1%} of the range"
    )
    if coverage["worst_loss"] is None:
        return f"{text}; no size was held out"
    return (
        f"{text}; at {coverage['held_out']} sizes held out they lose {coverage['mean_loss']:.1%}, "
        f"at most {coverage['worst_loss']:.1%} ({coverage['dim']}={coverage['worst_at']})"
    )


def _box_others(group: RangeTasks, groups: Sequence[RangeTasks]) -> dict[str, Span]:
    """The sizes of the dims that are not bisected for which a fixed choice of them stands."""
    boxes = {}
    for name, sizes in group.place.ranges[:-1]:
        alike = [each for each in groups if each.place.ranges == group.place.ranges]
        fixed = sorted({each.fixed.size(name) for each in alike})
        at = fixed.index(group.fixed.size(name))
        low = find_switch(fixed[at - 1], fixed[at]) + 1 if at else sizes.low
        high = find_switch(*fixed[at : at + 2]) if at + 1 < len(fixed) else sizes.high
        boxes[name] = Span(low, high)
    return boxes


def _find_loss(
    table: Table, outcome: SizeOutcome, task: TaskInfo, trials: Sequence[TrialRecord]
) -> float | None:
    """What the table's config loses at a size; None where it was not timed."""
    hit = table.find(task.key.workload.as_dict())
    return None if hit is None else find_loss(outcome, config_key(dict(hit.config)), trials)


def _look_up(table: Table, group: RangeTasks) -> list[str | None]:
    """The config of each of many sizes of a range, by its key; None for a miss."""
    found = []
    for size in group.place.sizes.draw(_LOOKED_UP, seed=0):
        hit = table.find({**group.fixed.as_dict(), group.place.dim: size})
        found.append(None if hit is None else config_key(dict(hit.config)))
    return found
