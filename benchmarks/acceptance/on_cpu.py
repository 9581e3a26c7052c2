"""G2 (identical-pairs) and G3 (planted-slowdowns) without a GPU: loops of counted length.

The processor's clock times them; the evaluation is the same as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from acceptance.evaluation import collect_passes, compare, evaluate_identical, evaluate_planted
from acceptance.result import Result
from workers.job_records import MeasurementProtocol
from workers.measure.timers.perf_counter import PerfCounterTimer
from workers.measure.timers.timer import Candidate, WarmUp

_EFFECTS = (0.02, 0.05, 0.10)
_LOOPS = (2_000, 10_000)


def _counting(loops: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(loops):
            pass

    return run


def _timer() -> PerfCounterTimer:
    return PerfCounterTimer(MeasurementProtocol().min_batch_us, WarmUp())


def same_on_cpu(setup) -> Result:
    result, pairs, timer = Result(), [], _timer()
    for loops in _LOOPS:
        field = [Candidate(name, _counting(loops)) for name in ("a", "b")]
        for _ in range(setup.times(100, 4)):
            first, second = collect_passes(timer, field, MeasurementProtocol().final_pairs, 5.0)
            pairs.append(compare(f"{loops} loops", first, second, timer.quantum_us))
    evaluate_identical(result, pairs)
    return result


def planted_on_cpu(setup) -> Result:
    """G3: loops with a known share of extra iterations.

    The truth is the share of iterations: the constant cost of a call is below a thousandth of the
    time.
    """
    from math import log1p

    result, pairs, timer = Result(), [], _timer()
    for loops in _LOOPS:
        for effect in _EFFECTS:
            field = [
                Candidate("base", _counting(loops)),
                Candidate("more", _counting(round(loops * (1 + effect)))),
            ]
            given = {"truth": log1p(effect), "planted": effect}
            for turn in range(setup.times(50, 4)):
                rows = collect_passes(
                    timer,
                    field[::-1] if turn % 2 else field,
                    MeasurementProtocol().final_pairs,
                    5.0,
                )
                base, more = rows[::-1] if turn % 2 else rows
                pairs.append(compare(f"{loops} loops", base, more, timer.quantum_us, **given))
    evaluate_planted(result, pairs)
    return result
