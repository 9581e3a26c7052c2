"""Tables and report are prepared while a run goes on, and hold what its end has stored."""

from __future__ import annotations

from made_up_spaces import synthesize
from recorded_campaigns import CountingPool, campaign_settings

import reports
from results_db import Store
from tuner import tables
from tuner.campaign import Control, RunOptions, pool_spec_of, run_campaign
from tuner.progress import Progress


def test_files_of_a_resumed_run_hold_what_is_stored(tmp_path):
    names = [f"space{index}.json" for index in range(4)]
    for seed, name in enumerate(names):
        synthesize(60, seed=seed, kernel=f"made_up_{seed}").save(tmp_path / name)
    campaign = {
        "targets": ["simulated"],
        "tasks": [{"kernel": f"recorded:{name}"} for name in names],
        "budget": {"trials": 10},
        "in_flight": 1,
    }
    settings = campaign_settings(tmp_path, campaigns={"c": campaign})
    options, control = RunOptions(base=tmp_path), Control()

    def stop(progress: Progress) -> None:
        if progress.tasks_done == 2:
            control.drain()

    def run(control: Control, on_progress=None):
        pool = CountingPool(pool_spec_of(settings, "c", options=options))
        return run_campaign(
            settings, "c", options=options, control=control, on_progress=on_progress, pool=pool
        )

    outcomes = [run(control, stop), run(Control())]
    assert [outcome.status for outcome in outcomes] == ["interrupted", "finished"]
    assert len(outcomes[1].tables) == len(names)
    with Store.open(settings.database.url) as store:
        written = outcomes[1].report.read_text(encoding="utf-8")
        assert written == reports.render(store, outcomes[1].run_id)
        again = tables.export(store, outcomes[1].run_id, tmp_path / "again")
    assert {path.name: path.read_bytes() for path in outcomes[1].tables} == {
        path.name: path.read_bytes() for path in again
    }
