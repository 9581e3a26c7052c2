"""The device kinds of `probe_backend` as plug-ins, and the record of what used their device."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed_plugins import install_plugins

_KINDS = {"probe": "ProbeSpec", "loading": "LoadingSpec", "waiting": "WaitingSpec"}


@pytest.fixture
def device_times(tmp_path, monkeypatch) -> Path:
    """Where the processes of `probe_backend` record when they used the device."""
    made = tmp_path / "times"
    made.mkdir()
    monkeypatch.setenv("PROBE_PARTS", str(made))
    return made


@pytest.fixture
def plugin(tmp_path, monkeypatch) -> tuple[str, ...]:
    """Import paths with which the kinds of `probe_backend` are installed plug-ins."""
    places = {kind: f"probe_backend:{spec}" for kind, spec in _KINDS.items()}
    install_plugins(tmp_path, "probe", "tuner.backends", places)
    monkeypatch.syspath_prepend(tmp_path)
    return (str(tmp_path), str(Path(__file__).parent))
