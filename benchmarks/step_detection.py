#!/usr/bin/env python3
"""A simulation of step detection: false alarms without a change, and planted steps that are found.

    benchmarks/step_detection.py --nights 40000 --steps 2000 --out FILE.json

A series is one task, run every night. Its log times have the usual noise between runs of that kind
of device (`results_db.step_detection.between_runs`) times a factor, and that of a confirmation
(its 95 % interval is +-0.4 %). With outliers, every twentieth night is four times as far off.
Prints, per scenario, the false alarms in 500 task-nights, the share of equal runs with a step when
eight recorded ones are resampled to six, and the share of steps that are found at the first or
second run with a new level, by the size of the step. No device takes part.
"""

from __future__ import annotations

import argparse
import json
import platform
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from results_db.step_detection import Point, between_runs, detect_steps

KIND = "cuda"
ERROR = 0.002
NIGHTS = 40
SIZES = (0.02, 0.03, 0.05, 0.1)
SCENARIOS = [(tails, factor) for tails in ("normal", "outliers") for factor in (0.5, 1.0, 2.0, 3.0)]


def simulate(
    generator: np.random.Generator, nights: int, tails: str, factor: float
) -> NDArray[np.float64]:
    """Log times of equal runs."""
    values = generator.normal(0, np.hypot(factor * between_runs(KIND), ERROR), nights)
    outliers = generator.random(nights) < 0.05 if tails == "outliers" else np.zeros(nights, bool)
    return np.where(outliers, 4 * values, values)


def count_steps(values: NDArray[np.float64], since: int = 0) -> int:
    """The steps that are found at that night or later."""
    points = [Point(float(value), ERROR) for value in values]
    return sum(step.found_at >= since for step in detect_steps(points, between_runs(KIND)))


def count_alarms(generator: np.random.Generator, nights: int, tails: str, factor: float) -> int:
    """The steps in that many task-nights without one, in series of 40 nights."""
    series = (simulate(generator, NIGHTS, tails, factor) for _ in range(nights // NIGHTS))
    return sum(map(count_steps, series))


def count_resampled(generator: np.random.Generator, times: int, tails: str, factor: float) -> int:
    """How often six nights, drawn from eight equal ones with replacement, have a step."""
    recorded = simulate(generator, 8, tails, factor)
    return sum(count_steps(generator.choice(recorded, 6)) > 0 for _ in range(times))


def count_found(
    generator: np.random.Generator, times: int, tails: str, factor: float, size: float
) -> int:
    """How many steps of a size are found at the first or second of the nights behind them."""
    found = 0
    for _ in range(times):
        at = int(generator.integers(4, 25))
        values = simulate(generator, at + 2, tails, factor)
        values[at:] += size * generator.choice([-1, 1])
        found += count_steps(values, at) > 0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nights", type=int, default=40_000)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for tails, factor in SCENARIOS:
        generator = np.random.default_rng(given.seed)
        alarms = count_alarms(generator, given.nights, tails, factor)
        resampled = count_resampled(generator, 1000, tails, factor)
        found = {
            f"{size:.0%}": count_found(generator, given.steps, tails, factor, size) / given.steps
            for size in SIZES
        }
        rows.append(
            {
                "tails": tails,
                "noise_between_runs": factor * between_runs(KIND),
                "false_alarms_in_500_task_nights": round(alarms / given.nights * 500, 3),
                "steps_in_1000_resampled": resampled,
                "found_within_two_runs": found,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    facts = {
        "what": "a simulation of results_db.step_detection; no device took part",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "nights": given.nights,
        "steps": given.steps,
        "seed": given.seed,
    }
    if given.out is not None:
        given.out.write_text(json.dumps({**facts, "scenarios": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
