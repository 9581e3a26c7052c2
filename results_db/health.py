"""Size, contents and integrity checks of a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Float, Row, Select, Table, func, select, text
from sqlalchemy.engine import Dialect

from results_db import convert, migrate, query
from results_db.columns import Json, Samples
from results_db.connections import Database, sqlite_path
from results_db.errors import StoreError
from results_db.promotion_records import PromotionRecord, QuarantineRecord, RegressionRecord
from results_db.stored_records import (
    BaselineRecord,
    ExportInfo,
    FinalRecord,
    Fire,
    SelectionRecord,
    Source,
    TrialRecord,
)
from results_db.tables import (
    BASELINE,
    CALIBRATION,
    DEVICE,
    EXPORT,
    FINALIST,
    MEASUREMENT,
    METADATA,
    PROMOTION,
    QUARANTINE,
    REGRESSION,
    RUN,
    SCHEDULE_FIRE,
    SELECTION,
    TASK,
    TOOLCHAIN,
    TRIAL,
    WORKLOAD,
)
from search_spaces.records import Device, Status, Toolchain, Workload


def stats(database: Database) -> dict[str, Any]:
    """Rows per table, trials per status, size in bytes and schema revision."""
    with database.read() as connection:
        counts = {
            table.name: connection.scalar(select(func.count()).select_from(table))
            for table in METADATA.sorted_tables
        }
        by_status = select(TRIAL.c.status, func.count()).group_by(TRIAL.c.status)
        return {
            "revision": migrate.revision(connection, database.name),
            "head": migrate.head(),
            "file_bytes": _size(database, connection),
            "rows": dict(sorted(counts.items())),
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
    attempts = select(TRIAL.c.attempt_id)
    copies = select(TRIAL.c.id, TRIAL.c.copied_from).where(
        TRIAL.c.copied_from != "", TRIAL.c.copied_from.not_in(attempts)
    )
    timed = select(MEASUREMENT.c.trial_id)
    untimed = select(TRIAL.c.id).where(
        TRIAL.c.source == Source.MEASURED,
        TRIAL.c.status == Status.CORRECT,
        TRIAL.c.id.not_in(timed),
    )
    chosen = select(SELECTION.c.task_id)
    parts = {"baselines": BASELINE.c.task_id, "finals": FINALIST.c.task_id}
    open_ended = [
        f"task {task_id} has {what}, but no selection"
        for what, column in parts.items()
        for task_id in connection.scalars(
            select(TASK.c.id).where(TASK.c.id.in_(select(column)), TASK.c.id.not_in(chosen))
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
        select(func.min(MEASUREMENT.c.median_us))
        .join(TRIAL, MEASUREMENT.c.trial_id == TRIAL.c.id)
        .where(TRIAL.c.task_id == TASK.c.id, TRIAL.c.status == "correct")
        .scalar_subquery()
    )
    wrong = select(TASK.c.id).where(TASK.c.best_us.is_distinct_from(best))
    return [
        f"the best time of task {each} differs from that of its trials"
        for each in connection.scalars(wrong)
    ]


def _unreadable(connection: Connection) -> Iterator[str]:
    """Each value that the types of its column cannot read, as readers would."""
    for table in METADATA.sorted_tables:
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
    for table, (selected, read) in _READERS.items():
        for row in connection.execute(selected.execution_options(yield_per=_AT_ONCE)):
            try:
                wrong = _find_unlike(row, table, read(row))
            except Exception as error:
                wrong = [f"{error}"]
            number = row._mapping[table.c.id]
            yield from (f"{table.name} {number}: {what}" for what in wrong)


def _find_unlike(row: Row[Any], table: Table, record: object) -> list[str]:
    """The digests of a row that differ from those of its record; reuse keys are as old as rows."""
    values = _VALUES[type(record)](record) if type(record) in _VALUES else {}
    return [
        f"{name} is not that of its row"
        for name in values
        if name in _DIGESTS and row._mapping[table.c[name]] != values[name]
    ]


_DIGESTS = ("identity", "fingerprint", "key", "build_key", "config_hash")
#: What makes the columns, digests among them, of a record.
_VALUES: Mapping[type, Callable[[Any], Mapping[str, object]]] = {
    Device: convert.device_values,
    Toolchain: convert.toolchain_values,
    Workload: convert.workload_values,
    TrialRecord: convert.trial_values,
}


def _reader(table: Table, kind: Any) -> tuple[Select[Any], Callable[[Any], object]]:
    return select(table), convert.reader(kind, table)


#: Each table whose rows are read as records: how readers select and convert its rows.
_READERS: Mapping[Table, tuple[Select[Any], Callable[[Any], object]]] = {
    DEVICE: _reader(DEVICE, Device),
    TOOLCHAIN: _reader(TOOLCHAIN, Toolchain),
    WORKLOAD: (select(WORKLOAD), lambda row: convert.workload_of(row.dims, row.key)),
    RUN: (query.RUNS, convert.run_info),
    SELECTION: _reader(SELECTION, SelectionRecord),
    BASELINE: _reader(BASELINE, BaselineRecord),
    FINALIST: _reader(FINALIST, FinalRecord),
    TASK: (query.TASK_ROWS, convert.task_info),
    TRIAL: (query.TRIALS.add_columns(TRIAL.c.id, TRIAL.c.config_hash), convert.trial_record),
    CALIBRATION: (query.CALIBRATIONS, convert.calibration_record),
    SCHEDULE_FIRE: _reader(SCHEDULE_FIRE, Fire),
    EXPORT: _reader(EXPORT, ExportInfo),
    PROMOTION: _reader(PROMOTION, PromotionRecord),
    REGRESSION: _reader(REGRESSION, RegressionRecord),
    QUARANTINE: _reader(QUARANTINE, QuarantineRecord),
}
#: Rows that are loaded at once.
_AT_ONCE = 500
