"""What tests of tables share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from results_db import Store

# The helper that forks.
sys.path.append(str(Path(__file__).parents[1] / "spaces"))


@pytest.fixture(autouse=True)
def _afresh(monkeypatch):
    """No tables but those of the test, and nothing remembered of others."""
    from tuner import runtime

    for variable in ("TUNER_TABLES", "TUNER_DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    runtime.clear()


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}") as opened:
        yield opened


@pytest.fixture
def run_id(store):
    environment = {"git": "abc123", "dirty": False, "system": "Linux"}
    return store.begin_run("nightly", "ff", 0, environment, {}).run_id


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TUNER_DEVICE", "NVIDIA H200")


@pytest.fixture
def library(tmp_path, interpreted):
    from table_library import Library

    yield Library(tmp_path)
    sys.modules.pop("scale_library", None)


@pytest.fixture
def applied_library(tmp_path, interpreted, monkeypatch):
    from applied_library import NAME, AppliedLibrary

    from tuner import runtime

    monkeypatch.syspath_prepend(tmp_path)
    library = AppliedLibrary(tmp_path)
    library.load()
    yield library
    for application in runtime.applications():
        application.remove()
    sys.modules.pop(NAME, None)
