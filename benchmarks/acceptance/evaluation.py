"""Samples of interleaved passes, and the evaluation of many pair comparisons.

An estimate is ln(time of the second / time of the first) with its 95 % interval. Estimates,
intervals and verdicts are those of the workers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from acceptance.result import Result, percent
from tuner.base.log_ratio import THRESHOLD, LogRatio
from tuner.base.statistics import compare_pairs
from workers.measure.race.samples import rotated_orders
from workers.measure.timers.timer import Candidate, Timer

#: Planted share of work, and the minimum share of its pairs in which it must be detected.
FOUND_SHARES = {0.01: 0.80, 0.02: 0.95}
#: Largest acceptable bias, as a share of the time.
BIAS = 0.003


def collect_passes(
    timer: Timer, candidates: Sequence[Candidate], passes: int, warm_ms: float
) -> list[list[float]]:
    """Samples in us per candidate over a number of interleaved passes."""
    timer.warm(candidates[0], warm_ms, steady=True)
    return timer.collect(candidates, rotated_orders(len(candidates), passes))


@dataclass(frozen=True, slots=True)
class Pair:
    """One comparison of two candidates."""

    kernel: str
    time_us: float
    #: Estimate of ln(time of the second / time of the first).
    log_ratio: float
    #: Lower end of the 95 % interval; `high` is the upper end.
    low: float
    high: float
    #: The true log-ratio, from an independent measurement.
    truth: float = 0.0
    #: The planted share of extra work.
    planted: float = 0.0
    #: Of Wilcoxon's signed-rank test on the pairs of samples; NaN where it was not computed.
    p_value: float = math.nan

    @property
    def verdict(self) -> str:
        return str(LogRatio(self.log_ratio, self.low, self.high).verdict())

    @property
    def apart(self) -> int:
        """1 or -1 where the interval excludes zero, 0 where it does not."""
        return (self.low > 0) - (self.high < 0)


def compare(kernel, first_us, second_us, quantum_us, *, truth=0.0, planted=0.0) -> Pair:
    """The pair for two rows of samples, evaluated as in a session of the farm."""
    both = min(len(first_us), len(second_us))
    ratio = compare_pairs(second_us[:both], first_us[:both], quantum_us=quantum_us)
    return Pair(
        kernel,
        statistics.median(first_us),
        ratio.value,
        ratio.low,
        ratio.high,
        truth,
        planted,
        signed_rank(second_us, first_us),
    )


def log_ratios(rows, quantum_us=0.0) -> list[float]:
    """Log-ratios of every row of samples to the first, over the passes that both took.

    A candidate whose ratio is known early has fewer passes.
    """
    ratios = []
    for row in rows:
        both = min(len(row), len(rows[0]))
        ratios.append(compare_pairs(row[:both], rows[0][:both], quantum_us=quantum_us).value)
    return ratios


def signed_rank(a, b) -> float:
    """Wilcoxon's p-value of the paired log-ratios; 1.0 where all are ties."""
    from scipy.stats import wilcoxon

    differences = [math.log(x) - math.log(y) for x, y in zip(a, b, strict=True)]
    if not any(differences):
        return 1.0
    return float(wilcoxon(differences, method="approx").pvalue)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed; NaN for no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def by_kernel(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    grouped: dict[str, list[Pair]] = {}
    for pair in pairs:
        grouped.setdefault(pair.kernel, []).append(pair)
    return grouped


def evaluate_identical(result: Result, pairs: Sequence[Pair]) -> None:
    """A/A: almost no identical pair may be called different."""
    if not pairs:
        result.skip("A/A", "no pair was measured")
        return
    different = [pair for pair in pairs if pair.verdict in ("faster", "slower")]
    undecided = sum(pair.verdict == "undecided" for pair in pairs)
    share = len(different) / len(pairs)
    result.add(
        "A/A: identical pairs called different",
        "<= 1 %",
        f"{len(different)} of {len(pairs)} ({percent(share)})",
        share <= 0.01,
        f"{undecided} undecided"
        + (f"; {', '.join(sorted({p.kernel for p in different}))}" if different else ""),
    )
    _signed_ranks(result, pairs)
    for name, bound, these in (
        ("T >= 50 us", 0.003, [p for p in pairs if p.time_us >= 50]),
        ("T = 5 .. 50 us", 0.01, [p for p in pairs if 5 <= p.time_us < 50]),
        ("T < 5 us", None, [p for p in pairs if p.time_us < 5]),
    ):
        if these:
            errors = [abs(math.expm1(p.log_ratio)) for p in these]
            error = quantile(errors, 0.95)
            result.add(
                f"A/A: 95th percentile of the ratio's error, {name}",
                f"<= {percent(bound)}" if bound else "",
                percent(error, 2),
                error <= bound if bound else None,
                f"{len(these)} pairs, worst {percent(max(errors), 2)}"
                + ("" if bound else "; the bound of 1 % is for 5 us"),
            )
    result.data["kernels"] = summaries(pairs)


def _signed_ranks(result: Result, pairs: Sequence[Pair]) -> None:
    apart = sum(pair.apart != 0 for pair in pairs) / len(pairs)
    raw = sum(pair.p_value < 0.05 for pair in pairs) / len(pairs)
    result.add(
        "A/A: raw Wilcoxon p < 0.05 (without the 1 % threshold)",
        "2 .. 10 %",
        percent(raw),
        0.02 <= raw <= 0.10 if len(pairs) >= 100 else None,
        f"95 % intervals that exclude 0: {percent(apart)}"
        + ("" if len(pairs) >= 100 else "; too few pairs to judge"),
    )


def evaluate_planted(result: Result, pairs: Sequence[Pair]) -> None:
    """Planted A/B: extra work is detected, its size is right, and its sign is never wrong."""
    for planted in sorted({pair.planted for pair in pairs}):
        these = [pair for pair in pairs if pair.planted == planted]
        apart = sum(pair.apart > 0 for pair in these) / len(these)
        slower = sum(pair.verdict == "slower" for pair in these) / len(these)
        bound = FOUND_SHARES.get(planted, 0.95 if planted > 0.02 else None)
        result.add(
            f"planted {percent(planted)}: detected (interval above 0)",
            f">= {percent(bound, 0)}" if bound else "",
            f"{percent(apart)} of {len(these)}",
            apart >= bound if bound else None,
            f"called `slower` (beyond {percent(THRESHOLD, 0)}): {percent(slower)}"
            + (f"; missed: {_missed(these)}" if apart < 1 else ""),
        )
        if planted >= 0.02:
            called = slower >= 0.95
            result.add(
                f"planted {percent(planted)}: called `slower`", ">= 95 %", percent(slower), called
            )
    _signs(result, pairs)
    _biases(result, pairs)
    result.data["kernels"] = summaries(pairs)


def _missed(pairs: Sequence[Pair]) -> str:
    counts = {name: sum(p.apart <= 0 for p in own) for name, own in by_kernel(pairs).items()}
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _signs(result: Result, pairs: Sequence[Pair]) -> None:
    wrong_sign = [pair for pair in pairs if pair.apart < 0 or pair.verdict == "faster"]
    wrong_estimate = [pair for pair in pairs if pair.planted >= 0.02 and pair.log_ratio <= 0]
    result.add(
        "planted: wrong sign (interval below 0 anywhere, or estimate below 0 at >= 2 %)",
        "0",
        f"{len(wrong_sign)} and {len(wrong_estimate)} of {len(pairs)}",
        not wrong_sign and not wrong_estimate,
        ", ".join(
            sorted({f"{p.kernel} +{percent(p.planted)}" for p in [*wrong_sign, *wrong_estimate]})
        ),
    )


def _biases(result: Result, pairs: Sequence[Pair]) -> None:
    """Bias of the mean estimate of each kernel and planted share."""
    errors = [math.expm1(pair.log_ratio) - math.expm1(pair.truth) for pair in pairs]
    groups: dict[tuple[str, float], list[float]] = {}
    for pair, error in zip(pairs, errors, strict=True):
        groups.setdefault((pair.kernel, pair.planted), []).append(error)
    biases = {key: statistics.fmean(values) for key, values in groups.items()}
    worst = max(biases, key=lambda key: abs(biases[key]))
    result.add(
        "planted: mean estimate against the truth, worst kernel and share",
        "within 0.3 points",
        f"{100 * biases[worst]:+.2f} points",
        abs(biases[worst]) <= BIAS,
        f"{worst[0]} +{percent(worst[1])}; single pairs, 95th percentile: "
        f"{100 * quantile([abs(e) for e in errors], 0.95):.2f} points",
    )


def evaluate_coverage(result: Result, pairs: Sequence[Pair]) -> None:
    """How many 95 % intervals contain the log-ratio of an independent long run."""
    covered = [pair.low <= pair.truth <= pair.high for pair in pairs]
    share = sum(covered) / len(covered)
    near = sum(p.low - 5e-4 <= p.truth <= p.high + 5e-4 for p in pairs) / len(pairs)
    result.add(
        "coverage of reported 95 % intervals by an independent long run",
        "92 .. 98 %",
        f"{percent(share)} of {len(pairs)}",
        0.92 <= share <= 0.98,
        f"within 0.05 points of the interval: {percent(near)}",
    )
    result.data["kernels"] = summaries(pairs)


def summaries(pairs: Sequence[Pair]) -> list[dict]:
    """Times, estimates, widths, verdicts and coverage per kernel and planted share."""
    rows = []
    for name, own in by_kernel(pairs).items():
        for planted in sorted({pair.planted for pair in own}):
            these = [pair for pair in own if pair.planted == planted]
            estimates = [pair.log_ratio for pair in these]
            rows.append(
                {
                    "kernel": name,
                    "planted": planted,
                    "pairs": len(these),
                    "time_us": round(statistics.median(p.time_us for p in these), 3),
                    "truth": round(these[0].truth, 6),
                    "estimate_mean": round(statistics.fmean(estimates), 6),
                    "estimate_sd": round(statistics.pstdev(estimates), 6),
                    "estimate_worst": round(max(estimates, key=abs), 6),
                    "half_width": round(statistics.median((p.high - p.low) / 2 for p in these), 6),
                    "verdicts": {
                        word: sum(p.verdict == word for p in these)
                        for word in ("faster", "slower", "same", "undecided")
                    },
                    "covers_truth": sum(p.low <= p.truth <= p.high for p in these),
                }
            )
    return rows
