"""Which implementation an entry of a table names: its config, or a baseline that is surely faster.

Notation: a ratio is ln(time of a baseline / time of a config), with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.baselines import is_compiled
from tuner.base.log_ratio import THRESHOLD, LogRatio, Verdict
from tuner.runtime import Entry


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
    """The entry with what is fastest by these ratios, and with the ratios themselves."""
    baselines = {name: round(ratio.ratio, 4) for name, ratio in over.items()}
    return replace(entry, implementation=pick_fastest(over), baselines=baselines)


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
