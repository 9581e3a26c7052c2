"""Connections: which databases are spoken to, and how a transaction begins and ends."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import StaticPool

from results_db.errors import NothingStoredError, StoreError, translated

BUSY_TIMEOUT_S = 30
_WRITE = "results_db_write"
_POSTGRES = ("postgresql", "postgresql+psycopg", "postgres")


class Database:
    """One database and its transactions; every error that leaves them is a `StoreError`."""

    def __init__(self, url: str, *, create: bool, foreign_keys: bool = True) -> None:
        self.url = parse_url(url)
        self.name = describe(self.url)
        path = sqlite_path(self.url)
        if path is not None:
            _check_path(path, self.name, create)
        with translated(self.name):
            self.engine = _engine(self.url, self.name, foreign_keys)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view; never waits for a writer."""
        with translated(self.name), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction: committed as a whole on leaving, or not at all."""
        with translated(self.name), self.engine.connect() as connection:
            connection = connection.execution_options(**{_WRITE: True})
            with connection.begin():
                yield connection

    def close(self) -> None:
        self.engine.dispose()


def parse_url(text: str) -> URL:
    """The URL of a database this program can use; raises `StoreError` for others."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise StoreError(f"{text!r} is not a database URL", _FORMS) from None
    if url.drivername in _POSTGRES:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        return url
    raise StoreError(f"{url.drivername!r} databases are not supported", _FORMS)


_FORMS = "write sqlite:///results/tuner.db or postgresql+psycopg://user:password@host/name"


def describe(url: URL) -> str:
    """The database as messages name it: the file's path, or the URL without its password."""
    path = sqlite_path(url)
    return f"{path}" if path is not None else url.render_as_string(hide_password=True)


def sqlite_path(url: URL) -> Path | None:
    """The file of an SQLite URL; None for SQLite in memory and for servers."""
    if not url.drivername.startswith("sqlite") or url.database in (None, "", ":memory:"):
        return None
    return Path(f"{url.database}")


def _check_path(path: Path, name: str, create: bool) -> None:
    with translated(name):
        if path.is_dir():
            raise StoreError(f"{name}: is a folder, not a database", "name a file in database.url")
        if path.exists():
            return
        if not create:
            raise NothingStoredError(
                f"{name}: there is no database", "run a campaign first, or check database.url"
            )
        path.parent.mkdir(parents=True, exist_ok=True)


def _engine(url: URL, name: str, foreign_keys: bool) -> Engine:
    options: dict[str, Any] = {}
    if url.drivername.startswith("postgresql"):
        options = {"connect_args": {"connect_timeout": 10}, "pool_pre_ping": True}
    elif sqlite_path(url) is None:
        options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    try:
        engine = create_engine(url, **options)
    except ImportError as error:
        raise StoreError(
            f"{name}: PostgreSQL needs the package psycopg ({error})",
            'pip install "tuner[postgres]"',
        ) from error
    if engine.dialect.name == "sqlite":
        _tune_sqlite(engine, foreign_keys)
    return engine


def _tune_sqlite(engine: Engine, foreign_keys: bool) -> None:
    """Set what SQLite does not keep in the file, and begin transactions ourselves.

    A transaction that reads first and writes later fails without waiting when another process
    wrote meanwhile, so a writing one takes the write lock at once.
    """

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
        connection.execute("PRAGMA synchronous = NORMAL")
        _write_ahead(connection)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; the busy handler does not cover that switch."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in f"{error}" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
