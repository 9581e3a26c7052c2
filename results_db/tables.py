"""The tables. The columns of a record follow from its fields.

docs/database.md describes every column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import datetime
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    UniqueConstraint,
    and_,
    literal_column,
    text,
)

from results_db import stored_records as records
from results_db.columns import AnyText, Json, Samples, UtcDateTime
from results_db.promotion_records import (
    PromotionOutcome,
    PromotionRecord,
    QuarantineRecord,
    RegressionRecord,
    RegressionState,
)
from search_spaces.records import Device, Status, Toolchain
from tuner.base.log_ratio import LogRatio
from workers.job_records import Calibration, Mode

_Column: TypeAlias = "Column[Any]"

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_TYPES: Mapping[Any, Any] = {
    bool: Boolean,
    int: BigInteger,
    float: Double,
    datetime: UtcDateTime,
    tuple[float, ...]: Samples,
}
#: The columns of a `LogRatio`.
RATIO = ("log_ratio", "log_ratio_low", "log_ratio_high")
_NOTHING: Mapping[str, str] = MappingProxyType({})


class StoredField(NamedTuple):
    """How a field of a record is stored."""

    field: str
    column: str
    #: Its type, without None.
    kind: Any
    nullable: bool


@cache
def stored_fields(record: type, part: str = "") -> tuple[StoredField, ...]:
    """The fields that one table keeps of a record.

    part: the table that the fields' metadata name; by default the fields that name none.
    """
    hints = get_type_hints(record)
    return tuple(
        _describe(field.name, field.metadata.get("column", field.name), hints[field.name])
        for field in fields(record)
        if field.metadata.get("table", "") == part
    )


def _describe(name: str, column: str, hint: Any) -> StoredField:
    optional = NoneType in get_args(hint)
    kind = get_args(hint)[0] if optional else hint
    return StoredField(name, column, kind, optional or kind == tuple[float, ...])


def columns_of(
    record: type,
    part: str = "",
    *,
    without: Collection[str] = (),
    defaults: Mapping[str, str] = _NOTHING,
) -> list[_Column]:
    """New columns for the fields of a record, see `stored_fields`.

    without: fields that are stored elsewhere. defaults: what the server writes, as SQL.
    """
    columns: list[_Column] = []
    for field in stored_fields(record, part):
        if field.kind is LogRatio:
            columns += [Column(name, Double, nullable=True) for name in RATIO]
        elif field.field not in without:
            default = defaults.get(field.field)
            columns.append(_column(field.column, _type_of(field.kind), field.nullable, default))
    return columns


def _type_of(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, str):
        return AnyText
    if kind in _TYPES:
        return _TYPES[kind]
    return Json(list if get_origin(kind) is tuple else dict)


def _column(
    name: str, kind: Any, nullable: bool = False, default: str | None = None, **options: Any
) -> _Column:
    value = None if default is None else text(default)
    return Column(name, kind, nullable=nullable, server_default=value, **options)


def _id() -> _Column:
    # On SQLite only an INTEGER primary key is assigned automatically.
    return Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)


def _reference(other: str, name: str = "", **options: Any) -> _Column:
    """A column with the id of a row of another table."""
    options = {"nullable": False} | options
    return Column(name or f"{other}_id", ForeignKey(f"{other}.id"), **options)


def _texts(*names: str, **options: Any) -> list[_Column]:
    return [_column(name, AnyText, **options) for name in names]


def _index_some(name: str, where: str, *columns: str) -> Index:
    """An index of the rows of which a condition holds."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


def _one_of(column: str, *words: str) -> CheckConstraint:
    """A CHECK constraint: the column contains one of these words."""
    listed = ", ".join(f"'{word}'" for word in words)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _table(name: str, *items: Any) -> Table:
    return Table(name, METADATA, *items)


DEVICE = _table(
    "device",
    _id(),
    *_texts("identity"),
    *_texts("fingerprint", index=True),
    *columns_of(Device),
    UniqueConstraint("identity"),
)
TOOLCHAIN = _table(
    "toolchain",
    _id(),
    *_texts("key", "build_key"),
    *columns_of(Toolchain, defaults={"variables": "''"}),
    UniqueConstraint("key"),
)
KERNEL = _table(
    "kernel",
    _id(),
    *_texts("name", "launch_hash"),
    _column("kernel_hashes", Json(list), default="'[]'"),
    *_texts("space_hash"),
    UniqueConstraint("name", "launch_hash", "space_hash"),
)
WORKLOAD = _table(
    "workload",
    _id(),
    *_texts("identity", "key"),
    _column("dims", Json(dict)),
    UniqueConstraint("identity"),
)
CAMPAIGN = _table("campaign", _id(), *_texts("name"), UniqueConstraint("name"))
RUN = _table(
    "run",
    _id(),
    _reference("campaign", index=True),
    *columns_of(
        records.RunInfo,
        without=("run_id", "campaign", "silent_s"),
        defaults={"lease": "''", "process": "''"},
    ),
    _column("spec", Json(dict)),
    UniqueConstraint("tag"),
    _one_of("status", *records.RunStatus),
)
TIMELINE = _table(
    "timeline",
    _reference("run", primary_key=True),
    _column("spans", Json(dict)),
    _column("recorded_at", UtcDateTime),
)
TASK = _table(
    "task",
    _id(),
    _reference("run"),
    _reference("kernel", index=True),
    _reference("workload"),
    _reference("device"),
    _reference("toolchain"),
    *_texts("protocol"),
    *_texts("reuse_key", index=True),
    *columns_of(
        records.TaskInfo,
        without=("task_id", "run_id", "key", "selection", "baselines", "finals", "place"),
    ),
    _column("best_us", Double, nullable=True),
    _column("place", Json(dict), default="'{}'"),
    UniqueConstraint("run_id", "kernel_id", "reuse_key"),
)
TRIAL = _table(
    "trial",
    _id(),
    _reference("task"),
    *_texts("config_hash"),
    *columns_of(records.TrialRecord),
    _column("recorded_at", UtcDateTime),
    UniqueConstraint("attempt_id"),
    UniqueConstraint("task_id", "config_hash"),
    UniqueConstraint("task_id", "number"),
    Index(None, "task_id", "status"),
    _index_some("ix_trial_measured", "source <> 'reused'", "task_id", "source", "status"),
    _index_some("ix_trial_copied", "copied_from <> ''", "copied_from"),
    _one_of("status", *Status),
    _one_of("source", *records.Source),
)
#: Trials with results of their own, and those with others'. A query that says so in these words is
#: served by their index.
MEASURED = and_(
    TRIAL.c.source != literal_column("'reused'"),
    TRIAL.c.source.in_([each for each in records.Source if each != records.Source.REUSED]),
)
COPIED = TRIAL.c.copied_from != literal_column("''")
MEASUREMENT = _table(
    "measurement",
    _reference("trial", primary_key=True),
    *columns_of(records.TrialRecord, "measurement", defaults={"timing_s": "0"}),
)
BASELINE = _table(
    "baseline",
    _id(),
    _reference("task"),
    _column("position", BigInteger),
    *columns_of(records.BaselineRecord),
    UniqueConstraint("task_id", "name"),
    _one_of("status", *Status),
)
FINALIST = _table(
    "finalist",
    _id(),
    _reference("task"),
    _column("position", BigInteger),
    *columns_of(records.FinalRecord),
    UniqueConstraint("task_id", "position"),
    _one_of("stage", Mode.RACE, Mode.CONFIRM),
    _one_of("status", *Status),
)
SELECTION = _table(
    "selection",
    _id(),
    _reference("task"),
    *columns_of(records.SelectionRecord),
    _column("recorded_at", UtcDateTime),
    UniqueConstraint("task_id"),
)
CALIBRATION = _table(
    "calibration",
    _id(),
    *_texts("identity"),
    _reference("device", index=True),
    _reference("toolchain"),
    *columns_of(records.CalibrationRecord, without=("device", "toolchain", "calibration")),
    *columns_of(Calibration),
    UniqueConstraint("identity"),
)
SCHEDULE_FIRE = _table(
    "schedule_fire",
    _id(),
    *columns_of(records.Fire, without=("run_id",), defaults={"process": "''", "attempts": "1"}),
    _reference("run", nullable=True),
    UniqueConstraint("schedule", "instant"),
    _one_of("state", *records.FireState),
)
EXPORT = _table(
    "export",
    _id(),
    *columns_of(records.ExportInfo, without=("path", "run_id")),
    *_texts("path", index=True),
    _reference("run", nullable=True),
)
PROMOTION = _table(
    "promotion",
    _id(),
    _reference("run", index=True),
    *columns_of(PromotionRecord, without=("run_id", "decided_at")),
    _column("decided_at", UtcDateTime),
    _one_of("outcome", *PromotionOutcome),
)
REGRESSION = _table(
    "regression",
    _id(),
    _reference("task"),
    _reference("task", "former_task_id"),
    _reference("run", "found_run_id"),
    *columns_of(RegressionRecord, without=("id", "task_id", "former_task_id", "found_run_id")),
    UniqueConstraint("task_id"),
    _one_of("state", *RegressionState),
)
QUARANTINE = _table(
    "quarantine",
    _id(),
    *columns_of(QuarantineRecord, without=("id",)),
)
#: Tasks with what identifies them, for `select_from`.
TASKS = TASK.join(KERNEL).join(WORKLOAD).join(DEVICE).join(TOOLCHAIN)
