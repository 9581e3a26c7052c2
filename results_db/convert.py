"""Convert records to column values, and rows to records, without loss.

Both directions follow the fields of a record, see `tables.stored_fields`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from results_db.columns import json_text
from results_db.errors import StoreError
from results_db.stored_records import (
    BaselineRecord,
    CalibrationRecord,
    FinalRecord,
    RunInfo,
    SelectionRecord,
    Source,
    TaskInfo,
    TaskKey,
    TrialRecord,
)
from results_db.tables import (
    CALIBRATION,
    CAMPAIGN,
    DEVICE,
    KERNEL,
    MEASUREMENT,
    RATIO,
    RUN,
    SELECTION,
    TASK,
    TOOLCHAIN,
    TRIAL,
    WORKLOAD,
    stored_fields,
)
from search_spaces.records import Config, Device, Status, Toolchain, Value, Workload, digest
from search_spaces.size_range import RangePlace
from tuner.base.log_ratio import LogRatio
from workers.job_records import Calibration

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from sqlalchemy import Row, Table

_Record = TypeVar("_Record", bound="DataclassInstance")
_BUILT = stored_fields(TrialRecord)
_TRIAL = (*_BUILT, *stored_fields(TrialRecord, "measurement"))
#: The columns that `trial_record` reads: those of `trial`, then those of `measurement`.
TRIAL_ROW = (
    *(TRIAL.c[field.column] for field in _BUILT),
    *(MEASUREMENT.c[field.column] for field in _TRIAL[len(_BUILT) :]),
    *(MEASUREMENT.c[name] for name in (*RATIO[1:], "trial_id")),
)


def values_of(record: DataclassInstance, part: str = "") -> dict[str, Any]:
    """The columns of a record's fields that one table keeps. Raises `StoreError` for NaN."""
    values: dict[str, Any] = {}
    for field in stored_fields(type(record), part):
        value = getattr(record, field.field)
        if field.kind is LogRatio:
            values |= ratio_columns(value)
        else:
            values[field.column] = _plain(value)
    _refuse_nan(values)
    return values


def list_parts(task_id: int, records: Sequence[DataclassInstance]) -> list[dict[str, Any]]:
    """The columns of records that a task has in an order."""
    return [
        values_of(record) | {"task_id": task_id, "position": position}
        for position, record in enumerate(records)
    ]


def record_of(kind: type[_Record], row: Row[Any], table: Table, **own: Any) -> _Record:
    """The record in a table's columns of a row. own: fields that are not among them."""
    found = row._mapping
    for field in stored_fields(kind):
        if field.field not in own:
            value = found[table.c[field.column]]
            if field.kind is LogRatio:
                own[field.field] = log_ratio(*(found[table.c[name]] for name in RATIO))
            else:
                own[field.field] = value if value is None else _conversion(field.kind)(value)
    return kind(**own)


def reader(kind: type[_Record], table: Table) -> Callable[[Row[Any]], _Record]:
    """What reads the records whose fields are all columns of one table."""
    return partial(record_of, kind, table=table)


@cache
def _conversion(kind: Any) -> Any:
    """What makes a field's value of a column's: words are an enumeration's, lists are tuples."""
    if get_origin(kind) is tuple:
        return tuple
    words = isinstance(kind, type) and issubclass(kind, StrEnum)
    return kind if words else _keep


def _keep(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    """A value as its column takes it."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and value and isinstance(value[0], Mapping):
        return [dict(each) for each in value]
    return value


def log_ratio(value: float | None, low: float | None, high: float | None) -> LogRatio | None:
    """The ratio in three columns; None where unknown."""
    return None if value is None else LogRatio.of(value, low, high)


def ratio_columns(ratio: LogRatio | None) -> dict[str, float | None]:
    """Neither databases nor JSON have an infinity: an unknown end is None."""
    ends = (ratio.low, ratio.high) if ratio else (None, None)
    low, high = (None if end is None or math.isinf(end) else end for end in ends)
    return dict(zip(RATIO, (ratio.value if ratio else None, low, high), strict=True))


def _refuse_nan(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        numbers = value if name.endswith("samples_us") else (value,)
        if any(isinstance(number, float) and math.isnan(number) for number in numbers):
            raise StoreError(
                f"{name} is not a number", "leave it out, or record the trial as failed"
            )


def config_hash(config: Config) -> str:
    """The digest of a config, for indexes."""
    return identity(dict(config))


def identity(value: Any) -> str:
    """A digest of a JSON value with 32 hexadecimal digits. Raises `StoreError` for others."""
    json_text(value)
    return digest(value, 32)


def reuse_key(key: TaskKey) -> str:
    """The match rule of `TaskKey`: tasks with equal reuse keys share results.

    The space is not part of it. A narrower space changes which configs are tried, not their
    results.
    """
    return identity(
        [
            key.kernel,
            key.launch_hash,
            key.workload.as_dict(),
            key.device.fingerprint,
            key.toolchain.key,
            key.protocol,
        ]
    )


def device_values(device: Device) -> dict[str, Any]:
    facts = asdict(device)
    return {"identity": identity(facts), "fingerprint": device.fingerprint, **facts}


def toolchain_values(toolchain: Toolchain) -> dict[str, Any]:
    return {"key": toolchain.key, "build_key": toolchain.build_key, **asdict(toolchain)}


def workload_values(workload: Workload) -> dict[str, Any]:
    dims = workload.as_dict()
    return {"identity": identity(dims), "key": workload.key, "dims": dims}


def workload_of(dims: Mapping[str, Value], key: str) -> Workload:
    """A stored workload: the dims, which are sorted, in the order of its readable form."""
    return Workload.from_mapping(dims).in_order(word.partition("=")[0] for word in key.split())


def trial_values(record: TrialRecord) -> dict[str, Any]:
    """Columns of `trial` except the task and the time of recording."""
    return {**values_of(record), "config_hash": config_hash(record.config)}


def measurement_values(record: TrialRecord) -> dict[str, Any] | None:
    """Columns of `measurement` except the trial; None where nothing was timed or verified."""
    values = values_of(record, "measurement")
    return None if values == _UNTIMED else values


_UNTIMED = values_of(TrialRecord("", 0, {}, Status.CORRECT), "measurement")


def calibration_values(
    device: Device, toolchain: Toolchain, host: str, calibration: Calibration
) -> dict[str, Any]:
    """Columns of `calibration` except references and time. Equal values have equal identities."""
    values = values_of(calibration)
    about = [device_values(device)["identity"], toolchain.key, host]
    return {**values, "identity": identity([about, values]), "host": host}


def run_info(row: Row[Any]) -> RunInfo:
    """The record of a row of `query.RUNS`."""
    found = row._mapping
    own = {"run_id": found[RUN.c.id], "campaign": found[CAMPAIGN.c.name]}
    return record_of(RunInfo, row, RUN, **own, silent_s=found["silent_s"])


def task_info(
    row: Row[Any],
    baselines: Sequence[BaselineRecord] = (),
    finals: Sequence[FinalRecord] = (),
) -> TaskInfo:
    """The record of a row of `query.TASK_ROWS`."""
    found = row._mapping
    key = TaskKey(
        kernel=found[KERNEL.c.name],
        launch_hash=found[KERNEL.c.launch_hash],
        space_hash=found[KERNEL.c.space_hash],
        workload=workload_of(found[WORKLOAD.c.dims], found[WORKLOAD.c.key]),
        device=record_of(Device, row, DEVICE),
        toolchain=record_of(Toolchain, row, TOOLCHAIN),
        protocol=found[TASK.c.protocol],
        kernel_hashes=tuple(found[KERNEL.c.kernel_hashes]),
    )
    chosen = found[SELECTION.c.id] is not None
    place = found[TASK.c.place]
    return record_of(
        TaskInfo,
        row,
        TASK,
        task_id=found[TASK.c.id],
        key=key,
        selection=record_of(SelectionRecord, row, SELECTION) if chosen else None,
        baselines=tuple(baselines),
        finals=tuple(finals),
        place=RangePlace.from_json(place) if place else None,
    )


def trial_record(row: Row[Any]) -> TrialRecord:
    """The record of a row with the columns `TRIAL_ROW`."""
    fields = _BUILT if row.trial_id is None else _TRIAL
    values = {field.field: value for field, value in zip(fields, row, strict=False)}
    values["status"], values["source"] = Status(values["status"]), Source(values["source"])
    if values.get("log_ratio") is not None:
        values["log_ratio"] = log_ratio(*(getattr(row, name) for name in RATIO))
    return TrialRecord(**values)


def calibration_record(row: Row[Any]) -> CalibrationRecord:
    """The record of a row of `query.CALIBRATIONS`."""
    return record_of(
        CalibrationRecord,
        row,
        CALIBRATION,
        device=record_of(Device, row, DEVICE),
        toolchain=record_of(Toolchain, row, TOOLCHAIN),
        calibration=record_of(Calibration, row, CALIBRATION),
    )
