"""The real engine searches spaces recorded on an H200, in virtual time.

Its choices and its device time agree with benchmarks/results/h200/selection_regret.json.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import tuner
from search_spaces.recorded.recorded_kernel import RecordedSpace

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPACES = sorted((BENCHMARKS / "spaces/h200").glob("*.space.json"))
RESULT = BENCHMARKS / "results/h200/selection_regret.json"
SEEDS = (1, 2, 3)
EACH_SEED = [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.full) for seed in SEEDS[1:])]
#: Regret that nearly all searches are below; regret that none may have.
CLOSE, NEVER = 0.02, 0.10
#: The simulated time per config may be this many times the device's.
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
    """The figures measured on the H200, by space."""
    spaces = json.loads(RESULT.read_text())["spaces"] if RESULT.exists() else {}
    return {name: entry["figures"] for name, entry in spaces.items() if "figures" in entry}


def name_of(path: Path) -> str:
    return path.name.partition(".")[0]


@pytest.mark.parametrize("seed", EACH_SEED)
@pytest.mark.parametrize("path", SPACES, ids=name_of)
def test_the_choice_is_close_to_the_best_and_cheap(path, seed):
    found = search(path, seed)
    assert found.regret <= NEVER
    assert found.selection <= CLOSE
    assert 0 < found.ms_per_config <= MOST_MS


@pytest.mark.parametrize("seed", EACH_SEED)
def test_nearly_all_choices_are_close(seed):
    regrets = [search(path, seed).regret for path in SPACES]
    assert sum(regret <= CLOSE for regret in regrets) >= len(regrets) - 1
    assert statistics.fmean(regrets) <= CLOSE / 2


@pytest.mark.parametrize(
    ("seeds", "more"),
    [(SEEDS[:1], 1.2 * MORE), pytest.param(SEEDS, MORE, marks=pytest.mark.full)],
    ids=["one search", "median"],
)
@pytest.mark.parametrize("name", sorted(on_the_device()))
def test_the_device_time_is_what_the_device_took(name, seeds, more):
    path = BENCHMARKS / "spaces/h200" / f"{name}.space.json"
    if not path.exists():
        pytest.skip("not recorded in this repository")
    real = on_the_device()[name]["screening_ms_per_config"]
    # On the device builds were replayed in 0.15 of their time, so its screenings had more
    # candidates. A screening of one candidate times the incumbent as often as the candidate.
    simulated = statistics.median(search(path, seed).ms_per_config for seed in seeds)
    assert real / 2 <= simulated <= more * real


def test_a_search_is_deterministic_in_choice_and_device_time():
    path = min(SPACES, key=lambda path: path.stat().st_size)
    again = search.__wrapped__(path, SEEDS[0])
    assert again == search(path, SEEDS[0]) != search(path, SEEDS[1])
