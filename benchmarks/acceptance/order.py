"""G9 (order-invariance), G10 (idleness): winners depend neither on order nor on idle time."""

from __future__ import annotations

import math
import random
import statistics
import time

from acceptance.evaluation import log_ratios
from acceptance.harness import Harness, Setup, candidates_of, renamed
from acceptance.result import Result, percent
from tuner.base.statistics import compare_pairs, tie_set
from workers.job_records import Mode, Timing
from workers.measure.timers.timer import Candidate

_RACED = {"matmul_4096": 16, "softmax_512x1024": 16}
_COPIES = 8
_PRECISION = 0.0015


def invariance(setup: Setup) -> Result:
    """G9: races of one list forward, reversed and shuffled, and the cost of the first place."""
    harness, result = Harness(setup), Result()
    for name, count in _RACED.items():
        artifacts = list(setup.built[name][:count])
        shuffles = range(3 if setup.scale >= 0.5 else 1)
        orders = [artifacts, artifacts[::-1]]
        orders += [random.Random(seed).sample(artifacts, len(artifacts)) for seed in shuffles]
        races = [_raced(harness, name, order) for order in orders]
        shared = set.intersection(*(set(tie.members) for tie, _ in races))
        winners = [tie.winner for tie, _ in races]
        hashes = {by_name[tie.winner].binary_hash for tie, by_name in races}
        result.add(
            f"{name}: winner of {count} in {len(orders)} orders",
            "one winner, or one tie set",
            f"{len(hashes)} different, tie sets of {[len(tie.members) for tie, _ in races]}",
            len(hashes) == 1 or set(winners) <= shared,
            f"in every tie set: {len(shared)}",
        )
        result.data[name] = {"winners": winners, "shared": sorted(shared)}
    for name in _RACED:
        _first_place(harness, result, name)
    return result


def _raced(harness: Harness, name: str, order):
    answer = harness.job(name, order, Mode.RACE)
    by_name = {}
    samples = {}
    for artifact, outcome in zip(order, answer.outcomes, strict=True):
        if isinstance(outcome, Timing) and outcome.samples_us:
            samples[outcome.name], by_name[outcome.name] = outcome.samples_us, artifact
    return tie_set(samples), by_name


def _first_place(harness: Harness, result: Result, name: str) -> None:
    """One kernel in eight places of every pass, never rotated: the raw cost of the first place."""
    (candidate,) = candidates_of(harness.entries(name, 1))
    field = [renamed(candidate, f"place {at}") for at in range(_COPIES)]
    timer = harness.chosen_timer(field)
    timer.warm(field[0], 100.0)
    order = list(range(_COPIES))
    rows = timer.collect(field, [order] * harness.setup.times(96, 32))
    others = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
    ratio = compare_pairs(rows[0], others, quantum_us=timer.quantum_us)
    penalty = math.expm1(ratio.value)
    result.add(
        f"{name}: penalty of the first place of a pass",
        "<= 0.5 %",
        f"{100 * penalty:+.2f} % ({statistics.median(rows[0]):.2f} us)",
        abs(penalty) <= 0.005,
        f"95 %: {100 * math.expm1(ratio.low):+.2f} .. {100 * math.expm1(ratio.high):+.2f} %; "
        f"{timer.method}; races rotate the places",
    )
    result.data[f"{name} places_us"] = [statistics.median(row) for row in rows]


def idleness(setup: Setup) -> Result:
    """G10: ratios of four finalists, immediately and after the device was idle for ten seconds."""
    harness, result = Harness(setup), Result()
    for name, idle_s in (("matmul_4096", 10.0), ("softmax_512x1024", 1.0)):
        field, timer = _finalists(harness, name, 4)
        before = _ratios(harness, timer, field)
        again = _ratios(harness, timer, field)
        time.sleep(idle_s)
        after = _ratios(harness, timer, field)
        moved = max(abs(a - b) for a, b in zip(after, again, strict=True))
        usual = max(abs(a - b) for a, b in zip(again, before, strict=True))
        result.add(
            f"{name}: ratios of {len(field)} finalists after {idle_s:g} s of idle time",
            "move <= 0.5 %",
            percent(moved, 2),
            moved <= 0.005,
            f"without idle time they move {percent(usual, 2)}",
        )
        result.data[name] = {"before": before, "again": again, "after": after}
    return result


def _finalists(harness: Harness, name: str, count: int):
    """The fastest variants of a field, and the clock that times them."""
    field = candidates_of(harness.entries(name, _RACED[name]))
    timer = harness.chosen_timer(field)
    rows = harness.final(timer, field, 6)
    ranked = sorted(range(len(field)), key=lambda at: statistics.median(rows[at]))
    few = [field[at] for at in ranked[:count]]
    return few, harness.chosen_timer(few)


def _ratios(harness: Harness, timer, field: list[Candidate]) -> list[float]:
    # The precision is well below the bound.
    rows = harness.final(timer, field, precision=_PRECISION)
    return log_ratios(rows, timer.quantum_us)[1:]
