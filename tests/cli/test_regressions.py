"""`tuner regressions`: candidates from history, decided by a new pass, told once to a webhook."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from bench_samples import RECORDED, SETTINGS, confirm
from cli_samples import HOSTILE, fill

from results_db import Store
from results_db.promotion_records import RegressionState
from results_db.run_comparison import BESIDE_DEFAULT
from tuner.base.log_ratio import LogRatio
from tuner.campaign.regressions import decide_candidates

CONFIG = "version: 1\nnotify: {{webhook: 'http://127.0.0.1:{port}/hook'}}\n"


def add_step(url: str, kernel: str = "scale", size: float = 0.03) -> None:
    """Seven runs; the time changes with the sixth."""
    for run in range(7):
        fill(url, kernel=kernel, gain=0.5 + 0.001 * (run % 2) - size * (run >= 5))


def set_state(url: str, state: RegressionState) -> None:
    with Store.open(url) as store:
        for each in store.regressions():
            store.decide_regression(each.id, state, "as the test says", each.log_ratio)


def rows_of(tuner, *arguments: object, code: int = 0) -> list[dict]:
    result = tuner("regressions", "--format", "json", *arguments)
    assert result.code == code, result.err
    return json.loads(result.out)


def test_a_step_to_a_higher_time_is_a_candidate_once(tuner, url):
    add_step(url)
    for _ in range(2):
        (row,) = rows_of(tuner)
        assert (row["kernel"], row["since"], row["before"]) == ("scale", 6, 5)
        assert (row["state"], row["change"]) == ("candidate", pytest.approx(0.03, abs=0.003))
    fill(url, kernel="scale", gain=0.4703)
    assert len(rows_of(tuner)) == 1


@pytest.mark.parametrize("size", [0.0, -0.03])
def test_no_step_and_a_faster_time_are_none(tuner, url, size):
    add_step(url, size=size)
    assert rows_of(tuner) == []


def test_a_second_step_is_a_second_regression(tuner, url):
    add_step(url)
    for run in range(4):
        fill(url, kernel="scale", gain=0.4705 - 0.04 * (run >= 2))
    assert [row["since"] for row in rows_of(tuner)] == [10, 6]


def test_a_confirmed_one_is_shown_everywhere_until_it_is_acknowledged(tuner, url):
    add_step(url)
    rows_of(tuner)
    set_state(url, RegressionState.CONFIRMED)
    assert rows_of(tuner, code=1)[0]["state"] == "confirmed"
    history = json.loads(tuner("history", "scale", "-f", "json").out)
    assert "regression 1: confirmed" in next(row["note"] for row in history if row["run"] == 6)
    assert "1 confirmed regressions" in tuner("status").err
    assert rows_of(tuner, "--acknowledge", 1)[0]["acknowledged_at"] is not None
    assert "confirmed regressions" not in tuner("status").err
    assert "no regression 7" in tuner("regressions", "--acknowledge", 7).error


def test_the_webhook_is_told_once(tuner, url, folder, webhook):
    (folder / "config.yaml").write_text(CONFIG.format(port=webhook.server_port))
    add_step(url)
    rows_of(tuner)
    assert webhook.texts == []
    set_state(url, RegressionState.CONFIRMED)
    for _ in range(2):
        assert rows_of(tuner, code=1)[0]["notified_at"] is not None
    (text,) = webhook.texts
    assert text.startswith("tuner: scale rows=8192 cols=8192 dtype=bfloat16 on NVIDIA H200 is 3.")
    assert "slower since run 6" in text
    assert "***" in tuner("config", "show").out


@pytest.mark.parametrize("status", [500, 302])
def test_a_failing_webhook_is_one_line_and_is_told_later(tuner, url, folder, webhook, status):
    (folder / "config.yaml").write_text(CONFIG.format(port=webhook.server_port))
    add_step(url)
    rows_of(tuner)
    set_state(url, RegressionState.CONFIRMED)
    webhook.status[0] = status
    result = tuner("regressions", "-f", "json")
    assert (result.code, len(result.err.splitlines())) == (1, 1)
    assert f"it answered {status}" in result.err
    assert json.loads(result.out)[0]["notified_at"] is None
    webhook.status[0] = 200
    assert rows_of(tuner, code=1)[0]["notified_at"] is not None
    assert len(webhook.texts) == 2


def test_a_webhook_that_is_not_there_is_one_line(tuner, url, folder):
    (folder / "config.yaml").write_text(CONFIG.format(port=1))
    add_step(url)
    rows_of(tuner)
    set_state(url, RegressionState.CONFIRMED)
    result = tuner("regressions")
    assert (result.code, len(result.err.splitlines())) == (1, 1)
    assert "was not told" in result.err


@pytest.mark.parametrize("webhook_url", ["file:///etc/passwd", "ftp://host/x", "hook"])
def test_an_address_that_is_no_webhook_is_refused(tuner, folder, webhook_url):
    (folder / "config.yaml").write_text(f"version: 1\nnotify: {{webhook: '{webhook_url}'}}\n")
    assert "notify.webhook" in tuner("config", "check").error


def test_hostile_text_is_inert(tuner, url, folder, webhook):
    (folder / "config.yaml").write_text(CONFIG.format(port=webhook.server_port))
    add_step(url, kernel=f"<!channel> & {HOSTILE}{'x' * 10_000}")
    rows_of(tuner)
    set_state(url, RegressionState.CONFIRMED)
    result = tuner("regressions")
    (text,) = webhook.texts
    assert "&lt;!channel&gt; &amp;" in text
    assert len(text) < 1000
    assert "<" not in text
    assert not set(text + result.out + result.err) & set("\x1b\u202e")


def test_a_new_pass_decides(tuner, folder, url, replay):
    """The stored times say slower; the recording that is measured says which is true."""
    space = replay()
    (folder / "config.yaml").write_text(f"{SETTINGS}kernels: ['{RECORDED}']\n")
    best, worse = space.best.config, space.default
    confirm(folder, best, median_us=10.0)
    confirm(folder, worse, median_us=20.0)
    with Store.open(url) as store:
        first, second = (store.tasks(run)[0].task_id for run in (1, 2))
        ratio = store.tasks(1)[0].selection.log_ratio
        store.raise_regression(second, first, 2, ratio)
        store.raise_regression(first, second, 1, ratio)
    rows = rows_of(tuner, "--remeasure", code=1)
    assert [(row["since"], row["state"]) for row in rows] == [(1, "refuted"), (2, "confirmed")]
    assert rows[1]["low"] > 0


def test_a_run_decides_its_own_and_tells_it_once(tuner, folder, webhook, replay):
    replay()
    campaign = f"tasks: [{{kernel: '{RECORDED}'}}], targets: [simulated]"
    (folder / "config.yaml").write_text(
        f"{SETTINGS}notify: {{webhook: 'http://127.0.0.1:{webhook.server_port}/'}}\n"
        f"campaigns: {{c: {{{campaign}}}, silent: {{{campaign}, regressions: false}}}}\n"
    )

    def run(campaign: str, trials: int):
        return tuner("run", campaign, "--fresh", "--trials", trials, "--no-report", "-q")

    for _ in range(5):
        assert run("c", 60).code == 0
    # A search of one trial ships the default config, which is slower.
    assert run("c", 1).code == 0
    assert webhook.texts == []
    assert run("silent", 1).code == 0
    assert webhook.texts == []
    found = run("c", 1)
    assert found.code == 1
    (text,) = webhook.texts
    assert "slower since run 6 (regression 1, confirmed)" in text
    assert text in found.err
    assert run("c", 1).code == 0
    assert len(webhook.texts) == 1
    assert rows_of(tuner, code=1)[0]["notified_at"] is not None


def passes_of(*sizes: float):
    """Passes that show these changes in turn; each also times the default config."""
    left = iter(sizes)

    def measure(asked):
        size = next(left)
        ratio = LogRatio(size, size - 0.01, size + 0.01)
        return [
            replace(each, log_ratio=ratio, why=BESIDE_DEFAULT, remeasured_us=(1.0, 1.0))
            for each in asked
        ]

    return measure


@pytest.mark.parametrize(
    ("sizes", "state"),
    [
        ((0.03, 0.031), "confirmed"),
        ((0.0, 0.053, 0.001), "refuted"),
        ((0.03, 0.005, 0.03), "confirmed"),
        ((0.014, 0.012), "refuted"),
    ],
)
def test_two_passes_decide_and_one_outlier_does_not(tuner, url, sizes, state):
    add_step(url)
    rows_of(tuner)
    with Store.open(url) as store:
        opened = decide_candidates(store, passes_of(*sizes))
        assert len(opened) == (state == "confirmed")
    assert rows_of(tuner, code=len(opened))[0]["state"] == state


def test_what_was_refuted_is_measured_again_while_runs_show_it(tuner, url):
    add_step(url)
    rows_of(tuner)
    with Store.open(url) as store:
        assert decide_candidates(store, passes_of(0.0, 0.0), again=False) == []
        assert decide_candidates(store, passes_of(), again=False) == []
        fill(url, kernel="scale", gain=0.5)
        assert decide_candidates(store, passes_of(), again=False) == []
        fill(url, kernel="scale", gain=0.47)
        (found,) = decide_candidates(store, passes_of(0.03, 0.03), again=False)
        assert found.log_ratio.value == pytest.approx(0.03, abs=0.002)


def test_what_ships_again_is_measured_in_the_place_of_a_passing_choice(tuner, folder, url, replay):
    """One run ships a config that is slower, and the next one the config before again."""
    space = replay()
    (folder / "config.yaml").write_text(f"{SETTINGS}kernels: ['{RECORDED}']\n")
    for config in (space.best.config, space.default, space.best.config):
        confirm(folder, config, median_us=10.0)
    with Store.open(url) as store:
        first, second, _ = (store.tasks(run)[0].task_id for run in (1, 2, 3))
        store.raise_regression(second, first, 3, LogRatio(0.5, 0.4, 0.6))
    (row,) = rows_of(tuner, "--remeasure")
    assert (row["state"], row["reason"]) == ("refuted", "not slower beside the default config")


def test_a_pass_that_tells_nothing_leaves_a_candidate_with_the_reason(tuner, folder, url, replay):
    space = replay()
    (folder / "config.yaml").write_text(f"{SETTINGS}kernels: ['{RECORDED}']\n")
    confirm(folder, space.best.config, median_us=10.0)
    confirm(folder, space.best.config, median_us=20.0)
    confirm(folder, space.default, median_us=20.0, launch_hash="0" * 16)
    with Store.open(url) as store:
        tasks = [store.tasks(run)[0] for run in (1, 2, 3)]
        for old, new in ((0, 1), (1, 2)):
            ratio = tasks[0].selection.log_ratio
            store.raise_regression(tasks[new].task_id, tasks[old].task_id, new + 1, ratio)
    rows = rows_of(tuner, "--remeasure")
    assert [row["state"] for row in rows] == ["candidate", "refuted"]
    assert "the code of B is no longer here" in rows[0]["reason"]
    assert rows[1]["reason"] == "not slower beside the default config"


def test_a_note_is_sent_and_the_next_one_begins_there(tuner, url, folder, webhook):
    (folder / "config.yaml").write_text(CONFIG.format(port=webhook.server_port))
    fill(url, kernel=HOSTILE)
    fill(url, kernel=HOSTILE, gain=0.7)
    webhook.status[0] = 500
    assert "it answered 500" in tuner("note", "--send").error
    webhook.status[0] = 200
    assert tuner("note", "--send").code == 0
    head, *lines = webhook.texts[1].splitlines()
    assert head.startswith("tuner since 2")
    assert lines[:2] == ["runs 2", "trials 2"]
    assert lines[4].startswith("faster 2 ")
    assert len(lines) == 5
    assert not {"<", ">", "\x1b"} & set(webhook.texts[1])
    assert json.loads(tuner("note", "-f", "json").out)[0]["text"] == 0
    assert json.loads(tuner("note", "--since", "9d", "-f", "json").out)[0]["text"] == 2
    assert tuner("db", "check").code == 0
