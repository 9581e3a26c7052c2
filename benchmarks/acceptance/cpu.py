#!/usr/bin/env python3
"""Acceptance tests of measurement, search and resume on a machine without a GPU.

    benchmarks/acceptance/cpu.py --out DIR [--only C2 C6] [--seeds 300] [--quick]

C1 noise-scenarios, C2 identical-under-drift, C3 identical-products, C4 planted-slowdowns, C5
rank-agreement, C6 interval-coverage, C7 killed-drivers and C8 engine-overhead; `--only` takes an id
or a title.

The script prints one table (what, bound, measured, pass or fail) and writes it with machine,
toolchain and date to DIR/acceptance_cpu.json. C1 runs the first --seeds of its 300 seeds. Keep the
machine idle during a run: C3, C4, C5 and C8 time real work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [f"{ROOT / each}" for each in (".", "benchmarks", "tests", "tests/plugins")]
# Small matrix products run on one thread each: the effect of more threads is not tested here.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    id: str
    what: str
    bound: str
    measured: str
    #: None where the design states no bound.
    passed: bool | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """The number of runs, trials and seeds of every check."""

    seeds: int
    processes: int
    same_trials: int = 3000
    coverage_trials: int = 6000
    real_runs: int = 120
    planted_runs: int = 100
    selections: int = 20
    passes: int = 24
    points: int = 20
    trials: int = 10_000


def quick(size: Size) -> Size:
    """A smaller size that takes a minute or two; its results are a smoke test, not evidence."""
    return Size(2, size.processes, 1000, 3000, 20, 10, 3, 8, 4, 2000)


def noise_scenarios(size: Size) -> Iterator[Row]:
    from acceptance import cpu_noise as noise
    from acceptance import simulated_worlds

    configs = 2000
    scenarios = noise.scenarios(size.seeds, configs, size.processes)
    for name, figures in scenarios.items():
        yield Row(
            "C1",
            f"{simulated_worlds.label(name)}: {configs} configs, {figures['seeds']} seeds",
            f"P(<=1 %) >= 0.99, P(<=2 %) >= 0.995, device <= {figures['device_s_bound']} s",
            f"{figures['within_1_percent']}, {figures['within_2_percent']}, "
            f"{figures['device_s']} s",
            bool(figures["passed"]),
            "simulated" if figures["seeds"] >= 300 else "simulated; fewer seeds than 300",
        )


def identical_under_drift(size: Size) -> Iterator[Row]:
    from acceptance import cpu_noise as noise

    for sd, tau_s in noise.DRIFTS:
        figures = noise.same_under_drift(sd, tau_s, size.same_trials)
        what = f"A/A, drift {sd:.1%} over {tau_s:g} s, {size.same_trials} trials"
        good = 0.03 <= figures["paired"] <= 0.07 and figures["declared"] <= 0.01
        measured = f"{figures['paired']:.1%}, {figures['declared']:.2%}"
        yield Row("C2", what, "paired 3-7 %, declared <= 1 %", measured, good, "simulated")
        guard = figures["sequential"]
        what = "positive control: consecutive windows, Mann-Whitney"
        yield Row("C2", what, "> 25 %", f"{guard:.1%}", bool(guard > 0.25), "simulated")


def identical_products(size: Size) -> Iterator[Row]:
    from acceptance import cpu_timed as timed

    for side in timed.SIZES:
        for buffers in ("same", "pool", "own"):
            figures = timed.same_twice(side, buffers, size.real_runs)
            shared = buffers != "own"
            good = figures["differ"] <= 0.10 and figures["declared"] <= 0.05
            yield Row(
                "C3",
                f"A/A of np.matmul {side}, {buffers} buffers, {size.real_runs} runs",
                "differ <= 10 %, declared <= 5 %"
                if shared
                else "none: shows why buffers are shared",
                f"{figures['differ']:.1%}, {figures['declared']:.1%}, "
                f"p95 {figures['error_p95']:.2%}",
                good if shared else None,
            )


def planted_slowdowns(size: Size) -> Iterator[Row]:
    from acceptance import cpu_timed as timed

    bounds = {
        0.03: ("none", lambda f: None),
        0.05: (">= 90 % slower", lambda f: f["slower"] >= 0.9),
        0.10: ("sign never wrong", lambda f: f["faster"] == 0 and f["slower"] >= 0.9),
    }
    for effect in timed.SLOWER:
        figures = timed.planted(effect, size.planted_runs)
        bound, holds = bounds[effect]
        measured = f"{figures['slower']:.0%} slower, {figures['faster']:.0%} faster"
        what = f"{effect:.0%} more work, {size.planted_runs} runs"
        yield Row(
            "C4", what, bound, measured, holds(figures), f"measured {figures['measured']:.2%}"
        )


def rank_agreement(size: Size) -> Iterator[Row]:
    from acceptance import cpu_timed as timed

    figures = timed.repeated(size.selections, size.passes)
    what = f"{timed.VARIANTS} blocked products, two runs of {size.passes} passes"
    note = f"slowest {figures['spread']:.1f} times the best"
    yield Row("C5", what, "tau >= 0.9", f"{figures['tau']:.3f}", figures["tau"] >= 0.9, note)
    within = figures["within_5_percent"]
    what = f"chosen by screening and race, {size.selections} times"
    measured = f"{within:.0%}, worst {figures['worst']:.1%} slower"
    yield Row("C5", what, ">= 90 % within 5 %", measured, within >= 0.9)


def interval_coverage(size: Size) -> Iterator[Row]:
    from acceptance import cpu_noise as noise

    off: dict[str, list[tuple[float, str]]] = {name: [] for name in noise.NOISES}
    for what, nominal, share in noise.coverages(size.coverage_trials):
        off[what.split(",")[0]].append((share - nominal, f"{what} at {nominal:.0%}: {share:.1%}"))
    worst = max(off["normal"], key=lambda pair: abs(pair[0]))
    what = "coverage of paired intervals, normal noise"
    yield Row("C6", what, "+- 1.5 pp", f"worst: {worst[1]}", abs(worst[0]) <= 0.015, "simulated")
    low, high = min(off["outliers"]), max(off["outliers"])
    note = f"wider than needed at few pairs: {high[1]}" if high[0] > 0.015 else ""
    what = "coverage of paired intervals, outliers"
    yield Row("C6", what, ">= -1.5 pp", f"least: {low[1]}", low[0] >= -0.015, note)
    ranks = list(noise.medians_covered(size.coverage_trials))
    worst_rank = max(ranks, key=lambda share: abs(share[2] - share[1]))
    count, promised, covered = worst_rank
    measured = f"worst: {count} samples, {covered:.1%} of {promised:.1%}"
    what = "coverage of the report's order-statistic intervals"
    yield Row("C6", what, "exact +- 1.5 pp", measured, abs(covered - promised) <= 0.015)
    differences = noise.against_scipy(300)
    measured = ", ".join(f"{name} {value:.0e}" for name, value in differences.items())
    good = max(differences.values()) < 1e-9
    yield Row("C6", "trimmed mean and Yuen's error against scipy", "< 1e-9", measured, bool(good))
    coarse = noise.coarse_clock(500)
    measured = f"mean {coarse['trimmed_mean']:.2%}, median {coarse['median']:.2%} off"
    good = coarse["trimmed_mean"] < coarse["median"] and coarse["covered"] >= 0.935
    note = f"interval covers {coarse['covered']:.1%}"
    yield Row("C6", "a clock of 20 % ticks", "trimmed mean beats median", measured, good, note)
    note = "the farm does not use them"
    yield Row("C6", "Hodges-Lehmann, bootstrap", "-", "-", None, note)


def killed_drivers(size: Size) -> Iterator[Row]:
    from acceptance import cpu_farm as farm

    with tempfile.TemporaryDirectory(prefix="tuner-killed-") as folder:
        figures = farm.killed_at_any_point(Path(folder), size.points)
    same, trials, lost = figures["same_winner"], figures["same_trials"], figures["lost"]
    yield Row(
        "C7",
        f"kill -9 of the driver at {size.points} points, resumed",
        "same winner, same trials, none lost",
        f"{same} and {trials} of {size.points}, {lost} lost",
        (same, trials, lost) == (size.points, size.points, 0),
        f"worst winner {figures['winner_regret_max']:.2%} slower than the best",
    )


def engine_overhead(size: Size) -> Iterator[Row]:
    from acceptance import tuner_overhead

    for strategy in ("exhaustive", "random"):
        figures = tuner_overhead.overhead(size.trials, strategy)
        for where, bound in tuner_overhead.BOUNDS.items():
            yield Row(
                "C8",
                f"{size.trials} trials of zero duration, {strategy}, {where}",
                f"<= {bound:g} ms",
                f"{figures[where]:.3f} ms",
                figures[where] <= bound,
            )


CHECKS: dict[str, Callable[[Size], Iterator[Row]]] = {
    "C1": noise_scenarios,
    "C2": identical_under_drift,
    "C3": identical_products,
    "C4": planted_slowdowns,
    "C5": rank_agreement,
    "C6": interval_coverage,
    "C7": killed_drivers,
    "C8": engine_overhead,
}
#: What each check tests, by id.
TITLES = {
    "C1": "noise-scenarios",
    "C2": "identical-under-drift",
    "C3": "identical-products",
    "C4": "planted-slowdowns",
    "C5": "rank-agreement",
    "C6": "interval-coverage",
    "C7": "killed-drivers",
    "C8": "engine-overhead",
}
_SAID = {True: "pass", False: "FAIL", None: "-"}


def table(rows: list[Row]) -> str:
    lines = [("check", "what", "bound", "measured", "", "note")]
    lines += [
        (f"{r.id} {TITLES[r.id]}", r.what, r.bound, r.measured, _SAID[r.passed], r.note)
        for r in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def machine() -> dict[str, object]:
    from workers.host import cpu_device

    packages = ("numpy", "scipy", "torch", "sqlalchemy", "optuna")
    return {
        "processor": cpu_device().name,
        "processors": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "toolchain": {"python": platform.python_version(), **{p: version(p) for p in packages}},
    }


def write(document: dict[str, object], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "acceptance_cpu.json"
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--only", nargs="+", choices=[*CHECKS, *TITLES.values()], default=list(CHECKS)
    )
    parser.add_argument("--seeds", type=int, default=20, help="seeds of C1")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test: fewer runs of everything"
    )
    args = parser.parse_args()
    ids = {title: name for name, title in TITLES.items()}
    args.only = [ids.get(name, name) for name in args.only]
    size = Size(args.seeds, args.processes)
    size = quick(size) if args.quick else size
    document: dict[str, object] = {
        "script": "benchmarks/acceptance/cpu.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "quick": args.quick,
        "order": args.only,
        **machine(),
    }
    rows: list[Row] = []
    seconds = {}
    for name in args.only:
        began = time.monotonic()
        try:
            rows += CHECKS[name](size)
        except Exception as problem:
            traceback.print_exc()
            rows.append(Row(name, "the check itself", "completes", "failed", False, f"{problem}"))
        seconds[name] = round(time.monotonic() - began, 1)
        print(f"{name}: {seconds[name]} s", file=sys.stderr, flush=True)
        rows.sort(key=lambda row: row.id)
        if args.out:
            document |= {"seconds": seconds, "rows": [asdict(row) for row in rows]}
            write(document, args.out)
    print(table(rows))
    return int(any(row.passed is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
