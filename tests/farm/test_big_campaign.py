"""Eight hundred trials on sixteen devices of a Ray cluster, with all kinds of faults."""

from __future__ import annotations

from collections import Counter

import pytest
from farms import Farm, assert_sound, expected
from made_up_spaces import synthesize

from search_spaces.records import Status

FAULTS = {"crash": 0.008, "hang": 0.004, "wrong": 0.02, "lost": 0.008}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.ray
def test_a_campaign_of_800_trials_on_16_devices_finishes(tmp_path):
    space = synthesize(800, seed=9, failures=0.08, twins=0.05, build_s=0.01)
    farm = Farm(
        tmp_path / "farm",
        "exhaustive",
        pool="ray",
        trials=800,
        runners=16,
        time_scale=1.0,
        measure_timeout=15.0,
        faults=FAULTS,
        space=space,
    )
    print(farm.finish())
    assert_sound(farm)
    farm.assert_gone()
    records = farm.records()
    assert {record.status for record in records} == set(Status)
    lost = [r for r in records if not r.attempt_id.endswith(":0")]
    assert lost, Counter(r.attempt_id[-1] for r in records)
    assert len({r.worker for r in records} - {""}) == 16
    correct = [e for e in space.configs if expected(farm, e.config) is Status.CORRECT]
    winner = space[farm.task().selection.winner]
    assert winner.median_us <= 1.01 * min(entry.median_us for entry in correct)
