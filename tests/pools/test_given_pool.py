"""A campaign on a pool that its caller has made."""

from __future__ import annotations

from search_spaces.recorded.recorded_kernel import synthesize
from tuner.campaign import RunOptions, pool_spec_of, run_campaign
from tuner.settings import validate
from workers.job_records import MeasureJob
from workers.pools.virtual import VirtualPool


class CountingPool(VirtualPool):
    """A pool in virtual time that counts what the campaign asks of it."""

    started = closed = measured = 0

    def start(self) -> None:
        self.started += 1
        super().start()

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        self.measured += 1
        super().submit_measure(worker_id, job)

    def close(self, *, kill: bool = False) -> None:
        self.closed += 1
        super().close(kill=kill)


def test_a_campaign_runs_on_the_pool_that_it_is_given(tmp_path):
    synthesize(40, seed=5).save(tmp_path / "space.json")
    settings = validate(
        {
            "version": 1,
            "database": {"url": f"sqlite:///{tmp_path}/tuner.db"},
            # A pool of this kind would fail: the given one replaces it.
            "pool": {
                "kind": "ray",
                "address": "127.0.0.1:1",
                "devices": {"simulated": {"runners": 2}},
            },
            "measure": {"baselines": []},
            "campaigns": {
                "c": {
                    "targets": ["simulated"],
                    "tasks": [{"kernel": "recorded:space.json"}],
                    "budget": {"trials": 20},
                }
            },
        },
        str,
    )
    options = RunOptions(report=False, export=False, base=tmp_path)
    spec = pool_spec_of(settings, "c", options=options)
    assert (spec.kind, spec.runners, spec.paths) == ("ray", {"simulated": 2}, (f"{tmp_path}",))
    pool = CountingPool(spec)
    outcome = run_campaign(settings, "c", options=options, pool=pool)
    assert (outcome.status, outcome.trials) == ("finished", 20)
    assert (pool.started, pool.closed) == (1, 1)
    assert pool.measured > 0
