"""Campaigns that say how often their kernels are called, and when their runs are to be over."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from made_up_spaces import synthesize

from results_db import Store
from search_spaces.records import Workload
from tuner.settings.sections import CampaignConfig

CONFIG = """version: 1
pool: {kind: virtual}
measure: {final_pairs: 8, warm_ms: 1}
campaigns:
  c:
    targets: [simulated]
    strategy: exhaustive
    tasks:
      - {kernel: "recorded:rare.json.gz", weight: 10}
      - {kernel: "recorded:unknown.json.gz"}
      - {kernel: "recorded:often.json.gz", weight: 3000}
"""
URL = "sqlite:///results/tuner.db"
SIZES = {"rare": 4096, "unknown": 8192, "often": 2048}


@pytest.fixture
def campaign(folder):
    for seed, (name, size) in enumerate(SIZES.items(), 1):
        workload = Workload.of(N=size, dtype="bfloat16")
        made = replace(synthesize(20, seed=seed), workload=workload)
        made.save(folder / f"{name}.json.gz", columns=True)
    (folder / "config.yaml").write_text(CONFIG)
    return folder / "config.yaml"


def plan(tuner, *options: str) -> list[dict]:
    result = tuner("run", "c", "--dry-run", "--format", "json", *options)
    assert result.code == 0, result.err
    return json.loads(result.out)


def sizes_of(tasks) -> list[int]:
    return [int(each["workload"].split()[0].removeprefix("N=")) for each in tasks]


def test_what_saves_most_is_planned_and_tuned_first(tuner, campaign):
    planned = plan(tuner)
    assert sizes_of(planned) == [2048, 4096, 8192]
    often, rare, unknown = (each["gain_s"] for each in planned)
    assert often > rare > unknown == 0
    assert planned[0]["note"].endswith("% of what is expected to be saved")
    campaign.write_text(CONFIG.replace("    tasks:", "    in_flight: 1\n    tasks:"))
    assert tuner("run", "c", "--quiet", "--no-report").code == 0
    with Store.open(URL) as store:
        began = {
            task.key.workload["N"]: min(each.finished_at for each in store.trials(task.task_id))
            for task in store.tasks(1)
        }
    assert sorted(began, key=began.get) == [2048, 4096, 8192]


def test_history_tells_what_a_task_will_save(tuner, campaign):
    before = {each["workload"]: each["gain_s"] for each in plan(tuner)}
    assert tuner("run", "c", "--quiet", "--no-report", "--workload", "N=2048").code == 0
    after = {each["workload"]: each["gain_s"] for each in plan(tuner)}
    with Store.open(URL) as store:
        (tuned,) = store.list_confirmed()
    assert before[tuned.workload] > after[tuned.workload] == 0
    saved = 1 - tuned.median_us / tuned.default_us
    rare = next(name for name in before if "N=4096" in name)
    # Without a history, a tenth.
    assert after[rare] == pytest.approx(before[rare] * saved / 0.1)


def test_the_plan_says_what_a_limited_run_leaves_out(tuner, campaign):
    first, *others = plan(tuner, "--wall", "0.1s")
    assert first["mode"] == "measure"
    assert [each["mode"] for each in others] == ["skip", "skip"]
    assert others[0]["note"].startswith("left out by the end of the run; ")
    assert {each["mode"] for each in plan(tuner, "--wall", "1h")} == {"measure"}


@pytest.mark.parametrize(("deadline", "ended"), [("2026-01-01 06:00", 3), ("2999-12-24", 0)])
def test_a_deadline_ends_a_run_as_its_limit_does(tuner, campaign, deadline, ended):
    text = CONFIG.replace("    tasks:", f"    deadline: {deadline}\n    tasks:")
    campaign.write_text(text)
    result = tuner("run", "c", "--quiet", "--no-report")
    assert result.code == 0, result.err
    said = f"the deadline {deadline} ended {ended} of 3 searches"
    assert (said in result.out) == bool(ended)
    assert f"{3 - ended} with a winner" in result.out


BEGAN = datetime(2026, 3, 28, 21, tzinfo=UTC)  # a Saturday; the night in which summer time begins


@pytest.mark.parametrize(
    ("deadline", "zone", "hours"),
    [
        ("07:00", "UTC", 10),
        ("22:00", "UTC", 1),
        ("21:00", "UTC", 24),
        ("07:00", "Europe/Berlin", 8),
        ("Mon 06:00", "Europe/Berlin", 31),
        ("Sun", "UTC", 27),
        ("2026-03-28 20:00", "UTC", 0),
        ("2026-03-29", "UTC", 27),
    ],
)
def test_a_deadline_is_the_next_such_time(deadline, zone, hours):
    schedule = {"cron": "0 2 * * *", "timezone": zone}
    made = {"tasks": [{"kernel": "softmax"}], "deadline": deadline, "schedule": schedule}
    config = CampaignConfig(**made)
    assert config.limit_s(BEGAN, BEGAN) == hours * 3600
    # A run that is resumed later has the same deadline.
    later = BEGAN + timedelta(hours=2)
    assert config.limit_s(BEGAN, later) == max(0, hours - 2) * 3600
    assert CampaignConfig(**made, wall=1800).limit_s(BEGAN, BEGAN) == min(1800, hours * 3600)


def test_without_a_schedule_a_deadline_is_in_the_time_of_the_machine():
    local = datetime.now().astimezone()
    config = CampaignConfig(tasks=[{"kernel": "softmax"}], deadline="07:00")
    left = timedelta(seconds=config.limit_s(local, local))
    ends = (local + left).astimezone()
    assert (ends.hour, ends.minute) == (7, 0)
    assert timedelta(0) < left <= timedelta(hours=25)
