"""Searches of the spaces an H200 recorded, by the real engine in virtual time: what they choose and
what device time they take is what the H200 itself showed (benchmarks/selection_regret.py)."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import tuner
from search_spaces.recorded.kernel import RecordedSpace

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPACES = sorted((BENCHMARKS / "spaces/h200").glob("*.space.json"))
RESULT = BENCHMARKS / "results/h200/selection_regret.json"
SEEDS = (1, 2, 3)
#: A search may be this far from the best of the space, and nearly all are.
CLOSE, NEARLY_ALL, NEVER = 0.02, 0.95, 0.10
#: How many times the device's own time per config the simulated one may be.
MORE = 2.5
#: Device milliseconds of screening per config, for anything up to a millisecond.
MOST_MS = 25.0


@dataclass(frozen=True)
class Search:
    """Shares of the best time lost, configs timed, and simulated milliseconds timing each."""

    regret: float
    selection: float
    timed: int
    ms_per_config: float


@cache
def search(path: Path, seed: int) -> Search:
    space = RecordedSpace.load(path)
    found = tuner.tune(
        f"recorded:{path}",
        space.workload,
        budget="auto",
        strategy="bayes",
        seed=seed,
        pool="virtual",
        # On the H200 the gate has warmed the device before it times.
        settings={"measure": {"warm_ms": 0}},
    )
    assert found.winner is not None
    timed = found.trials[found.trials["status"] == "correct"]
    tried = min(space[json.loads(text)].median_us for text in timed["config"])
    chosen = space[found.winner].median_us
    return Search(
        regret=chosen / space.best.median_us - 1,
        selection=chosen / tried - 1,
        timed=len(timed),
        ms_per_config=1e3 * float(found.trials["timing_s"].sum()) / len(timed),
    )


@cache
def on_the_device() -> dict:
    """By space, the figures that the H200 printed."""
    spaces = json.loads(RESULT.read_text())["spaces"] if RESULT.exists() else {}
    return {name: entry["figures"] for name, entry in spaces.items() if "figures" in entry}


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.name.partition(".")[0])
def test_the_choice_is_close_to_the_best_and_cheap(path):
    found = [search(path, seed) for seed in SEEDS]
    assert sum(one.regret <= CLOSE for one in found) >= len(SEEDS) - 1
    for one in found:
        assert one.regret <= NEVER
        assert one.selection <= CLOSE
        assert 0 < one.ms_per_config <= MOST_MS


def test_nearly_all_choices_are_close():
    regrets = [search(path, seed).regret for path in SPACES for seed in SEEDS]
    assert sum(regret <= CLOSE for regret in regrets) >= NEARLY_ALL * len(regrets)
    assert statistics.fmean(regrets) <= CLOSE / 2


@pytest.mark.parametrize("name", sorted(on_the_device()))
def test_the_device_time_is_what_the_device_took(name):
    path = BENCHMARKS / "spaces/h200" / f"{name}.space.json"
    if not path.exists():
        pytest.skip("not recorded in this repository")
    real = on_the_device()[name]["screening_ms_per_config"]
    simulated = statistics.median(search(path, seed).ms_per_config for seed in SEEDS)
    # The device was given builds replayed in 0.15 of their time, so its screenings were larger;
    # one of a single candidate times the incumbent as often again.
    assert real / 2 <= simulated <= MORE * real


def test_a_search_comes_to_the_same_end_in_the_same_device_time():
    path = min(SPACES, key=lambda path: path.stat().st_size)
    again = search.__wrapped__(path, SEEDS[0])
    assert again == search(path, SEEDS[0])
    assert len({search(path, seed).ms_per_config for seed in SEEDS}) > 1
