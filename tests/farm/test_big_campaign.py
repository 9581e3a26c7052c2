"""Eight hundred trials on sixteen devices of a Ray cluster, with all kinds of faults."""

from __future__ import annotations

from collections import Counter

import pytest
from farms import Farm, assert_sound

from search_spaces.recorded.recorded_kernel import RecordedSpace, synthesize
from search_spaces.records import Config, Status, config_key
from workers.backends.simulated.backend import SimulatedBackend

FAULTS = {"crash": 0.008, "hang": 0.004, "wrong": 0.02, "lost": 0.008}
_STATUSES = {
    "crash": Status.RUNTIME,
    "hang": Status.TIMEOUT,
    "wrong": Status.CORRECTNESS,
    "lost": None,
    "": None,
}


def expected(space: RecordedSpace, config: Config) -> Status:
    """The status of a config by the recording and the injected faults."""
    recorded = space[config].status
    if recorded in (Status.CONSTRAINTS, Status.COMPILE):
        return recorded
    fault = SimulatedBackend(**FAULTS, seed=3).fault(space.original(config))
    return _STATUSES[fault] or recorded


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
    statuses = {config_key(r.config): r.status for r in records}
    assert statuses == {
        config_key(entry.config): expected(space, entry.config) for entry in space.configs
    }
    assert set(statuses.values()) == set(Status)
    lost = [r for r in records if not r.attempt_id.endswith(":0")]
    assert lost, Counter(r.attempt_id[-1] for r in records)
    assert len({r.worker for r in records} - {""}) == 16
    best = min(e.median_us for e in space.configs if expected(space, e.config) is Status.CORRECT)
    selection = farm.task().selection
    assert space[selection.winner].median_us <= 1.01 * best
