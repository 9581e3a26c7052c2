"""`tuner demo`: recorded spaces of an H200, from a package that holds them."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPACES = sorted(path.name for path in (ROOT / "benchmarks/spaces/h200").glob("*.space.json"))
#: Of two recordings of one workload, the demo has the one with more configs.
SHOWN = [name for name in SPACES if name != "matmul_4096x4096x4096_bf16.space.json"]


def test_a_wheel_holds_every_recording_and_the_campaign():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    data = {
        f"{path.relative_to(ROOT)}"
        for package, patterns in listed["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package).glob(pattern)
    }
    assert {f"search_spaces/recorded/h200/{name}" for name in SPACES} <= data
    assert "tuner/templates/demo.yaml" in data


@pytest.mark.full
def test_every_recording_is_replayed_with_a_report(tuner, folder, virtual):
    result = tuner("demo", "-f", "json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)
    assert len(rows) == len(SHOWN) == 16
    assert {row["device"] for row in rows} == {"NVIDIA H200"}
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
        f'    budget: {{trials: 5}}\n    tasks: [{{kernel: "recorded:h200/{SPACES[-1]}"}}]\n'
    )
    kept = config.read_text()
    first = tuner("demo", "here")
    assert first.code == 0, first.err
    assert f"report: {place / 'results' / 'report.html'}" in first.out
    assert config.read_text() == kept
    assert sorted(path.name for path in (place / "h200").iterdir()) == SHOWN
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
    assert "cannot write" in result.error
