"""A small fortnight through the whole farm, in virtual time: what was planted is named."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import fortnight


def test_what_is_planted_is_found_and_no_trial_is_lost(forgotten_modules):
    sizes = fortnight.Sizes(8, 20, 4, 10, bad=("errors",), slower=(0.1, 0.1, 0.1))
    found = fortnight.follow(1, sizes, {"all": [0.0], "own": [-0.001, 0.001]})
    assert found["wrong"] == []
    assert found["mornings_right"] == 8
    assert found["mornings_until_found"] == {"10%": 2}
    assert found["false_alarms"] == found["healthy_in_quarantine"] == 0
    assert found["quarantined_by_night"] == {"errors": 1}
    assert found["faults"] == dict.fromkeys(fortnight.FAULTS, 2)
    assert found["trials_lost"] == found["trials_doubled"] == 0
