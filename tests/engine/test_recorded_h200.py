"""Searches of spaces as an H200 answered them, through the real engine, pool and store."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuner
from search_spaces.recorded import RecordedSpace

SPACES = sorted((Path(__file__).parents[2] / "benchmarks/spaces/h200").glob("*.space.json"))


def test_spaces_are_recorded():
    assert len(SPACES) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_a_budget_of_120_finds_one_of_the_best(path):
    space = RecordedSpace.load(path)
    found = tuner.tune(f"recorded:{path}", space.workload, budget=120, seed=3)
    assert found.winner is not None
    assert found.device == space.device.name
    assert space[found.winner].median_us <= 1.02 * space.best.median_us
    assert set(found.baselines) == set(space.baselines)
    assert len(found.trials) == 120
