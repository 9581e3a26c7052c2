"""What tests of launching share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def library(tmp_path, monkeypatch):
    from table_library import Library

    from tuner import runtime

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TUNER_DEVICE", "NVIDIA H200")
    monkeypatch.delenv("TUNER_TABLES", raising=False)
    runtime.clear()
    yield Library(tmp_path)
    sys.modules.pop("table_library", None)


@pytest.fixture
def applied_library(tmp_path, monkeypatch):
    from applied_library import NAME, AppliedLibrary

    from tuner import runtime

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TUNER_DEVICE", "NVIDIA H200")
    monkeypatch.syspath_prepend(tmp_path)
    runtime.clear()
    library = AppliedLibrary(tmp_path)
    library.load()
    yield library
    for application in runtime.applications():
        application.remove()
    sys.modules.pop(NAME, None)
