"""`tuner demo`: recorded searches of an H200, from a package that holds them."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from search_spaces.recorded.recorded_space import RecordedSpace
from search_spaces.registry import load as load_kernel

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks/spaces/h200"
SHOWN = sorted(path.name for path in FOLDER.glob("*.space.json.gz"))


def test_a_wheel_holds_every_recording_and_the_campaign():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    data = {
        f"{path.relative_to(ROOT)}"
        for package, patterns in listed["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package).glob(pattern)
    }
    assert {f"search_spaces/recorded/h200/{name}" for name in SHOWN} <= data
    assert "tuner/templates/demo.yaml" in data


def test_recordings_are_of_present_kernels_and_have_compiled_torch_among_their_baselines():
    spaces = [RecordedSpace.load(FOLDER / name) for name in SHOWN]
    for space in spaces:
        assert {"eager", "compile"} <= set(space.baselines)
        load_kernel(space.kernel).check_workload(space.workload)
        assert any(entry.samples_us for entry in space.configs)


@pytest.mark.full
def test_every_recording_is_replayed_with_a_report(tuner, folder, virtual):
    result = tuner("demo", "-f", "json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)
    assert len(rows) == len(SHOWN) == 16
    assert {row["device"] for row in rows} == {"NVIDIA H200"}
    gains = [row["over_baseline"] for row in rows]
    assert min(gains) > 0.99
    assert sum(gain > 1.05 for gain in gains) >= 8
    assert "13 of 16 faster than every alternative, up to 12.3x" in result.err
    place = folder / "tuner-demo"
    assert f"report: {place / 'results' / 'report.html'}" in result.err
    assert sorted(os.listdir(place / "results")) == ["report.html", "tuner.db"]
    assert os.listdir(folder) == ["tuner-demo"]


def test_a_folder_keeps_its_campaign_and_other_commands_work_in_it(
    tuner, folder, virtual, monkeypatch
):
    monkeypatch.setenv("TUNER__DATABASE__URL", f"sqlite:///{folder / 'other.db'}")
    place = folder / "here"
    place.mkdir()
    config = place / "config.yaml"
    config.write_text(
        "version: 1\nmeasure: {final_pairs: 8}\ncampaigns:\n  demo:\n    targets: [simulated]\n"
        f'    budget: {{trials: 5}}\n    tasks: [{{kernel: "recorded:h200/{SHOWN[-1]}"}}]\n'
    )
    kept = config.read_text()
    first = tuner("demo", "here")
    assert first.code == 0, first.err
    assert f"report: {place / 'results' / 'report.html'}" in first.out
    assert config.read_text() == kept
    assert first.out.splitlines()[-1] == "1 of 1 faster than every alternative, up to 1.8x"
    assert sorted(os.listdir(place)) == ["config.yaml", "results"]
    assert "nothing measured" in tuner("demo", "here", "--quiet").out
    assert sorted(os.listdir(place / "results")) == ["report.html", "tuner.db"]
    assert os.listdir(folder) == ["here"]
    monkeypatch.delenv("TUNER__DATABASE__URL")
    monkeypatch.chdir(place)
    (row,) = json.loads(tuner("best", "-f", "json").out)
    assert row["state"] == "current"


def test_a_folder_that_is_a_file_is_refused_in_one_line(tuner, folder):
    (folder / "taken").write_text("")
    result = tuner("demo", "taken")
    assert result.code == 2
    assert "cannot be written" in result.error
