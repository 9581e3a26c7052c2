"""What a release is: sdist and wheel of the tracked files, which work where nothing else is, and
data of released versions that every later version reads."""

from __future__ import annotations

import json
import lzma
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tuner import runtime

ROOT = Path(__file__).parents[2]
#: By released version, a database and a table that it wrote.
RELEASED = sorted((Path(__file__).parent / "data").iterdir())
PACKAGES = ("reports", "results_db", "search_spaces", "tuner", "workers")
#: A demo of a moment.
FEW = """version: 1
measure: {final_pairs: 8}
campaigns:
  demo:
    targets: [simulated]
    budget: {trials: 5}
    tasks: [{kernel: "recorded:h200/NAME"}]
"""


def run(*command, cwd, **env):
    kept = {
        key: each for key, each in os.environ.items() if key not in ("PYTHONPATH", "TUNER_CONFIG")
    }
    done = subprocess.run(
        [f"{each}" for each in command], cwd=cwd, env=kept | env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    out = tmp_path_factory.mktemp("release")
    run(sys.executable, ROOT / "scripts/build_release.py", out, cwd=out)
    return out


@pytest.fixture(scope="module")
def installed(release, tmp_path_factory):
    """Commands of an environment that has the wheel; only its dependencies come from here."""
    place = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    python, (wheel,) = place / "bin/python", release.glob("*.whl")
    options = ("install", "--quiet", "--no-deps", "--no-index")
    run(sys.executable, "-m", "pip", "--python", python, *options, wheel, cwd=place)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place)
    Path(site.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return place / "bin"


def test_the_wheel_has_the_tracked_files_of_the_packages_and_no_others(release):
    listed = [*filter(None, run("git", "ls-files", "-z", *PACKAGES, cwd=ROOT).split("\0"))]
    folders = [each for each in listed if (ROOT / each).is_dir()]  # links to recordings
    linked = (each.relative_to(ROOT) for place in folders for each in (ROOT / place).glob("*.gz"))
    tracked = {*listed, *map(str, linked)}.difference(folders)
    (wheel,) = release.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {each for each in archive.namelist() if ".dist-info/" not in each}
    assert held == tracked
    lines = (release / "wheel.txt").read_text().splitlines()
    assert held <= {line.partition(" ")[2] for line in lines}


def test_an_installed_wheel_is_whole(installed, tmp_path):
    where = run(installed / "python", "-c", "import tuner; print(tuner.__file__)", cwd=tmp_path)
    assert where.startswith(f"{installed.parent}")
    assert "0.1.0" in run(installed / "tuner", "--version", cwd=tmp_path)
    code = """
import torch
from tuner import ops

x, weight = torch.randn(3, 64), torch.randn(64)
torch.testing.assert_close(ops.rms_norm(x, [64], weight, 1e-6),
                           torch.nn.functional.rms_norm(x, [64], weight, 1e-6))
"""
    run(installed / "python", "-c", code, cwd=tmp_path)


def test_the_demo_of_an_installed_wheel_ships_a_table(installed, tmp_path):
    name = min(each.name for each in (ROOT / "search_spaces/recorded/h200").glob("*.gz"))
    (tmp_path / "config.yaml").write_text(FEW.replace("NAME", name))
    run(installed / "tuner", "demo", ".", "--quiet", cwd=tmp_path)
    run(installed / "tuner", "export", "--output", "tables", cwd=tmp_path)
    (table,) = (tmp_path / "tables").glob("*.json")
    assert len(json.loads(table.read_text())["entries"]) == 1


def test_an_own_kernel_is_written_and_checked(installed, tmp_path):
    run(installed / "tuner", "init", cwd=tmp_path)
    (kernel,) = re.findall(r"my_kernel\.py:\w+", (tmp_path / "config.yaml").read_text())[:1]
    run(installed / "tuner", "config", "check", "--kernels", cwd=tmp_path)
    assert "default" in run(installed / "tuner", "spaces", "show", kernel, cwd=tmp_path)


@pytest.mark.parametrize("data", RELEASED, ids=lambda each: each.name)
def test_data_of_a_released_version_are_read(data, tmp_path):
    database = tmp_path / "tuner.db"
    database.write_bytes(lzma.decompress((data / "tuner.db.xz").read_bytes()))
    (tmp_path / "config.yaml").write_text(
        f"version: 1\ndatabase: {{url: 'sqlite:///{database}'}}\ncampaigns: {{}}\n"
    )
    tuner = [sys.executable, "-m", "tuner"]
    run(*tuner, "db", "upgrade", cwd=tmp_path, PYTHONPATH=f"{ROOT}")
    best = json.loads(run(*tuner, "best", "-f", "json", cwd=tmp_path, PYTHONPATH=f"{ROOT}"))
    run(*tuner, "export", "--output", "tables", cwd=tmp_path, PYTHONPATH=f"{ROOT}")
    kept = {each.name: json.loads(each.read_text())["entries"] for each in data.glob("*@*.json")}
    made = (tmp_path / "tables").glob("*@*.json")
    assert {each.name: json.loads(each.read_text())["entries"] for each in made} == kept
    assert len(best) == sum(map(len, kept.values()))
    assert sum(len(runtime.read(each).entries) for each in data.glob("*@*.json")) == len(best)
