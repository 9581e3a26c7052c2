"""A private PostgreSQL server where one is installed."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_names = itertools.count()


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A private server. url: without a database name."""

    url: str
    control: Sequence[str]
    options: str

    def new_database(self) -> str:
        """Make an empty database; its URL."""
        import psycopg

        name = f"test{next(_names)}"
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"{self.url}/{name}"

    @property
    def admin(self) -> str:
        return self.url.replace("+psycopg", "") + "/postgres"

    @contextmanager
    def replicate(self) -> Iterator[PostgresServer]:
        """A standby that has every commit before it is answered; `promote` makes it the server."""
        binaries, folder = Path(self.control[0]).parent, Path(tempfile.mkdtemp(prefix="pg"))
        data, port = folder / "data", _free_port()
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        control = [self.control[0], "-D", f"{data}", *self.control[3:-1], f"{folder / 'log'}"]
        options = f"-p {port} -k {folder} -c fsync=off -c listen_addresses=127.0.0.1"
        server = PostgresServer(f"postgresql+psycopg://tuner@127.0.0.1:{port}", control, options)
        source = self.url.replace("+psycopg", "")
        copy = ["-d", source, "-D", f"{data}", "--write-recovery-conf", "--checkpoint=fast"]
        try:
            _serve([f"{binaries / 'pg_basebackup'}", *copy])
            server.start()
            self._wait_for_standbys("'*'")
            yield server
            server.stop()
        finally:
            self._wait_for_standbys("''")
            shutil.rmtree(folder, ignore_errors=True)

    def _wait_for_standbys(self, names: str) -> None:
        """Answer commits once these have them too."""
        import psycopg

        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = {names}".encode())
            connection.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Let a standby take writes."""
        _serve([*self.control, "promote"])

    def start(self) -> None:
        _serve([*self.control, "-o", self.options, "start"])

    def stop(self) -> None:
        """As a crash does: no connection is closed, nothing is flushed."""
        _serve([*self.control, "-m", "immediate", "stop"])


@contextmanager
def private_postgres() -> Iterator[PostgresServer]:
    """A server that lives as long as the block."""
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
    server = PostgresServer(f"postgresql+psycopg://tuner@127.0.0.1:{port}", control, options)
    try:
        _serve([f"{binaries / 'initdb'}", "-D", f"{data}", "-A", "trust", "-U", "tuner", "-N"])
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
