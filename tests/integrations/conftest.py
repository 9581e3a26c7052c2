"""A database with one run."""

from __future__ import annotations

import pytest

from results_db import Store


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}", create=True) as opened:
        opened.begin_run("c", "ff", 0, {}, {})
        yield opened
