"""What tests of capturing share."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.fixture
def kernels(monkeypatch):
    """The module of kernels, decorated for Triton's interpreter."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TUNER_DEVICE", "NVIDIA H200")
    monkeypatch.delenv("TUNER_TABLES", raising=False)
    sys.modules.pop("capture_kernels", None)
    yield importlib.import_module("capture_kernels")
    sys.modules.pop("capture_kernels", None)
