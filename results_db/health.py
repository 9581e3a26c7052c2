"""Size, contents and integrity checks of a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Float, Select, func, select, text
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Session

from results_db import convert, migrate
from results_db.columns import Json, Samples
from results_db.connections import Database, sqlite_path
from results_db.errors import StoreError
from results_db.models import (
    Base,
    Baseline,
    Calibration,
    Device,
    Export,
    Finalist,
    Measurement,
    Promotion,
    Regression,
    Run,
    ScheduleFire,
    Selection,
    Task,
    Toolchain,
    Trial,
    Workload,
)
from results_db.stored_records import Source, TrialRecord
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
        # What one step finds would end the next one.
        for find in (_unreadable, _orphans, _unlike):
            problems = problems or list(find(connection))
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


def _unreadable(connection: Connection) -> Iterator[str]:
    """Each value that the types of its column cannot read, as readers would."""
    for table in Base.metadata.sorted_tables:
        columns = list(table.columns)
        key = next(iter(table.primary_key.columns)).name
        readers = [_make_reader(column, connection.dialect) for column in columns]
        # The driver's own values: one bad value would hide its whole row, and those behind it.
        names = ", ".join(column.name for column in columns)
        for row in connection.execute(text(f"SELECT {names} FROM {table.name}")).mappings():
            for column, read in zip(columns, readers, strict=True):
                try:
                    read(row[column.name])
                except StoreError as error:
                    yield f"{table.name} {row[key]}: {column.name}: {error.message}"
                except Exception as error:
                    yield f"{table.name} {row[key]}: {column.name}: {error}"


def _make_reader(column: Column[Any], dialect: Dialect) -> Callable[[Any], None]:
    kind = column.type.dialect_impl(dialect)
    # A floating point number is as its driver gives it, and PostgreSQL's asks for a type code here.
    process = None if isinstance(kind, Float) else kind.result_processor(dialect, None)
    expected: Any = object if isinstance(kind, Json | Samples) else column.type.python_type
    if expected is float:
        expected = (float, int)

    def read(value: Any) -> None:
        if value is None:
            return
        if isinstance(kind, Samples) and not isinstance(value, bytes | memoryview):
            raise TypeError(f"{value!r:.60} is no array of samples")
        found = process(value) if process else value
        if not isinstance(found, expected):
            raise TypeError(f"{value!r:.60} is no {column.type.python_type.__name__}")

    return read


def _unlike(connection: Connection) -> Iterator[str]:
    """Each row that is no record, and each digest that is not that of its row."""
    with Session(connection) as session:
        for model, read in _RECORDS.items():
            for row in session.execute(_select(model)):
                try:
                    wrong = _find_unlike(row[-1], read(row if model is Trial else row[0]))
                except Exception as error:
                    wrong = [f"{error}"]
                name = model.__tablename__
                yield from (f"{name} {row[-1].id}: {what}" for what in wrong)


def _select(model: type[Base]) -> Select[Any]:
    chosen = select(model)
    if model is Trial:
        chosen = select(*convert.TRIAL_ROW, Trial).select_from(Trial).outerjoin(Measurement)
    return chosen.execution_options(yield_per=_AT_ONCE)


def _find_unlike(row: Any, record: object) -> list[str]:
    """The digests of a row that differ from those of its record; reuse keys are as old as rows."""
    digests: Mapping[str, object] = record if isinstance(record, dict) else {}
    if isinstance(record, TrialRecord):
        digests = {"config_hash": convert.config_hash(record.config)}
    return [
        f"{name} is not that of its row" for name, of in digests.items() if getattr(row, name) != of
    ]


#: Each table whose rows are read as records, with the conversion of readers.
_RECORDS: Mapping[type[Base], Callable[[Any], object]] = {
    Device: convert.device_digests,
    Toolchain: convert.toolchain_digests,
    Workload: convert.workload_digests,
    Run: lambda row: convert.run_info(row, None),
    Selection: convert.selection_record,
    Baseline: convert.baseline_record,
    Finalist: convert.final_record,
    Task: convert.task_info,
    Trial: convert.trial_record,
    Calibration: convert.calibration_record,
    ScheduleFire: convert.fire,
    Export: convert.export_info,
    Promotion: convert.promotion_record,
    Regression: convert.regression_record,
}
#: Rows that are loaded at once.
_AT_ONCE = 500
