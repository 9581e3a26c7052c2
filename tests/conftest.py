"""Databases to test on: a private PostgreSQL server where one is installed."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_names = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL, without a database name, of a server that lives as long as the test session."""
    binaries = _binaries()
    if binaries is None:
        if os.environ.get("CI") == "true":
            pytest.fail("PostgreSQL is not installed, and CI tests with it")
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    data, port = folder / "data", _free_port()
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    control = [f"{binaries / 'pg_ctl'}", "-D", f"{data}", "-w", "-l", f"{folder / 'log'}"]
    options = f"-p {port} -k {folder} -c fsync=off -c listen_addresses=127.0.0.1"
    try:
        _serve([f"{binaries / 'initdb'}", "-D", f"{data}", "-A", "trust", "-U", "tuner", "-N"])
        _serve([*control, "-o", options, "start"])
        yield f"postgresql+psycopg://tuner@127.0.0.1:{port}"
        _serve([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def new_postgres(postgres_server: str) -> Callable[[], str]:
    """Makes an empty database and returns its URL."""
    import psycopg

    def make() -> str:
        name = f"test{next(_names)}"
        admin = postgres_server.replace("+psycopg", "") + "/postgres"
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"{postgres_server}/{name}"

    return make


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders and (folders[-1] / "initdb").exists() else None


def _serve(command: list[str]) -> None:
    """Run as an unprivileged user: the server refuses to be root."""
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*user, *command], cwd="/", capture_output=False, stdout=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, f"{command[0]} failed"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
