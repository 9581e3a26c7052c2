"""Formats for other tools, read back as those tools would."""

from __future__ import annotations

import csv
import io
import json
import math
from contextlib import ExitStack
from dataclasses import replace
from wsgiref.util import setup_testing_defaults

import pytest
from table_documents import DEFAULT, H200, TIE, WINNER, add_task, outcome

from results_db import TrialRecord
from results_db.stored_records import BaselineRecord
from search_spaces.errors import TunerError
from search_spaces.recorded.recorded_space import RecordedSpace
from search_spaces.records import Status, Workload
from tuner import tables
from tuner.base.log_ratio import LogRatio

WORKLOAD = Workload.of(n=1024, dtype="float16")


@pytest.fixture
def run_id(store, run_id):
    add_task(store, run_id, WORKLOAD, selection=outcome())
    return run_id


def read_rows(path):
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))


@pytest.fixture
def study_of():
    """Opens the only study of an Optuna database."""
    import optuna

    with ExitStack() as opened:

        def load(path):
            storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
            opened.callback(storage.engine.dispose)
            return optuna.load_study(study_name=None, storage=storage)

        yield load


def test_every_format_is_stable_and_noted(store, run_id, tmp_path):
    # Formats of libraries have kernels of their own: tests/integrations.
    left_out = {"inductor", "parquet", "sglang", "vllm"}
    for name in set(tables.available()) - left_out:
        first = {p.name: p.read_bytes() for p in tables.export(store, run_id, tmp_path / "a", name)}
        again = {p.name: p.read_bytes() for p in tables.export(store, run_id, tmp_path / "b", name)}
        assert first
        assert first == again
        assert tables.check_export(store, run_id, tmp_path / "a", name) == [] or name == "tuner"
    assert {export.format for export in store.exports()} == set(tables.available()) - left_out


def test_triton_configs_can_be_made_of_the_list(store, run_id, tmp_path):
    triton = pytest.importorskip("triton")
    (path,) = tables.export(store, run_id, tmp_path, "triton")
    (row,) = json.loads(path.read_text())
    assert row["key"] == WORKLOAD.as_dict()
    configs = [triton.Config(**config) for config in row["configs"]]
    assert [config.kwargs["BLOCK"] for config in configs] == [WINNER["BLOCK"], TIE["BLOCK"]]
    assert configs[0].num_warps == WINNER["num_warps"]


def test_t4_holds_all_trials_with_the_communitys_words(store, run_id, tmp_path):
    results_path, metadata_path = tables.export(store, run_id, tmp_path, "t4")
    document = json.loads(results_path.read_text())
    assert document["schema_version"] == "1.0.0"
    assert [row["invalidity"] for row in document["results"]] == [
        *["correct"] * 3,
        *[str(status) for status in Status if status is not Status.CORRECT],
    ]
    winner = document["results"][1]
    assert winner["configuration"] == WINNER
    assert winner["measurements"] == [{"name": "time", "value": 0.01, "unit": "ms"}]
    assert winner["times"]["runtimes"] == [0.01, 0.0101]
    assert winner["times"]["compilation_time"] == 250.0
    assert winner["correctness"] == 1
    failed = document["results"][-1]
    assert (failed["correctness"], failed["measurements"]) == (0, [])
    metadata = json.loads(metadata_path.read_text())["metadata"]
    assert metadata["hardware"]["operating_system"] == "Linux"
    assert metadata["environment"]["device_query"]["name"] == H200.name
    assert "triton==3.6.0" in metadata["environment"]["requirements"]
    assert "GPU-1" not in metadata_path.read_text()


def test_csv_has_a_row_per_trial_and_keeps_hostile_text(store, run_id, tmp_path):
    (path,) = tables.export(store, run_id, tmp_path, "csv")
    rows = read_rows(path)
    assert len(rows) == len(store.trials(store.tasks(run_id)[0].task_id))
    assert rows[-1]["message"] == '<script>alert(1)</script> it\'s "bad"\nindeed, it is'
    assert {row["status"] for row in rows} == set(map(str, Status))


def test_no_text_of_a_csv_export_is_a_formula(store, run_id, tmp_path):
    task = store.tasks(run_id)[0]
    trial = store.trials(task.task_id)[-1]
    config = {**trial.config, "extra": "@y"}
    message = "=cmd|' /C calc'!A0"
    made = replace(trial, attempt_id="formula", number=900, config=config, message=message)
    store.record_trial(task.task_id, made)
    (path,) = tables.export(store, run_id, tmp_path, "csv")
    rows = read_rows(path)
    (row,) = [row for row in rows if "calc" in row["message"]]
    assert row["config.extra"] == "'@y"
    assert row["message"] == "'=cmd|' /C calc'!A0"
    assert not [text for row in rows for text in row.values() if text[:1] in tuple("=+@\t\r")]


def test_parquet_is_the_same_frame_or_names_the_package_to_install(store, run_id, tmp_path):
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        with pytest.raises(TunerError, match="pyarrow") as raised:
            tables.export(store, run_id, tmp_path, "parquet")
        assert "kernel-tuning-farm[parquet]" in raised.value.hint
        return
    import pandas as pd

    (path,) = tables.export(store, run_id, tmp_path, "parquet")
    assert len(pd.read_parquet(path)) == len(store.trials_frame(run_id))


def test_baselines_are_recorded_at_the_clocks_of_the_configs(store, run_id, tmp_path):
    """By their confirmed ratio to the winner, which the search timed at 10 us."""
    (task,) = store.tasks(run_id)
    paired = BaselineRecord("eager", Status.CORRECT, 31.0, LogRatio(math.log(2.0)))
    alone = BaselineRecord("vendor", Status.CORRECT, 12.0)
    store.record_selection(task.task_id, outcome(), [paired, alone])
    (path,) = tables.export(store, run_id, tmp_path, "space")
    assert RecordedSpace.load(path).baselines == pytest.approx({"eager": 20.0, "vendor": 12.0})


def test_a_run_becomes_a_recorded_space(store, run_id, tmp_path):
    (path,) = tables.export(store, run_id, tmp_path, "space")
    space = RecordedSpace.load(path)
    assert space.kernel == "scale"
    assert space.workload == WORKLOAD
    assert space.device.fingerprint == H200.fingerprint
    assert space.default == DEFAULT
    assert space.best.config == WINNER
    # At the clocks of the calibrated median.
    assert space[WINNER].samples_us == pytest.approx((10.0 / 1.005, 10.1 / 1.005))
    assert {entry.status for entry in space.configs} == set(Status)
    assert [(p.name, p.kind) for p in space.parameters] == [
        ("BLOCK", "power_of_two"),
        ("num_warps", "power_of_two"),
    ]


def test_conditional_parameters_are_recorded_with_their_condition(store, run_id, tmp_path):
    from search_spaces.recorded.recorded_kernel import RecordedKernel

    configs = [{"split": False, "B": 3}, {"split": True, "B": 3, "parts": 2}]
    trials = [
        TrialRecord(f"c{i}", i, config, Status.CORRECT, median_us=5.0 + i)
        for i, config in enumerate(configs)
    ]
    add_task(store, run_id, Workload.of(n=1), trials=trials)
    paths = tables.export(store, run_id, tmp_path, "space")
    kernel = RecordedKernel(RecordedSpace.load(paths[-1]))
    (sized,) = kernel.workloads()
    found = list(kernel.space(sized).bind(sized, kernel.device).enumerate())
    assert sorted(found, key=len) == configs


def test_an_unknown_format_names_the_known(store, run_id, tmp_path):
    with pytest.raises(TunerError, match="did you mean 'triton'") as raised:
        tables.export(store, run_id, tmp_path, "tritton")
    assert "csv" in raised.value.hint


def test_a_run_is_read_as_an_optuna_study(store, run_id, tmp_path, study_of):
    (path,) = tables.export(store, run_id, tmp_path, "optuna")
    study = study_of(path)
    trials, found = store.trials(store.tasks(run_id)[0].task_id), study.get_trials()
    assert [trial.params for trial in found] == [dict(trial.config) for trial in trials]
    assert [trial.value for trial in found] == [trial.median_us for trial in trials]
    assert [trial.user_attrs["status"] for trial in found] == [str(t.status) for t in trials]
    for trial, record in zip(found, trials, strict=True):
        correct = record.status is Status.CORRECT
        assert trial.state.name == ("COMPLETE" if correct else "FAIL")
        assert (trial.constraints["fails"] <= 0) is correct
        assert trial.user_attrs["attempt_id"] == record.attempt_id
        assert trial.datetime_complete == record.finished_at.replace(tzinfo=None)
        assert trial.duration.total_seconds() == record.build_s + record.device_s
        for name in ("message", "build_s", "device_s", "registers", "spill_bytes", "shared_bytes"):
            value = getattr(record, name)
            assert trial.user_attrs.get(name) == (None if value == "" else value)
        assert trial.distributions["BLOCK"].log
    assert study.best_trial.params == WINNER
    assert study.best_value == 10.0
    assert study.best_trial.user_attrs["winner"] is True
    attributes = {"kernel": "scale", "workload": WORKLOAD.as_dict(), "device": H200.name}
    found = {"winner": WINNER, "tie_set": [TIE, WINNER], "verdict": "faster"}
    assert study.user_attrs == attributes | found


def test_the_studies_open_in_optuna_dashboard(store, run_id, tmp_path):
    import optuna_dashboard

    (path,) = tables.export(store, run_id, tmp_path, "optuna")
    dashboard = optuna_dashboard.wsgi(f"sqlite:///{path}")

    def ask(page: str):
        asked: dict[str, object] = {"PATH_INFO": page}
        setup_testing_defaults(asked)
        codes = []
        content = b"".join(dashboard(asked, lambda code, headers, *error: codes.append(code)))
        assert codes == ["200 OK"], content
        return json.loads(content)

    (study,) = ask("/api/studies")["study_summaries"]
    found = ask(f"/api/studies/{study['study_id']}")
    (task,) = store.tasks(run_id)
    trials = store.trials(task.task_id)
    states = ["Complete" if trial.status is Status.CORRECT else "Fail" for trial in trials]
    assert [trial["state"] for trial in found["trials"]] == states
    best = min(trial.median_us for trial in trials if trial.median_us is not None)
    assert [trial["values"] for trial in found["best_trials"]] == [[best]]
    assert {item["name"] for item in found["union_search_space"]} == set(WINNER)


def test_an_optuna_study_keeps_conditional_parameters_and_awkward_values(store, tmp_path, study_of):
    run_id = store.begin_run("odd", "ff", 0, {}, {}).run_id
    configs = [
        {"split": True, "how": "tree", "n": 3, "mix": 1, "scale": 0.5},
        {"split": False, "n": 5, "mix": True, "scale": None},
        {"split": True, "how": "<b>'\"\N{SNOWMAN}", "n": -4, "mix": 1.0, "scale": 2.0},
    ]
    ratio = LogRatio(0.1, 0.0, 0.3)
    made = [
        TrialRecord(f"a{i}", i, config, Status.CORRECT, median_us=10.0 - i, log_ratio=ratio)
        for i, config in enumerate(configs)
    ]
    built = {"split": False, "n": 7, "mix": 1, "scale": 0.5}
    made.append(TrialRecord("a3", 3, built, Status.CORRECT, source="built"))
    add_task(store, run_id, WORKLOAD, trials=made)
    (path,) = tables.export(store, run_id, tmp_path, "optuna")
    found = study_of(path).get_trials()
    texts = ["1", "true", "1.0", "1"]
    assert [t.params for t in found] == [
        {**config, "mix": text} for config, text in zip([*configs, built], texts, strict=True)
    ]
    assert (found[3].state.name, found[3].constraints["fails"]) == ("PRUNED", -1.0)
    low, high = found[0].user_attrs["interval_us"]
    assert (low, high) == pytest.approx((10 * math.exp(-0.1), 10 * math.exp(0.2)))
