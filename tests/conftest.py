"""Databases to test on (a private PostgreSQL server where one is installed), a browser, and clean
imports."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import own_home
import pytest

# Triton imports Gluon at the first launch. If that is an interpreted one, Gluon keeps functions
# that the interpreter has replaced for the launch, and no Gluon compiles in that process any more.
import triton.experimental.gluon  # noqa: F401
from full_run import FullRun, in_turn, turn, whole  # noqa: F401 - fixtures of all tests
from hypothesis import settings
from postgres_server import PostgresServer, private_postgres

from search_spaces.absent_device import module_sets

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# No outcome hangs on a time: a loaded machine is no failure.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
# A shell starts what runs in its background with SIGINT ignored, and so would be all children here.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(own_home.OwnHome(), "own home")
    config.pluginmanager.register(FullRun(config), "full run")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what is marked `gpu` where there is none."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="module", autouse=True)
def _no_compiling_process_is_left() -> Iterator[None]:
    """What captured calls are compiled by ends with the file: other files count processes."""
    yield
    lowering = sys.modules.get("tuner.capturing.lowering")
    if lowering is not None:
        lowering.end_server()


@pytest.fixture
def forgotten_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forgets afterwards which modules the test has imported from its own folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    folder = f"{tmp_path}/"
    loaded = [
        name
        for name, module in sys.modules.items()
        if (getattr(module, "__file__", None) or "").startswith(folder)
    ]
    module_sets.forget(loaded)
    for name in loaded:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window. CI fails without one."""
    if not os.path.exists(CHROMIUM) and os.environ.get("CI") != "true":
        pytest.skip("there is no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that lives as long as the test session."""
    with private_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(postgres: PostgresServer) -> str:
    """Its URL, without a database name."""
    return postgres.url


@pytest.fixture(scope="session")
def new_postgres(postgres: PostgresServer) -> Callable[[], str]:
    """Makes an empty database and returns its URL."""
    return postgres.new_database
