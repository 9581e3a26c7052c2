"""A whole step in several ways, in turn in one process, and what follows from their times."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tuner.base.log_ratio import LogRatio
from tuner.base.statistics import compare_pairs
from tuner.optimizing.call_times import Step, wait
from tuner.optimizing.step_record import Side

#: The ways: with operators and new tables, with operators and today's tables, as it is written.
NEW, TODAY, PLAIN = "new", "today", "plain"
#: Times by way; equal positions are of one round.
Times: TypeAlias = Mapping[str, Sequence[float]]
#: Runs before the first that counts; rounds after which an interval of `_NARROW` is enough, the
#: last of which are the most; how few suffice after a time, and the longest one, in seconds.
_WARM, _LOOKS, _NARROW, _FEWEST, LONGEST_S = 2, (40, 80, 160), 0.005, 8, 60.0


@dataclass(frozen=True, slots=True)
class StepComparison:
    """What the times of the ways say."""

    #: Whether the new tables are surely faster than both other ways.
    ships: bool
    #: ln(time with operators and the tables in use / time as it is written), with its interval.
    measured: LogRatio
    #: ln(time with new tables / time with today's); None where nothing is new.
    over_today: LogRatio | None


def judge(times: Times) -> StepComparison:
    """Decide by the times of each way, of which equal positions are of one round.

    Without times of `NEW`, there is nothing to ship.
    """
    today = compare_pairs(times[TODAY], times[PLAIN])
    if NEW not in times:
        return StepComparison(False, today, None)
    new, over_today = (compare_pairs(times[NEW], times[other]) for other in (PLAIN, TODAY))
    ships = is_surely_faster(new) and is_surely_faster(over_today)
    return StepComparison(ships, new if ships else today, over_today)


def is_surely_faster(ratio: LogRatio) -> bool:
    """Whether the whole interval of ln(our time / other time) is known and below zero."""
    return ratio.ends is not None and ratio.high < 0


def time_step(step: Step, sides: Mapping[str, Side], long_s: float = LONGEST_S) -> Times:
    """Milliseconds of a step in each way, round by round; few rounds suffice after long_s."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # compiled code holds the decisions of when it was made
    for side in sides.values():
        for _ in range(_WARM):
            _time(step, side)
    began = time.monotonic()

    def is_enough(times: Times) -> bool:
        rounds = len(times[PLAIN])
        if rounds >= _FEWEST and time.monotonic() - began > long_s:
            return True
        ratios = (compare_pairs(times[each], times[PLAIN]) for each in times if each != PLAIN)
        return rounds in _LOOKS and all(each.high - each.low <= _NARROW for each in ratios)

    return time_in_turn(lambda name: _time(step, sides[name]), [*sides], is_enough, _LOOKS[-1])


def time_in_turn(
    measure: Callable[[str], float],
    ways: Sequence[str],
    is_enough: Callable[[Times], bool],
    most: int,
) -> Times:
    """Measure every way once per round, in a changing order; at most `most` rounds."""
    order, times = ways, {name: list[float]() for name in ways}
    for at in range(most):
        if is_enough(times):
            break
        for name in order if at % 2 else reversed(order):
            times[name].append(measure(name))
        order = [*order[1:], order[0]]
    return times


def _time(step: Step, side: Side) -> float:
    """Milliseconds: on a GPU between two events, else by the clock."""
    with side.active():
        if side.settles:
            step()
        wait()
        if not torch.cuda.is_available():
            began = time.perf_counter()
            step()
            return 1e3 * (time.perf_counter() - began)
        start, end = _event(), _event()
        start.record()
        step()
        end.record()
        wait()
        return float(start.elapsed_time(end))


def _event() -> Any:
    make: Any = torch.cuda.Event
    return make(enable_timing=True)
