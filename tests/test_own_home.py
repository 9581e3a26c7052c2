"""Tests have a home of their own, and a session that leaves traces in the user's fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import own_home
import pytest

CONFTEST = """
import own_home
def pytest_configure(config):
    config.pluginmanager.register(own_home.OwnHome())
"""
TEST = """
import os
from pathlib import Path
def test_it():
    assert Path.home() != Path(os.environ["{users}"])
    (Path{place} / ".ray").mkdir()
"""


@pytest.mark.parametrize(
    ("place", "code"), [(".home()", 0), (f'(os.environ["{own_home._USERS}"])', 1)]
)
def test_only_the_home_of_tests_is_written_to(tmp_path, place, code):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TEST.format(users=own_home._USERS, place=place))
    variables = {name: text for name, text in os.environ.items() if name != own_home._USERS}
    variables |= {"HOME": f"{home}", "PYTHONPATH": f"{Path(__file__).parent}"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{tmp_path}"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert (f"tests wrote outside their folders: {home / '.ray'}" in done.stdout) == bool(code)
