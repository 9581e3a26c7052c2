"""G2 (identical-pairs), G3 (planted-slowdowns), G11 (power-cap) and G16 (interval-coverage).

Every pair is two candidates that `collect_passes` times with the passes of a confirmation; the
interval and the verdict are the workers'. Real variants go through whole jobs.
"""

from __future__ import annotations

import statistics
import time

from acceptance.evaluation import (
    Pair,
    compare,
    evaluate_coverage,
    evaluate_identical,
    evaluate_planted,
    signed_rank,
)
from acceptance.harness import Harness, Setup
from acceptance.result import Result, percent
from tuner.base.statistics import compare_pairs
from workers.job_records import Measurement, Mode, Timing
from workers.measure.monitor import reason_names
from workers.measure.race.samples import rotated_orders
from workers.measure.timers.timer import Candidate

#: Real kernels of 3 us to 5 ms, measured through jobs.
SAME_FIELDS = (
    "softmax_512x1024",
    "matmul_1024",
    "layer_norm_4096x4096",
    "softmax_8192x8192",
    "matmul_4096",
    "layer_norm_32768x8192",
    "matmul_5ms",
)
CAPPED_FIELD = "matmul_8192"
_SAME_COUNTING_US = (4.0, 20.0, 1000.0)
_EFFECTS = (0.005, 0.01, 0.02, 0.05)


def _planted_kernels():
    from acceptance.planted import Counting, Scaling

    counting = (4.0, 6.0, 10.0, 20.0, 50.0, 200.0)
    return [
        *(Counting(f"counting {us:g} us", us) for us in counting),
        *(Scaling(f"scaling {us:g} us", us) for us in (60.0, 300.0)),
    ]


def same(setup: Setup) -> Result:
    """G2: a kernel against itself; half of the counting kernels against a module copy."""
    if setup.kind == "cpu":
        from acceptance.on_cpu import same_on_cpu

        return same_on_cpu(setup)
    harness, result, pairs = Harness(setup), Result(), []
    each, methods = setup.times(20, 2), {}
    began = time.monotonic()
    for name in SAME_FIELDS:
        pairs += _same_job(harness, name, each, methods)
        result.data["kernels_s"] = {**result.data.get("kernels_s", {}), name: _since(began)}
    pairs += _same_counting(harness, each, methods)
    evaluate_identical(result, pairs)
    result.data["methods"] = methods
    return result


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)


def _same_job(harness: Harness, name: str, each: int, methods) -> list[Pair]:
    artifact, pairs = harness.setup.built[name][0], []
    for _ in range(each):
        answer = harness.job(name, (artifact, artifact), Mode.CONFIRM)
        methods[name] = answer.method
        pairs.append(_make_confirmed_pair(name, answer))
    return pairs


def _make_confirmed_pair(name: str, answer: Measurement) -> Pair:
    """The pair of a confirmation of two candidates."""
    first, second = answer.outcomes
    if not (isinstance(first, Timing) and isinstance(second, Timing)):
        raise RuntimeError(f"{name}: {getattr(first, 'message', '') or second.message}")
    return Pair(
        name,
        first.median_us,
        second.log_ratio.value,
        second.log_ratio.low,
        second.log_ratio.high,
        p_value=signed_rank(second.samples_us, first.samples_us),
    )


def _same_counting(harness: Harness, each: int, methods) -> list[Pair]:
    from acceptance.planted import Counting, fit_work

    pairs = []
    for us in _SAME_COUNTING_US:
        kernel = Counting(f"counting {us:g} us", us)
        work = fit_work(harness, kernel, ())[0.0]
        copies = [Candidate(f"copy {copy}", kernel.runner(work, copy)) for copy in (0, 1)]
        for candidate in copies:
            candidate.run()
        timer = harness.chosen_timer(copies)
        methods[kernel.name] = timer.method
        for turn in range(each):
            other = turn % 2
            pair = (copies[0], Candidate("itself", kernel.runner(work))) if other else copies
            first, second = harness.final(timer, pair)
            name = f"{kernel.name}{'' if other else ', module copy'}"
            pairs.append(compare(name, first, second, timer.quantum_us))
    return pairs


# -- planted -----------------------------------------------------------------------------------
def planted(setup: Setup) -> Result:
    """G3: 0.5, 1, 2 and 5 % of extra work, with CUPTI as the reference.

    The slower candidate comes first in every second pair.
    """
    if setup.kind == "cpu":
        from acceptance.on_cpu import planted_on_cpu

        return planted_on_cpu(setup)
    harness, result, pairs, truths = Harness(setup), Result(), [], {}
    each = setup.times(25, 2)
    for kernel in _planted_kernels():
        candidates, timer = _prepare(harness, kernel, _EFFECTS)
        rows = {effect: [] for effect in candidates}
        _record(harness, candidates, rows, setup.times(120, 30))
        measured = []
        for effect in _EFFECTS:
            for turn in range(each):
                field = [candidates[0.0], candidates[effect]]
                samples = harness.final(timer, field[::-1] if turn % 2 else field)
                measured.append((effect, samples[::-1] if turn % 2 else samples))
        earlier = _truths(rows)
        _record(harness, candidates, rows, setup.times(120, 30))
        truth = _truths(rows)
        truths[kernel.name] = {f"{e:g}": [earlier[e], truth[e]] for e in _EFFECTS}
        for effect, (base, more) in measured:
            given = {"truth": truth[effect], "planted": effect}
            pairs.append(compare(kernel.name, base, more, timer.quantum_us, **given))
        del candidates, kernel
        harness.torch.cuda.empty_cache()
    evaluate_planted(result, pairs)
    result.data["truths"] = truths
    return result


def _prepare(harness: Harness, kernel, shares):
    """Candidates by share of extra work, each run once, and the farm's clock for them."""
    from acceptance.planted import fit_work

    work = fit_work(harness, kernel, shares)
    candidates = {s: Candidate(f"+{s:g}", kernel.runner(w)) for s, w in work.items()}
    for candidate in candidates.values():
        candidate.run()
    return candidates, harness.chosen_timer(list(candidates.values()))


def _record(harness: Harness, candidates, rows, passes: int) -> None:
    """Append the device's own times, taken before and after the farm's in several sessions."""
    for first in range(0, passes, 30):
        orders = rotated_orders(len(candidates), min(30, passes - first), first)
        samples = harness.timer("cupti").collect(list(candidates.values()), orders)
        for kept, row in zip(rows.values(), samples, strict=True):
            kept += row


def _truths(rows) -> dict[float, float]:
    """Log-ratios to the candidate without extra work."""
    return {s: compare_pairs(row, rows[0.0]).value for s, row in rows.items() if s}


# -- at the power limit ------------------------------------------------------------------------
def capped(setup: Setup) -> Result:
    """G11: back-to-back products of 8192^3 of random data; jobs carry the power-cap label, and A/A
    holds.
    """
    harness, result = Harness(setup), Result()
    artifact, pairs, jobs = setup.built[CAPPED_FIELD][0], [], []
    look = harness.backend._read_sample
    for _ in range(setup.times(20, 4)):
        answer = harness.job(CAPPED_FIELD, (artifact, artifact), Mode.CONFIRM)
        pairs.append(_make_confirmed_pair(CAPPED_FIELD, answer))
        jobs.append(dict(answer.clocks))
    seen = _seen_capped(harness, artifact, look)
    labelled = sum("sw_power_cap" in str(job.get("throttle", "")) for job in jobs)
    watts = max((float(job.get("power_w", 0.0)) for job in jobs), default=0.0)
    result.add(
        "power-capped passes are labelled",
        "all of them, and no other",
        f"{labelled} of {len(jobs)}; NVML in this process: {'capped' if seen else 'not capped'}",
        labelled > 0 if seen else None,
        f"up to {watts:.0f} W, SM {_clocks(jobs)} MHz"
        + ("" if seen else "; the card never reached its limit, so no pass is capped"),
    )
    evaluate_identical(result, pairs)
    result.data["jobs"] = jobs
    return result


def _clocks(jobs) -> str:
    clocks = [float(job["sm_mhz"]) for job in jobs if "sm_mhz" in job]
    return f"{min(clocks):.0f} .. {max(clocks):.0f}" if clocks else "unknown"


def _seen_capped(harness: Harness, artifact, look) -> bool:
    """Whether NVML reports a power cap while the same kernel runs here without flushes."""
    if look is None:
        return False
    ready = harness.entries(CAPPED_FIELD, 1)
    (_, entry) = next(iter(ready.values()))
    bits, end = 0, time.monotonic() + 0.6
    while time.monotonic() < end:
        for _ in range(8):
            entry.candidate.run()
        bits |= look().reasons
        harness.torch.cuda.synchronize()
    return "sw_power_cap" in reason_names(bits)


# -- intervals ---------------------------------------------------------------------------------
def coverage(setup: Setup) -> Result:
    """G16: intervals of short runs against a long run before and after them."""
    harness, result, pairs = Harness(setup), Result(), []
    each, long = setup.times(25, 4), setup.times(6, 2)
    for kernel in _planted_kernels():
        candidates, timer = _prepare(harness, kernel, (0.01,))
        field = list(candidates.values())
        rows = [[], []]

        def longer(rows=rows, timer=timer, field=field) -> None:
            for _ in range(long):
                for kept, row in zip(rows, harness.final(timer, field), strict=True):
                    kept += row

        longer()
        short = [harness.final(timer, field) for _ in range(each)]
        longer()
        truth = compare_pairs(rows[1], rows[0], quantum_us=timer.quantum_us).value
        pairs += [
            compare(kernel.name, base, more, timer.quantum_us, truth=truth, planted=0.01)
            for base, more in short
        ]
        del candidates, field, kernel
        harness.torch.cuda.empty_cache()
    evaluate_coverage(result, pairs)
    sds = [row["estimate_sd"] / max(row["half_width"] / 2, 1e-9) for row in result.data["kernels"]]
    result.add(
        "spread between runs relative to the width of their intervals",
        "",
        f"median {statistics.median(sds):.2f}, worst {max(sds):.2f}",
        None,
        f"1 is ideal; intervals are of 64 passes in one collect ({percent(0.95, 0)})",
    )
    return result
