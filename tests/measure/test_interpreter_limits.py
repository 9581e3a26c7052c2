"""Narrow floats, fma and loop counters in Triton's interpreter; what it cannot run is built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from measure_child import Child

from results_db import Store
from search_spaces.records import Status, Workload
from tuner.cli import invoke
from workers.job_records import Failure, Mode, Timing

KERNELS = Path(__file__).parent / "interpreted_kernels.py"


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    child = Child("interpreter", "Interpreted", cache, module="interpreted_kernels")
    yield child
    child.close()


def _outcome(child, way, dtype="bfloat16"):
    workload = Workload.of(way=way, dtype=dtype)
    return child.measure(workload, {"way": way}, mode=Mode.VERIFY).outcomes[0]


@pytest.mark.parametrize("way", ["dot", "arithmetic", "reductions", "counter"])
def test_bfloat16_is_calculated_with_and_not_its_bits(child, way):
    outcome = _outcome(child, way)
    assert isinstance(outcome, Timing), outcome
    assert 0 < outcome.error < 1e-2
    assert not outcome.note


@pytest.mark.parametrize("way", ["dot", "reductions", "counter"])
def test_other_types_are_as_they_were(child, way):
    outcome = _outcome(child, way, "float32")
    assert isinstance(outcome, Timing), outcome
    assert 0 <= outcome.error < 1e-3


def test_integers_wrap_around_as_on_devices(child):
    outcome = _outcome(child, "overflow")
    assert isinstance(outcome, Timing), outcome
    assert not outcome.note


@pytest.mark.parametrize("way", ["float8", "fma"])
def test_float8_saturates_and_an_fma_is_rounded_once(child, way):
    outcome = _outcome(child, way, "float32")
    assert isinstance(outcome, Timing), outcome
    assert 0 <= outcome.error < 1e-6


@pytest.mark.parametrize(
    ("way", "what"),
    [
        ("libdevice", "libdevice.tanh, in `c = libdevice.tanh(a.to(tl.float32))`"),
        ("cuda libdevice", "a built-in function that exists on devices only, in `c = cuda_"),
        ("assembly", "inline_asm not supported in interpreter mode, in `c = tl.inline_asm"),
        ("atomic", "atomic operations on bfloat16, in `tl.atomic_add(C + at, a)`"),
    ],
)
def test_what_cannot_be_interpreted_is_no_failure_of_the_config(child, way, what):
    outcome = _outcome(child, way)
    assert isinstance(outcome, Timing), outcome
    assert outcome.note.startswith(f"cannot be interpreted: {what}")
    assert "interpreted_kernels.py:" in outcome.note
    assert outcome.error < 0
    assert isinstance(_outcome(child, "dot"), Timing)


def test_a_wrong_result_says_by_how_much_and_where(child):
    failure = _outcome(child, "wrong")
    assert isinstance(failure, Failure)
    assert failure.status is Status.CORRECTNESS
    assert "relative error 0.0" in failure.message
    assert "of `c` over 0.01, the worst at [" in failure.message
    assert ", not " in failure.message


CONFIG = """version: 1
database: {{url: "sqlite:///{folder}/farm.db"}}
pool: {{kind: local, builders: 1}}
campaigns:
  c:
    targets: ["cuda:90"]
    strategy: {{name: exhaustive}}
    tasks:
      - kernel: {kernel}:Interpreted
"""


def test_a_campaign_counts_it_as_built_and_not_as_verified(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG.format(folder=tmp_path, kernel=KERNELS))
    invoke(["run", "c"])
    output = capsys.readouterr().out
    said = "(1 configs verified in Triton's interpreter, 1 not checked)"
    assert said in output
    assert "1 wrong result, way=wrong: relative error 0." in output
    (page,) = (line[8:] for line in output.splitlines() if line.startswith("report: "))
    assert "1 wrong result, way=wrong: relative error 0." in Path(page).read_text()
    with Store.open(f"sqlite:///{tmp_path}/farm.db") as store:
        run = store.runs(limit=1)[0]
        (task,) = store.tasks(run.run_id)
        trials = {trial.config["way"]: trial for trial in store.trials(task.task_id)}
    assert {way: f"{trial.status}" for way, trial in trials.items()} == {
        "dot": "correct",
        "libdevice": "correct",
        "wrong": "correctness",
    }
    assert trials["dot"].verified_by == "interpreter"
    assert trials["dot"].message == trials["libdevice"].verified_by == ""
    assert trials["libdevice"].message.startswith("cannot be interpreted: libdevice.tanh")
    assert trials["libdevice"].binary_hash
    capsys.readouterr()
    assert invoke(["trials", "-f", "json"]) == 0
    shown = {row["config"]["way"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert shown == {"dot": "correct", "libdevice": "not checked", "wrong": "correctness"}
    assert invoke(["trials", "--where", "status='not checked'", "-f", "csv"]) == 0
    assert "libdevice" in capsys.readouterr().out
    command = ["verify", f"{KERNELS}:Interpreted", "--target", "cuda:90"]
    assert invoke([*command, "--config", '{"way": "libdevice"}', "-f", "json"]) == 0
    streams = capsys.readouterr()
    (row,) = json.loads(streams.out)
    assert row["checked_by"] is row["check_size"] is None
    assert row["note"].startswith("cannot be interpreted: ")
    assert "1 not checked" in streams.err


def test_a_function_in_gluon_is_built_and_not_interpreted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    workload = "batch=1 heads=2 sequence=130 head_dim=64 causal=true dtype=float16"
    config = {"dialect": "gluon", "BLOCK_N": 128, "num_stages": 2, "consumers": 1}
    config |= {"persistent": False}
    command = ["verify", "attention", "--target", "cuda:90", "--workload", workload]
    assert invoke([*command, "--config", json.dumps(config), "-f", "json"]) == 0
    streams = capsys.readouterr()
    (row,) = json.loads(streams.out)
    assert row["status"] == "not checked"
    assert row["checked_by"] is row["check_size"] is None
    assert "attention_hopper is written in Gluon" in row["note"]
    assert "1 not checked" in streams.err
