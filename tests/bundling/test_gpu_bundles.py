"""A bundle on a GPU: built by a process that sees none, run in one without a C compiler."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from test_bundles import HERE, start

from search_spaces.recorded.model_calls import read_calls

pytestmark = pytest.mark.gpu
SCRIPT = HERE / "gpu_processes.py"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A folder with what a process recorded, and the bundle of it."""
    folder, path = tmp_path_factory.mktemp("recorded"), os.environ["PATH"]
    (folder / "tables").mkdir()
    recording = {"TUNER_RECORD": folder / "record", "TUNER_RECORD_ALL": "1", "PATH": path}
    done = start(folder, SCRIPT, "record", folder, TUNER_DEVICE="", **recording)
    assert done.returncode == 0, done.stderr
    major, minor = torch.cuda.get_device_capability()
    command = ["-m", "tuner", "bundle", "calls.json", "tables", "record"]
    command += ["--for", f"cuda:{major}{minor}"]
    done = start(folder, *command, CUDA_VISIBLE_DEVICES="", PATH=path)
    assert done.returncode == 0, done.stderr
    return folder


def run(recorded: Path, tmp_path: Path, cols: int, **variables: object) -> dict:
    given = {"TUNER_BUNDLE": recorded / "bundle", "TUNER_DEVICE": "", **variables}
    done = start(tmp_path, SCRIPT, cols, recorded, **given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nothing_is_compiled_and_results_are_equal(recorded, tmp_path):
    found = run(recorded, tmp_path, 512)
    assert found == {
        "compiled": [], "tuned": 0, "equal": [True] * 5,
        "runs": {"softmax": "tuned", "rms_norm": "tuned"},
    }  # fmt: skip


def test_never_runs_on_torch_and_records_what_is_not_compiled(recorded, tmp_path):
    record = tmp_path / "missed"
    found = run(recorded, tmp_path, 520, TUNER_COMPILE="never", TUNER_RECORD=record)
    assert found["compiled"] == []
    assert found["runs"]["rms_norm"] == "eager"
    assert found["runs"]["softmax"] in ("eager", "vendor")  # cuDNN, where that is installed
    calls = read_calls(record)
    assert {call.kernel: call.dims["cols"] for call in calls} == {"softmax": 520, "rms_norm": 520}
