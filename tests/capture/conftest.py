"""What tests of capturing share."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.fixture
def interpreted(monkeypatch):
    """Imports modules of kernels, decorated for Triton's interpreter; forgets them afterwards."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TUNER_DEVICE", "NVIDIA H200")
    monkeypatch.delenv("TUNER_TABLES", raising=False)
    imported = []

    def load(name):
        sys.modules.pop(name, None)
        imported.append(name)
        return importlib.import_module(name)

    yield load
    for name in imported:
        sys.modules.pop(name, None)


@pytest.fixture
def kernels(interpreted):
    return interpreted("capture_kernels")


@pytest.fixture
def hazards(kernels, interpreted):
    """Kernels that need care when a call is made again."""
    return interpreted("hazard_kernels")
