"""Runs on pools that their caller has made.

On a pool that describes its runners, builds start before a runner has opened its device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from recorded_campaigns import CountingPool, campaign_settings

from search_spaces.errors import TunerError
from tuner.campaign import Control, RunOptions, pool_spec_of, run_campaign
from workers.backends.simulated.backend import SimulatedBackend
from workers.job_records import BuildJob, PoolEvent, PoolSpec, WorkerInfo, WorkerReady
from workers.pools.local import LocalPool

FOUND, TOOLS = SimulatedBackend(index=0).info()
DESCRIBED = WorkerInfo("simulated-0", FOUND, TOOLS)


class DescribedPool(LocalPool):
    """A local pool that says what its runners will be, and notes the order of events."""

    def __init__(self, described: WorkerInfo = DESCRIBED, **options: str) -> None:
        given = {"simulated": options} if options else {}
        super().__init__(PoolSpec("local", {"simulated": 1}, builders=1, options=given))
        self._description = [described]
        self.order: list[str] = []

    def describe_workers(self) -> Sequence[WorkerInfo]:
        return self._description

    def submit_build(self, job: BuildJob) -> None:
        self.order.append("build")
        super().submit_build(job)

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        events = super().poll(timeout_s)
        self.order += [type(event).__name__ for event in events]
        return events


class StuckPool(DescribedPool):
    """Its runner never starts, and the run is drained meanwhile."""

    def __init__(self, control: Control) -> None:
        super().__init__()
        self._control = control

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        self._control.drain()
        return [e for e in super().poll(timeout_s) if not isinstance(e, WorkerReady)]


def run(folder, pool, control=None, *, report=False):
    settings = campaign_settings(folder, configs=40)
    options = RunOptions(report=report, export=report, base=folder)
    return run_campaign(settings, "c", options=options, pool=pool, control=control)


def test_a_campaign_runs_on_the_pool_that_it_is_given(tmp_path):
    # A pool of this kind would fail: the given one replaces it.
    ray = {"kind": "ray", "address": "127.0.0.1:1", "devices": {"simulated": {"runners": 2}}}
    settings = campaign_settings(tmp_path, pool=ray)
    options = RunOptions(report=False, export=False, base=tmp_path)
    spec = pool_spec_of(settings, "c", options=options)
    assert (spec.kind, spec.runners, spec.paths) == ("ray", {"simulated": 2}, (f"{tmp_path}",))
    pool = CountingPool(spec)
    outcome = run_campaign(settings, "c", options=options, pool=pool)
    assert (outcome.status, outcome.trials) == ("finished", 12)
    assert (pool.started, pool.closed) == (1, 1)


def test_builds_are_ordered_before_a_runner_is_ready(tmp_path):
    pool = DescribedPool()
    outcome = run(tmp_path, pool)
    assert (outcome.status, outcome.trials) == ("finished", 12)
    assert pool.order.index("build") < pool.order.index("WorkerReady")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            replace(DESCRIBED, device=replace(FOUND, name="Another")),
            f"it opened {FOUND.name} \\({FOUND.target}\\), which differs from the Another",
        ),
        (
            replace(DESCRIBED, toolchain=replace(TOOLS, driver="1.2.3")),
            "its toolchain differs from the one that was found before: driver 1.2.3 -> ",
        ),
    ],
)
def test_a_runner_that_opens_another_device_is_not_used(tmp_path, changed, message):
    with pytest.raises(TunerError, match=rf"^no worker came up: simulated-0: {message}") as caught:
        run(tmp_path, DescribedPool(changed))
    assert "tuner doctor" in caught.value.hint
    assert caught.value.exit_code == 2


def test_a_runner_that_does_not_start_is_an_error(tmp_path):
    with pytest.raises(TunerError, match=r"^no worker came up: simulated-0: .*unknown_option"):
        run(tmp_path, DescribedPool(unknown_option="1"))


def test_a_run_is_stopped_while_its_runner_starts(tmp_path):
    control = Control()
    outcome = run(tmp_path, StuckPool(control), control, report=True)
    assert (outcome.status, outcome.trials) == ("interrupted", 0)
    assert (outcome.report, outcome.tables) == (None, ())
    # The same command resumes it.
    outcome = run(tmp_path, DescribedPool())
    assert (outcome.run_id, outcome.status, outcome.trials) == (1, "finished", 12)
