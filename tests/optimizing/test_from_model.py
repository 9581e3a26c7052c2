"""Campaigns over recorded calls of a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.errors import TunerError
from search_spaces.recorded.model_calls import ModelCall, write_calls
from tuner.campaign import RunOptions
from tuner.campaign.plan import plan
from tuner.campaign.tasks import requested_tasks
from tuner.settings import ConfigError, load

CONFIG = """
version: 1
campaigns:
  night:
    tasks: [{from_model: calls}, {kernel: cpu_softmax, workloads: [{rows: 1, cols: 8}]}]
"""


def softmax(rows, count=1, cols=8):
    return ModelCall("cpu_softmax", {"rows": rows, "cols": cols, "dtype": "float32"}, count)


def test_a_campaign_tunes_what_was_recorded(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG.replace("cols: 8}", "cols: 8, dtype: float32}"))
    campaign = load(tmp_path / "config.yaml")[0].campaigns["night"]
    with pytest.raises(TunerError, match="no file of calls"):
        requested_tasks(campaign, paths=(f"{tmp_path}",))
    write_calls(tmp_path / "calls" / "one.json", [softmax(2), softmax(3), softmax(4, cols=0)])
    write_calls(tmp_path / "calls" / "two.json", [softmax(3), softmax(5, count=9)])
    tasks = requested_tasks(campaign, paths=(f"{tmp_path}",))
    assert [each.workload["rows"] for each in tasks] == [5, 3, 2, 1]
    assert {each.kernel.name for each in tasks} == {"cpu_softmax"}


def rows_and_gains(planned):
    whole = sum(each.gain_s for each in planned)
    return {each.workload["rows"]: each.gain_s / whole for each in planned}


def test_calls_that_take_most_of_the_time_are_planned_first(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG.replace("cols: 8}", "cols: 8, dtype: float32}"))
    settings = load(tmp_path / "config.yaml")[0]
    counted = [softmax(2, count=5), softmax(300), softmax(64, count=3)]
    write_calls(tmp_path / "calls" / "one.json", counted)
    planned = plan(settings, "night", RunOptions(base=tmp_path))
    rows = {2: 10 / 502, 300: 300 / 502, 64: 192 / 502, 1: 0.0}
    assert rows_and_gains(planned) == pytest.approx(rows)
    assert [each.workload["rows"] for each in planned] == [300, 64, 2, 1]
    assert [each.note for each in planned][::3] == ["59.8% of what is expected to be saved", ""]
    recorded = [replace(each, share=0.1 * each.count) for each in counted[1:]]
    write_calls(tmp_path / "calls" / "one.json", [counted[0], *recorded])
    rows = {2: 0.0, 300: 0.25, 64: 0.75, 1: 0.0}
    assert rows_and_gains(plan(settings, "night", RunOptions(base=tmp_path))) == pytest.approx(rows)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("{}", r"tasks\[0\].kernel: missing"),
        ("{from_model: calls, kernel: softmax}", r"tasks\[0\].from_model: leave out"),
        ("{from_model: calls, workloads: [{n: 1}]}", r"tasks\[0\].from_model: leave out"),
    ],
)
def test_a_task_has_one_source(tmp_path, task, message):
    path = tmp_path / "config.yaml"
    path.write_text(f"version: 1\ncampaigns: {{night: {{tasks: [{task}]}}}}\n")
    with pytest.raises(ConfigError, match=message):
        load(path)
