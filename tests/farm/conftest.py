"""Whole farms in separate processes. The helpers for processes are those of `pools`."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "pools"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The outcomes of a strategy's run without disturbance."""
    from farms import TRIALS, Farm, assert_announced, assert_sound, outcomes

    @cache
    def result(strategy: str, trials: int = TRIALS):
        farm = Farm(tmp_path_factory.mktemp("undisturbed") / strategy, strategy, trials=trials)
        assert_announced(farm, farm.finish())
        assert_sound(farm)
        farm.assert_gone()
        return outcomes(farm.records())

    return result
