"""Connections and transactions on SQLite and PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import StaticPool

from results_db.errors import (
    FIRST_RUN,
    NothingStoredError,
    StoreError,
    StoreMovedError,
    translate_errors,
)
from results_db.masking import mask_passwords
from search_spaces.atomic_file import draft_of


# -- detect that an open SQLite file was deleted or replaced, and rescue its content ---------------
# A process with an open deleted file continues to write to it. The content is lost when the process
# ends.
class SqliteFile:
    """A database file and its write-ahead log, identified by their inodes at the first check."""

    def __init__(self, path: Path) -> None:
        # The working directory may change while the connection stays open.
        self.path = path.absolute()
        self._seen: dict[Path, tuple[int, int]] = {}

    def check(self) -> None:
        """Raise `StoreMovedError` if the path no longer leads to the open file."""
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            now = _inode(path)
            if path in self._seen and now != self._seen[path]:
                what = "was deleted" if now is None else "was replaced by another file"
                raise StoreMovedError(
                    f"{path} {what} while it was in use", "leave it in place during a run"
                )
            if now is not None:
                self._seen[path] = now

    def save(self, connection: sqlite3.Connection) -> Path:
        """Copy the database of an open connection to a new file in the same folder."""
        number, target = 0, self.path.with_name(f"{self.path.name}.rescued")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while target.exists():
            number += 1
            target = self.path.with_name(f"{self.path.name}.{number}.rescued")
        with (
            translate_errors(f"{target}"),
            draft_of(target) as partial,
            closing(sqlite3.connect(partial)) as copy,
        ):
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        return target


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# -- connections and transactions on SQLite and PostgreSQL -----------------------------------------
BUSY_TIMEOUT_S = 30.0
#: Timeout for a caller that retries by itself, so that it can handle signals between attempts.
_SHORT_BUSY_S = 2.0
_WRITE = "results_db_write"
_POSTGRES = ("postgresql", "postgresql+psycopg", "postgres")


class Database:
    """One database and its transactions. All errors are raised as `StoreError`.

    answer_s: seconds to wait for a server, or for another process that holds the write lock.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool,
        foreign_keys: bool = True,
        answer_s: float | None = None,
    ) -> None:
        self.url = parse_url(url)
        self.name = describe(self.url)
        path = sqlite_path(self.url)
        if path is not None:
            _check_path(path, self.name, create)
        self.file = None if path is None else SqliteFile(path)
        #: Whether the file, or a place beside it for the write-ahead log, cannot be written.
        self.read_only = path is not None and path.exists() and not _is_writable(path)
        with translate_errors(self.name):
            if self.url.drivername.startswith("postgresql"):
                self.engine = _postgres(self.url, self.name, answer_s)
            else:
                busy_s = BUSY_TIMEOUT_S if answer_s is None else min(answer_s, _SHORT_BUSY_S)
                self.engine = _sqlite(self.url, foreign_keys, busy_s, self.read_only)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view. Does not wait for a writer."""
        with translate_errors(self.name), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction. It is committed on exit and rolled back after an error."""
        with translate_errors(self.name), self.engine.connect() as connection:
            connection = connection.execution_options(**{_WRITE: True})
            with connection.begin():
                yield connection

    def check_place(self) -> None:
        """Raise `StoreMovedError` if the file was deleted or replaced since the last check."""
        if self.file is not None:
            self.file.check()

    def rescue(self) -> Path | None:
        """Copy a deleted file from the open connection; None for a database without a file."""
        if self.file is None:
            return None
        with self.read() as connection:
            driver: Any = connection.connection.driver_connection
            return self.file.save(driver)

    def close(self) -> None:
        self.engine.dispose()


def parse_url(text: str) -> URL:
    """The URL of a supported database. Raises `StoreError` for others."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise StoreError(f"{mask_passwords(text)!r} is not a database URL", _FORMS) from None
    if url.drivername in _POSTGRES:
        _refuse_ambiguous(text)
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        return url
    raise StoreError(f"{mask_passwords(url.drivername)!r} databases are not supported", _FORMS)


def _refuse_ambiguous(text: str) -> None:
    """Refuse a URL of which a driver would take, and show, a part of the password as host or name.

    A raw `@` ends the password; parameters come after `?`.
    """
    rest = text.partition("://")[2]
    place = rest.partition("?")[0]
    has_password = ":" in rest.partition("@")[0]
    if place.count("@") > 1 or (has_password and rest.count("@") > 1):
        raise StoreError(
            f"{mask_passwords(text)!r}: an `@` in a user's name or password is not escaped",
            "write it as %40",
        )
    if ";" in place.rpartition("@")[2]:
        raise StoreError(
            f"{mask_passwords(text)!r}: `;` separates no parameters of a database URL",
            "write them after the name, as ?sslmode=require&connect_timeout=10",
        )


_FORMS = "write sqlite:///results/tuner.db or postgresql+psycopg://user:password@host/name"


def describe(url: URL) -> str:
    """The name of the database in messages: the file's path, or the URL without passwords."""
    path = sqlite_path(url)
    return (
        f"{path}" if path is not None else mask_passwords(url.render_as_string(hide_password=False))
    )


def sqlite_path(url: URL) -> Path | None:
    """The file of an SQLite URL; None for an in-memory database and for servers."""
    if not url.drivername.startswith("sqlite") or url.database in (None, "", ":memory:"):
        return None
    return Path(f"{url.database}")


def _check_path(path: Path, name: str, create: bool) -> None:
    with translate_errors(name):
        if path.is_dir():
            raise StoreError(f"{name}: is a folder, not a database", "name a file in database.url")
        if path.exists():
            return
        if not create:
            raise NothingStoredError(f"{name}: no runs here, there is no database", FIRST_RUN)
        path.parent.mkdir(parents=True, exist_ok=True)


def _postgres(url: URL, name: str, answer_s: float | None) -> Engine:
    try:
        from results_db import postgres

        return postgres.engine(url, answer_s)
    except ImportError as error:
        raise StoreError(
            f"{name}: PostgreSQL needs the package psycopg ({error})",
            'pip install "kernel-tuning-farm[postgres]"',
        ) from error


def _sqlite(url: URL, foreign_keys: bool, busy_s: float, read_only: bool) -> Engine:
    options: dict[str, Any] = {}
    path = sqlite_path(url)
    if path is None:
        options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    elif read_only:
        options = {"creator": lambda: _opened_read_only(path.absolute())}
    engine = create_engine(url, **options)
    _tune_sqlite(engine, foreign_keys, busy_s, write_ahead=not read_only)
    return engine


def _is_writable(path: Path) -> bool:
    """Whether the process may write a file and its folder."""
    effective = os.access in os.supports_effective_ids
    places = (path, path.absolute().parent)
    return all(os.access(place, os.W_OK, effective_ids=effective) for place in places)


def _opened_read_only(path: Path) -> sqlite3.Connection:
    """A connection to a file where nothing can be written.

    SQLite reads a write-ahead log through an index in a file beside it, which it cannot create
    here. Without a log, and therefore without a writer, the file alone is read.
    """
    address = f"{path.as_uri()}?mode=ro"
    try:
        return _open_and_probe(address)
    except sqlite3.OperationalError as error:
        # Which one it is depends on what forbids the index: the folder or the mount.
        if not any(words in f"{error}" for words in ("unable to open", "readonly database")):
            raise
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(
            f"{path}: its write-ahead log cannot be read in a read-only place",
            f"copy {path.name} and {log.name} to a writable folder, and set database.url to it",
        )
    return _open_and_probe(f"{address}&immutable=1")


def _open_and_probe(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _tune_sqlite(engine: Engine, foreign_keys: bool, busy_s: float, *, write_ahead: bool) -> None:
    """Set the per-connection options of SQLite, and begin transactions explicitly.

    A transaction that reads and then writes fails at once if another process wrote in between. A
    writing transaction therefore takes the write lock when it begins.
    """

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(busy_s * 1000)}")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
        connection.execute("PRAGMA synchronous = NORMAL")
        if write_ahead and not _is_foreign(connection):
            _write_ahead(connection, busy_s)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _is_foreign(connection: sqlite3.Connection) -> bool:
    """Whether the tables are another program's, whose file is refused and stays as it is."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return bool(found) and ("alembic_version",) not in found


def _write_ahead(connection: sqlite3.Connection, busy_s: float) -> None:
    """Switch to write-ahead logging. The busy timeout does not cover that switch."""
    deadline = time.monotonic() + busy_s
    while connection.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in f"{error}" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
