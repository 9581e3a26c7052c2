"""Calls of the Python API in a folder of the test."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest
from made_up_spaces import synthesize

sys.path.append(str(Path(__file__).parents[1] / "pools"))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty working folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def scratch(tmp_path, monkeypatch) -> Path:
    """The folder in which the process makes its temporary files."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield place
    gc.collect()


@pytest.fixture
def recorded(folder) -> dict:
    """Arguments of `tune` for a recorded space in virtual time."""
    space = synthesize(60, seed=5)
    space.save(folder / "space.json")
    assert os.path.isfile("space.json")
    return {"kernel": "recorded:space.json", "workload": space.workload, "pool": "virtual"}
