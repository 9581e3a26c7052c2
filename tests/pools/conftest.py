"""The record of what used the device of `probe_backend`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def device_times(tmp_path, monkeypatch) -> Path:
    """Where the processes of `probe_backend` record when they used the device."""
    made = tmp_path / "times"
    made.mkdir()
    monkeypatch.setenv("PROBE_PARTS", str(made))
    return made
