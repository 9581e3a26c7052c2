"""Whole farms in processes of their own; finding and killing processes is what `pools` does too."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "pools"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What a run of a strategy comes to when nobody disturbs it."""
    from farms import Farm, assert_sound, outcomes

    @cache
    def result(strategy: str):
        farm = Farm(tmp_path_factory.mktemp("undisturbed") / strategy, strategy)
        farm.finish()
        assert_sound(farm)
        farm.assert_gone()
        return outcomes(farm.records())

    return result
