"""Figures for Prometheus: what they say, what hostile names do, and the dashboard over them."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from serving_samples import HOSTILE, fill
from test_serve import fetch, serving

from results_db import Store, TrialRecord
from search_spaces.records import Status
from tuner.base.log_ratio import LogRatio
from tuner.schedule.ticker import list_lags, tick
from tuner.serving.metrics import FarmFigures
from tuner.settings.sections import Settings

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "monitoring"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def parse(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of each family by the values of its labels."""
    return {
        family.name: {tuple(each.labels.values()): each.value for each in family.samples}
        for family in text_string_to_metric_families(text)
    }


def read(store, lags=lambda now: {}) -> dict[str, dict[tuple[str, ...], float]]:
    return parse(generate_latest(FarmFigures(store, lags)).decode())


@pytest.fixture
def store(tmp_path):
    fill(tmp_path)
    with Store.open(f"sqlite:///{tmp_path / 'results' / 'tuner.db'}") as opened:
        yield opened


def fill_all(store) -> None:
    """Something of every figure: a run that has ended, one that has not, a regression, cards."""
    store.raise_regression(2, 1, 2, LogRatio(0.03, 0.02, 0.04))
    store.decide_regression(1, "confirmed", "", LogRatio(0.03, 0.02, 0.04))
    for card in ("GPU-1", "GPU-2"):
        store.quarantine(card, "NVIDIA H200", "drifts", NOON)
    store.admit_card("GPU-2")
    run = store.begin_run("nightly", "spec", 7, {}, {}).run_id
    usage = {"device_busy_share": 0.9, "busy_share_while_ready": 0.95, "device_s": 60.0}
    store.finish_run(run, "finished", {"elapsed_s": 70.5, **usage})
    run = store.begin_run("nightly", "spec", 7, {}, {}).run_id
    task = store.ensure_task(run, store.task(1).key, flops=0.0, bytes=0.0, tolerance=None).task_id
    store.record_trial(task, TrialRecord("x", 0, {"BLOCK": 1}, Status.COMPILE))


def test_figures_are_those_of_the_database(store):
    before = read(store)
    assert before["tuner_runs"] == {("finished",): 2}
    assert before["tuner_trials"] == {("correct",): 4}
    assert before["tuner_regressions"] == {("candidate",): 0, ("open",): 0}
    assert before["tuner_tasks"] == before["tuner_quarantined_cards"] == {}
    fill_all(store)
    assert read(store, lambda now: {"nightly": 60.0}) == {
        "tuner_database_up": {(): 1},
        "tuner_runs": {("finished",): 3, ("running",): 1},
        "tuner_tasks": {("search",): 1},
        "tuner_trials": {("correct",): 4, ("compile",): 1},
        "tuner_run_device_busy_ratio": {("nightly",): 0.9},
        "tuner_run_ready_busy_ratio": {("nightly",): 0.95},
        "tuner_run_device_seconds": {("nightly",): 60},
        "tuner_run_wall_seconds": {("nightly",): 70.5},
        "tuner_quarantined_cards": {("NVIDIA H200",): 1},
        "tuner_regressions": {("candidate",): 0, ("open",): 1},
        "tuner_schedule_lag_seconds": {("nightly",): 60},
    }
    store.acknowledge_regression(1)
    assert read(store)["tuner_regressions"] == {("candidate",): 0, ("open",): 0}


def test_names_are_inert_short_and_few(store):
    names = [HOSTILE, '"} 1\ntuner_runs{status="', "\udcff", "n" * 1000, *map(str, range(100))]
    seen = read(store, lambda now: dict.fromkeys(names, 1.0))
    assert seen["tuner_runs"] == {("finished",): 2}
    lags = seen["tuner_schedule_lag_seconds"]
    assert len(lags) == 50
    assert {len(name) for (name,) in lags} >= {1, 120}
    assert not any(re.search("[\x00-\x1f\u202e]", name) for (name,) in lags)


def test_a_database_that_does_not_answer_is_told(store, tmp_path):
    with closing(sqlite3.connect(tmp_path / "results" / "tuner.db")) as other:
        other.execute("ALTER TABLE trial RENAME TO gone")
    assert read(store) == {"tuner_database_up": {(): 0}}


@pytest.mark.parametrize(
    ("status", "lag_s"), [("finished", 0), ("failed", 0), ("interrupted", 3000)]
)
def test_a_schedule_lags_until_its_firing_has_ended(store, status, lag_s):
    plan = {"cron": "0 12 * * *", "grace": "2h"}
    campaigns = {"nightly": {"tasks": [{"kernel": "softmax"}], "schedule": plan}}
    settings = Settings.model_validate({"campaigns": campaigns})

    class Ran:
        run_id, summary = None, ""

    Ran.status = status
    late, later = NOON + timedelta(minutes=40), NOON + timedelta(minutes=50)
    assert list_lags(settings, store, NOON - timedelta(minutes=1)) == {"nightly": 0}
    assert list_lags(settings, store, late) == {"nightly": 2400}
    tick(settings, store, late, "a", lambda name: Ran())
    assert list_lags(settings, store, later) == {"nightly": lag_s}
    # Nobody ticks any more.
    missed = list_lags(settings, store, NOON + timedelta(days=3))
    assert missed == {"nightly": 3 * 86400 if lag_s else 2 * 86400}


def test_the_pages_serve_them_behind_the_token(tmp_path):
    fill(tmp_path)
    with serving(tmp_path, "--token", "secret") as address:
        assert fetch(address, "/metrics")[0].status == 401
        answer, content = fetch(address, "/metrics", Authorization="Bearer secret")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert parse(content.decode())["tuner_runs"] == {("finished",): 2}


def test_dashboard_and_page_name_what_there_is(store):
    fill_all(store)
    text = generate_latest(FarmFigures(store, lambda now: {"nightly": 60.0})).decode()
    families = {
        family.name: {label for each in family.samples for label in each.labels}
        for family in text_string_to_metric_families(text)
    }
    panels = json.loads((EXAMPLES / "grafana.json").read_text())["panels"]
    used = set()
    for target in (each for panel in panels for each in panel["targets"]):
        expression, legend = target["expr"], target["legendFormat"]
        (name,) = re.findall(r"tuner_\w+", expression)
        labels = re.findall(r"[{,](\w+)[=!]", expression) + re.findall(r"{{(\w+)}}", legend)
        assert set(labels) <= families[name], expression
        used.add(name)
    assert used == set(families)
    page = (ROOT / "docs" / "schedules.md").read_text()
    rows = re.findall(r"^\| (`tuner_.*?`) \| (?:`(\w+)`)? ?\|", page, re.MULTILINE)
    listed = {name: {label} - {""} for names, label in rows for name in re.findall(r"\w+", names)}
    assert listed == families


def test_the_scrape_configuration_names_the_server_s_port():
    (job,) = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8321"]}]
