"""Schema revisions: read a database's revision, create the schema, run migrations.

Revisions are numbers of four digits, so they can be compared without loading alembic.
"""

from __future__ import annotations

import io
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from results_db.connections import Database, sqlite_path
from results_db.errors import FIRST_RUN, NothingStoredError, StoreError, translate_errors
from results_db.tables import METADATA
from search_spaces.atomic_file import draft_of
from tuner.base.tracing import trace_calls

if TYPE_CHECKING:
    from alembic.config import Config as AlembicConfig

_log = logging.getLogger(__name__)

SCRIPTS = Path(__file__).parent / "migrations"
#: The last git revision that upgrades databases from before the first schema revision.
UPGRADES_OLDER = "6a0ff206"
_LOCK = 0x74756E65
#: The table in which alembic keeps the revision, as alembic writes it.
_VERSION = (
    "CREATE TABLE alembic_version (\n\tversion_num VARCHAR(32) NOT NULL, \n"
    "\tCONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)\n)"
)


def revisions(scripts: Path = SCRIPTS) -> list[str]:
    """All revisions, oldest first."""
    return sorted(path.name[:4] for path in (scripts / "versions").glob("[0-9]*.py"))


def head(scripts: Path = SCRIPTS) -> str:
    """The revision that this program needs."""
    return revisions(scripts)[-1]


def current(url: str) -> str:
    """The revision of a database; empty text for a database without a schema."""
    database = Database(url, create=False)
    try:
        with database.read() as connection:
            return revision(connection, database.name)
    finally:
        database.close()


def upgrade(url: str, *, scripts: Path = SCRIPTS) -> tuple[str, str]:
    """Migrate a database to the newest schema; returns the revisions before and after.

    Creates a missing schema. An SQLite file is first copied to `NAME.REVISION.bak` in its folder;
    only a complete copy gets that name. scripts: the folder of migrations, by default the
    program's own.
    """
    # A migration on SQLite drops and rebuilds tables, which enforced foreign keys would prevent.
    database = Database(url, create=True, foreign_keys=False)
    try:
        with database.read() as connection:
            before = revision(connection, database.name)
        after = head(scripts)
        if before:
            _refuse_unknown(before, revisions(scripts), database.name)
            if before != after:
                _back_up(database, before)
        with database.write() as connection:
            migrate(connection, database.name, scripts)
        if before != after:
            _log.info("%s: migrated from revision %s to %s", database.name, before or "0", after)
        return before, after
    finally:
        database.close()


def ensure(database: Database, *, create: bool) -> None:
    """Check that a database has this program's schema. An empty database gets it if `create`."""
    with database.read() as connection:
        found = revision(connection, database.name)
    if not found:
        if not create:
            raise NothingStoredError(
                f"{database.name}: no runs here, the database is empty", FIRST_RUN
            )
        with database.write() as connection:
            _create(connection, database.name)
        _log.info("%s: created the schema, revision %s", database.name, head())
        return
    refuse_other(found, database.name)


def refuse_other(found: str, name: str) -> None:
    """Raise `StoreError` with the remedy for a revision that is not this program's."""
    _refuse_unknown(found, revisions(), name)
    if found != head():
        raise StoreError(
            f"{name}: the schema {found} is older than this program's, {head()}",
            "run `tuner db upgrade`",
        )


def _create(connection: Connection, name: str) -> None:
    """Create the schema, unless another process has done so since the database was found empty."""
    if connection.dialect.name != "sqlite":
        migrate(connection, name, SCRIPTS)
    elif not revision(connection, name):
        # These are the same tables, without the time that loading alembic takes.
        METADATA.create_all(connection, checkfirst=False)
        connection.exec_driver_sql(_VERSION)
        connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": head()})


def revision(connection: Connection, name: str) -> str:
    """The revision of an open database; empty text for a database without tables."""
    tables = inspect(connection).get_table_names()
    if "alembic_version" not in tables:
        if tables:
            raise StoreError(
                f"{name}: contains other tables ({', '.join(sorted(tables)[:3])}), not results",
                "set database.url to an empty or a new database",
            )
        return ""
    found = connection.scalars(text("SELECT version_num FROM alembic_version")).all()
    if len(found) != 1:
        raise StoreError(
            f"{name}: has {len(found)} schema revisions instead of one",
            "restore the database from a backup",
        )
    return f"{found[0]}"


@trace_calls("migrate the schema", "database")
def migrate(connection: Connection, name: str, scripts: Path) -> None:
    """Run the missing migrations in the caller's transaction. Concurrent callers are safe."""
    from alembic import command
    from alembic.util import CommandError

    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    try:
        command.upgrade(alembic_config(connection, scripts), "head")
    except CommandError as error:
        raise StoreError(f"{name}: {error}", "restore the database from a backup") from error
    if connection.dialect.name == "sqlite":
        broken = connection.execute(text("PRAGMA foreign_key_check")).all()
        if broken:
            raise StoreError(
                f"{name}: {len(broken)} rows would refer to rows that do not exist",
                "the database is unchanged; run `tuner db check`",
            )


def alembic_config(connection: Connection, scripts: Path = SCRIPTS) -> AlembicConfig:
    """A configuration of alembic on an open connection, without a file."""
    from alembic.config import Config

    # The default is the stdout at the time when alembic was imported.
    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", f"{scripts}".replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _refuse_unknown(found: str, known: list[str], name: str) -> None:
    if found > known[-1]:
        raise StoreError(
            f"{name}: the schema {found} is newer than this program's, {known[-1]}",
            "install a newer tuner, or set database.url to another database",
        )
    if found < known[0]:
        raise StoreError(
            f"{name}: the schema {found} is older than {known[0]}, the first of this program",
            f"run `tuner db upgrade` of the git revision {UPGRADES_OLDER} on it",
        )


def _back_up(database: Database, before: str) -> None:
    path = sqlite_path(database.url)
    if path is None:
        return
    number, target = 0, path.with_name(f"{path.name}.{before}.bak")
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.{before}.{number}.bak")
    try:
        # Flushed and renamed after both connections are closed.
        with (
            draft_of(target) as partial,
            translate_errors(f"{target}"),
            closing(sqlite3.connect(path)) as source,
            closing(sqlite3.connect(partial)) as copy,
        ):
            source.backup(copy)
        _log.info("copied %s to %s before its migration", path, target)
    except OSError as error:
        raise StoreError(
            f"{target}: the backup cannot be written: {error.strerror or error}",
            "correct that, then rerun `tuner db upgrade`; the database is unchanged",
        ) from error
