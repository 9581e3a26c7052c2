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
def test_the_best_of_what_was_tried_is_chosen(path):
    space = RecordedSpace.load(path)
    found = tuner.tune(f"recorded:{path}", space.workload, budget=120, seed=3)
    assert found.device == space.device.name
    assert set(found.baselines) == set(space.baselines)
    tried = found.trials
    assert len(tried) == min(120, len(space.configs))
    fastest_us = tried.loc[tried["status"] == "correct", "median_us"].min()
    assert found.winner is not None
    chosen = space[found.winner].median_us
    # The trials' own times carry the recorded noise, of some percent; the choice is told from them.
    assert chosen <= 1.05 * fastest_us
    assert chosen <= 1.03 * space.best.median_us
