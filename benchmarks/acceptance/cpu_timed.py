"""C3 (identical-products), C4 (planted-slowdowns), C5 (rank-agreement): real work on the CPU.

The farm's own loops and clock time it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy import stats

from acceptance.evaluation import collect_passes
from tuner.base.statistics import compare_pairs, tie_set
from workers.job_records import MeasurementProtocol
from workers.measure.race.elimination import race
from workers.measure.race.screening import screen
from workers.measure.timers.perf_counter import PerfCounterTimer
from workers.measure.timers.timer import Candidate, WarmUp

SIZES = (128, 256)
#: Pairs of one A/A run, and the minimum duration of one sample.
PAIRS, BATCH_US = 60, 200.0
#: An odd count, so that each candidate visits every buffer.
POOL = 7
SLOWER = (0.03, 0.05, 0.10)
BLOCKS = (32, 48, 64, 96, 128, 192)
ORDERS = ("ijk", "ikj", "jik", "jki", "kij")
VARIANTS = 60
_FASTEST = 12
_SIDE = 384
_CONSTANTS = MeasurementProtocol(warm_ms=50.0)


def _timer(cache: str = "warm") -> PerfCounterTimer:
    return PerfCounterTimer(BATCH_US, WarmUp(), cache=cache)


# -- C3 --------------------------------------------------------------------------------------------
def _product(size: int, rng: np.random.Generator) -> Callable[[], object]:
    a, b = (rng.random((size, size), dtype=np.float32) for _ in range(2))
    return partial(np.matmul, a, b, np.empty((size, size), np.float32))


def same_twice(size: int, buffers: str, runs: int) -> dict[str, float]:
    """How often the same product, as two candidates, is called different in `runs` runs.

    buffers: `own` gives each candidate its buffers, `same` gives both the same ones, and with
    `pool` both rotate through one pool. differ: the 95 % interval excludes zero. declared: the
    farm's verdict is `faster` or `slower`.
    """
    counts = {"differ": 0, "declared": 0}
    ratios = []
    for run in range(runs):
        rng = np.random.default_rng([size, run])
        copies = tuple(_product(size, rng) for _ in range(POOL))
        candidates = [
            Candidate(name, copies[index if buffers == "own" else 0], rotations=copies)
            for index, name in enumerate("ab")
        ]
        timer = _timer("rotate" if buffers == "pool" else "warm")
        a, b = collect_passes(timer, candidates, PAIRS, warm_ms=20.0)
        ratio = compare_pairs(a, b)
        ratios.append(abs(ratio.value))
        counts["differ"] += not ratio.low <= 0 <= ratio.high
        counts["declared"] += ratio.verdict() in (
            "faster",
            "slower",
        )
    shares = {name: count / runs for name, count in counts.items()}
    return {**shares, "error_p95": sorted(ratios)[int(0.95 * (runs - 1))]}


# -- C4 --------------------------------------------------------------------------------------------
def planted(effect: float, runs: int) -> dict[str, float]:
    """Verdicts on a variant that does a known share more of the same work.

    The work is a hundred small products of one size; the slower variant does `effect` more of them.
    """
    least, more = 100, round(100 * (1 + effect))
    counts = {"slower": 0, "faster": 0}
    measured = []
    for run in range(runs):
        rng = np.random.default_rng([4, run])
        once = _product(48, rng)
        candidates = [Candidate(f"{n}", partial(_repeat, once, n)) for n in (more, least)]
        a, b = collect_passes(_timer(), candidates, PAIRS, warm_ms=20.0)
        ratio = compare_pairs(a, b)
        measured.append(ratio.value)
        call = ratio.verdict()
        counts["slower"] += call == "slower"
        counts["faster"] += call == "faster"
    shares = {name: count / runs for name, count in counts.items()}
    return {**shares, "measured": float(np.expm1(statistics.median(measured)))}


def _repeat(work: Callable[[], object], count: int) -> None:
    for _ in range(count):
        work()


# -- C5 --------------------------------------------------------------------------------------------
def variants() -> list[Candidate]:
    """Blocked products of one pair of matrices: loop orders times block sizes."""
    rng = np.random.default_rng(5)
    a, b = (rng.random((_SIDE, _SIDE), dtype=np.float32) for _ in range(2))
    out = np.empty((_SIDE, _SIDE), np.float32)
    shapes = [(order, rows, deep) for order in ORDERS for rows in BLOCKS for deep in BLOCKS]
    chosen = np.random.default_rng(6).choice(len(shapes), VARIANTS, replace=False)
    return [
        Candidate(f"{order}/{rows}/{deep}", partial(_blocked, a, b, out, order, rows, deep))
        for order, rows, deep in (shapes[index] for index in sorted(chosen))
    ]


def _blocked(a, b, out, order: str, block: int, deep: int) -> None:
    out[:] = 0
    steps = {"i": block, "j": block, "k": deep}
    first, second, third = order
    for x in range(0, _SIDE, steps[first]):
        for y in range(0, _SIDE, steps[second]):
            for z in range(0, _SIDE, steps[third]):
                at = {first: x, second: y, third: z}
                i = slice(at["i"], at["i"] + block)
                j = slice(at["j"], at["j"] + block)
                k = slice(at["k"], at["k"] + deep)
                out[i, j] += a[i, k] @ b[k, j]


def exhaustive_regret(field: Sequence[Candidate], passes: int) -> dict[str, float]:
    """The regret of each candidate, as a share of the best time, from many interleaved passes."""
    logs = np.log(np.array(collect_passes(_timer(), field, passes, warm_ms=100.0)))
    middle = np.median(logs - logs.mean(axis=0), axis=1)
    off = np.expm1(middle - middle.min())
    return {candidate.name: float(share) for candidate, share in zip(field, off, strict=True)}


def full_ranking(field: Sequence[Candidate], passes: int) -> list[float]:
    """ln of every variant's time relative to its pass, over one simulated campaign."""
    logs = np.log(np.array(collect_passes(_timer(), field, passes, warm_ms=100.0)))
    return list(np.median(logs - logs.mean(axis=0), axis=1))


def chosen(field: Sequence[Candidate], finalists: int = 8) -> str:
    """The farm's choice: screenings of 16 against the incumbent, then a race of the fastest."""
    timer, incumbent, scores = _timer(), field[0], {field[0].name: 0.0}
    by_name = {candidate.name: candidate for candidate in field}
    rest = list(field[1:])
    for start in range(0, len(rest), 16):
        entries = screen(timer, rest[start : start + 16], incumbent, _CONSTANTS)
        incumbent_entry = entries[-1]
        base = scores[incumbent.name]
        for entry in entries[:-1]:
            both = min(len(entry.samples_us), len(incumbent_entry.samples_us))
            ratio = compare_pairs(entry.samples_us[:both], incumbent_entry.samples_us[:both])
            scores[entry.candidate.name] = base + ratio.value
        incumbent = by_name[min(scores, key=scores.__getitem__)]
    named = sorted(scores, key=scores.__getitem__)[:finalists]
    entries = race(timer, [by_name[name] for name in named], _CONSTANTS)
    return tie_set({entry.candidate.name: entry.samples_us for entry in entries}).winner


def repeated(selections: int, passes: int) -> dict[str, float]:
    """Agreement of two rankings of all variants, and the regret of the farm's choices.

    The reference for the regret is a third ranking with ten times as many passes. It holds all
    chosen variants and the dozen that are fastest in both rankings together.
    """
    field = variants()
    first, second = full_ranking(field, passes), full_ranking(field, passes)
    picked = [chosen(field) for _ in range(selections)]
    together = np.add(first, second)
    fastest = {field[index].name for index in np.argsort(together)[:_FASTEST]}
    truth = exhaustive_regret(
        [candidate for candidate in field if candidate.name in {*picked, *fastest}], 10 * passes
    )
    regrets = [truth[name] for name in picked]
    return {
        "tau": float(stats.kendalltau(first, second).statistic),
        "within_5_percent": sum(regret <= 0.05 for regret in regrets) / selections,
        "worst": max(regrets),
        "spread": float(np.exp(max(together) / 2 - min(together) / 2)),
    }
