"""Size, contents and integrity checks of a database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select, text

from results_db import migrate
from results_db.columns import unpack_samples
from results_db.connections import Database, sqlite_path
from results_db.errors import StoreError
from results_db.models import Base, Baseline, Finalist, Measurement, Selection, Task, Trial
from results_db.stored_records import Source
from search_spaces.records import Status


def stats(database: Database) -> dict[str, Any]:
    """Rows per table, trials per status, size in bytes and schema revision."""
    with database.read() as connection:
        rows = {
            table.name: connection.scalar(select(func.count()).select_from(table))
            for table in Base.metadata.sorted_tables
        }
        by_status = select(Trial.status, func.count()).group_by(Trial.status)
        return {
            "revision": migrate.revision(connection, database.name),
            "head": migrate.head(),
            "file_bytes": _size(database, connection),
            "rows": dict(sorted(rows.items())),
            "trials": {status: count for status, count in connection.execute(by_status)},
        }


def check(database: Database) -> list[str]:
    """One line per problem: damaged pages, dangling references, wrong revision, bad rows."""
    with database.read() as connection:
        problems = _damage(connection) if database.is_sqlite else []
        found, head = migrate.revision(connection, database.name), migrate.head()
        if found != head:
            problems.append(f"schema revision {found}, this program needs {head}")
        if not problems:
            problems += _orphans(connection) + _unreadable(connection)
        return problems


def _size(database: Database, connection: Connection) -> int:
    path = sqlite_path(database.url)
    if path is not None:
        files = (path, path.with_name(f"{path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())
    if database.is_sqlite:
        pages = text("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        return int(connection.scalar(pages) or 0)
    return int(connection.scalar(text("SELECT pg_database_size(current_database())")) or 0)


def _damage(connection: Connection) -> list[str]:
    pages = connection.scalars(text("PRAGMA integrity_check")).all()
    references = connection.execute(text("PRAGMA foreign_key_check")).all()
    return [f"integrity: {line}" for line in pages if line != "ok"] + [
        f"{row[0]} row {row[1]} refers to a {row[2]} that does not exist" for row in references
    ]


def _orphans(connection: Connection) -> list[str]:
    attempts = select(Trial.attempt_id)
    copies = select(Trial.id, Trial.copied_from).where(
        Trial.copied_from != "", Trial.copied_from.not_in(attempts)
    )
    timed = select(Measurement.trial_id)
    untimed = select(Trial.id).where(
        Trial.source == Source.MEASURED, Trial.status == Status.CORRECT, Trial.id.not_in(timed)
    )
    chosen = select(Selection.task_id)
    parts = {"baselines": Baseline.task_id, "finals": Finalist.task_id}
    open_ended = [
        f"task {task_id} has {what}, but no selection"
        for what, column in parts.items()
        for task_id in connection.scalars(
            select(Task.id).where(Task.id.in_(select(column)), Task.id.not_in(chosen))
        )
    ]
    return (
        [
            f"trial {row[0]} was copied from the unknown attempt {row[1]!r}"
            for row in connection.execute(copies)
        ]
        + [f"trial {row[0]} has no measurement" for row in connection.execute(untimed)]
        + open_ended
        + _wrong_bests(connection)
    )


def _wrong_bests(connection: Connection) -> list[str]:
    best = (
        select(func.min(Measurement.median_us))
        .join(Trial, Measurement.trial_id == Trial.id)
        .where(Trial.task_id == Task.id, Trial.status == "correct")
        .scalar_subquery()
    )
    wrong = select(Task.id).where(Task.best_us.is_distinct_from(best))
    return [
        f"the best time of task {each} differs from that of its trials"
        for each in connection.scalars(wrong)
    ]


def _unreadable(connection: Connection) -> list[str]:
    problems = []
    for table in ("measurement", "baseline", "finalist", "selection"):
        columns = Base.metadata.tables[table].c
        names = [name for name in sorted(columns.keys()) if name.endswith("samples_us")]
        key = columns.trial_id if table == "measurement" else columns.id
        for name in names:
            query = text(f"SELECT {key.name}, {name} FROM {table} WHERE {name} IS NOT NULL")
            for row_id, blob in connection.execute(query):
                try:
                    unpack_samples(bytes(blob))
                except StoreError as error:
                    problems.append(f"{table} {row_id}: {error.message}")
    return problems
