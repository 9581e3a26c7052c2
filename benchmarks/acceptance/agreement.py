"""G6 (cupti-agreement): the farm's clocks against CUPTI's records, over many real kernels."""

from __future__ import annotations

import statistics

from scipy.stats import kendalltau

from acceptance.harness import Harness, Setup, candidates_of
from acceptance.result import Result, percent
from workers.measure.race.samples import rotated_orders
from workers.measure.timers.timer import Candidate

#: Field and number of its variants.
FIELDS = {
    "softmax_512x1024": 24,
    "softmax_2048x4096": 8,
    "matmul_1024": 16,
    "layer_norm_4096x4096": 12,
    "softmax_8192x8192": 12,
    "matmul_4096": 24,
    "layer_norm_32768x8192": 6,
    "matmul_8192": 3,
    "matmul_5ms": 1,
}
_PARTS = 4
_SETTLING = 4
#: A rank correlation needs at least this many variants.
_RANKED = 12
_SHORT_US = 50.0


def with_cupti(setup: Setup) -> Result:
    """G6: time real kernels with the farm's clocks and with CUPTI, and compare.

    Long kernels run in parts that alternate between both clocks, so that frequency drift affects
    both alike. The farm times short kernels before this process first uses the profiler: after a
    profiler session, pairs of events read 0.1 to 0.3 us more, which never happens in a farm.
    """
    harness, result, kernels = Harness(setup), Result(), []
    ranks: dict[str, float] = {}
    passes = setup.times(5, 2)
    alone: dict[str, list[float]] = {}
    for name in FIELDS:
        if field := candidates_of(harness.entries(name, FIELDS[name])):
            timer = harness.chosen_timer(field)
            harness.final(timer, field[:1], 2)
            alone[name] = _in_turns(field, {"farm": timer}, passes)["farm"]
            harness.backend._make_room(None)
    for name, count in FIELDS.items():
        field = candidates_of(harness.entries(name, count))
        if not field:
            continue
        timer, cupti = harness.chosen_timer(field), harness.timer("cupti")
        harness.final(timer, field[:1], 2)
        readings = _in_turns(field, {"farm": timer, "cupti": cupti}, passes)
        pairs = zip(alone[name], readings["farm"], readings["cupti"], strict=True)
        readings["farm"] = [first if own < _SHORT_US else turn for first, turn, own in pairs]
        for at, candidate in enumerate(field):
            row = {"kernel": candidate.name, "method": timer.method}
            kernels.append(row | {key: round(rows[at], 4) for key, rows in readings.items()})
        if len(field) >= _RANKED:
            ranks[name] = float(kendalltau(readings["farm"], readings["cupti"]).statistic)
        harness.backend._make_room(None)
    result.data["kernels"], result.data["tau"] = kernels, ranks
    _evaluate(result, kernels, ranks)
    return result


def _in_turns(field: list[Candidate], timers, passes: int) -> dict[str, list[float]]:
    """The median over all parts, per clock and candidate."""
    samples = {key: [[] for _ in field] for key in timers}
    for part in range(_PARTS):
        turn = list(timers.items())
        for key, timer in turn if part % 2 == 0 else turn[::-1]:
            # The first passes after a change of clock settle frequency and caches.
            orders = rotated_orders(len(field), passes + _SETTLING, part * passes)
            rows = timer.collect(field, orders)
            for kept, row in zip(samples[key], rows, strict=True):
                kept += row[_SETTLING:]
    return {key: [statistics.median(row) for row in rows] for key, rows in samples.items()}


def _evaluate(result: Result, kernels, ranks) -> None:
    long = [k for k in kernels if k["cupti"] >= _SHORT_US]
    short = [k for k in kernels if k["cupti"] < _SHORT_US]
    if long:
        worst = max(long, key=lambda k: abs(k["farm"] / k["cupti"] - 1))
        off = worst["farm"] / worst["cupti"] - 1
        result.add(
            f"{len(long)} kernels of 50 us .. {max(k['cupti'] for k in long) / 1000:.1f} ms",
            "within 2 %",
            f"worst {100 * off:+.2f} %, median "
            + percent(statistics.median(abs(k["farm"] / k["cupti"] - 1) for k in long), 2),
            abs(off) <= 0.02,
            f"worst: {worst['kernel']} ({worst['method']})",
        )
    if short:
        worst = max(short, key=lambda k: abs(k["farm"] - k["cupti"]))
        off = worst["farm"] - worst["cupti"]
        result.add(
            f"{len(short)} kernels of {min(k['cupti'] for k in short):.1f} .. 50 us",
            "within 1 us",
            f"worst {off:+.2f} us, median "
            f"{statistics.median(abs(k['farm'] - k['cupti']) for k in short):.2f} us",
            abs(off) <= 1.0,
            f"worst: {worst['kernel']} ({worst['cupti']:.2f} us)",
        )
    if ranks:
        each = ", ".join(f"{name} {tau:.3f}" for name, tau in ranks.items())
        least = min(ranks.values())
        result.add("rank agreement within a task, tau", ">= 0.95", f"least {least:.3f}",
                  least >= 0.95, each)  # fmt: skip
