"""Convert records to column values, and rows to records, without loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from results_db import models
from results_db.columns import json_text
from results_db.errors import StoreError
from results_db.promotion_records import PromotionOutcome, PromotionRecord
from results_db.regression_records import RegressionRecord, RegressionState
from results_db.stored_records import (
    BaselineRecord,
    CalibrationRecord,
    ExportInfo,
    FinalRecord,
    Fire,
    FireState,
    RunInfo,
    RunStatus,
    SelectionRecord,
    Source,
    Stage,
    TaskInfo,
    TaskKey,
    TrialRecord,
)
from search_spaces.log_ratio import LogRatio, Verdict
from search_spaces.records import Config, Device, Status, Toolchain, Value, Workload, digest
from search_spaces.size_range import RangePlace
from workers.job_records import Calibration, Mode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from sqlalchemy import Row

_Record = TypeVar("_Record", bound="DataclassInstance")
_MEASURED = (
    "method",
    "cache",
    "incumbent",
    "median_us",
    "log_ratio",
    "error",
    "compiled",
    "verified_by",
    "timing_s",
    "deterministic",
    "samples_us",
    "incumbent_samples_us",
    "clocks",
)
_BUILT = tuple(field.name for field in fields(TrialRecord) if field.name not in _MEASURED)
_TRIAL = (*_BUILT, *_MEASURED)
#: The columns that `trial_record` reads: those of `trial`, then those of `measurement`.
TRIAL_ROW = (
    *(getattr(models.Trial, name) for name in _BUILT),
    *(getattr(models.Measurement, name) for name in _MEASURED),
    models.Measurement.log_ratio_low,
    models.Measurement.log_ratio_high,
    models.Measurement.trial_id,
)
_DEFAULTS = {
    "method": "",
    "cache": "",
    "incumbent": "",
    "compiled": 0,
    "verified_by": "",
    "timing_s": 0.0,
    "samples_us": (),
    "incumbent_samples_us": (),
    "clocks": {},
}


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


def workload_of(dims: Mapping[str, Value], key: str) -> Workload:
    """A stored workload: the dims, which are sorted, in the order of its readable form."""
    return Workload.from_mapping(dims).in_order(word.partition("=")[0] for word in key.split())


def workload_values(workload: Workload) -> dict[str, Any]:
    dims = workload.as_dict()
    return {"identity": identity(dims), "key": workload.key, "dims": dims}


def device_digests(row: models.Device) -> dict[str, Any]:
    """The digests that the row's other columns have, as of `toolchain` and `workload` below."""
    return _digests(device_values(_read(Device, row)), "identity", "fingerprint")


def toolchain_digests(row: models.Toolchain) -> dict[str, Any]:
    return _digests(toolchain_values(_read(Toolchain, row)), "key", "build_key")


def workload_digests(row: models.Workload) -> dict[str, Any]:
    return _digests(workload_values(workload_of(row.dims, row.key)), "identity", "key")


def _digests(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names}


def trial_values(record: TrialRecord) -> dict[str, Any]:
    """Columns of `trial` except the task and the time of recording. Refuses NaN."""
    values = _plain(record, _BUILT)
    values["config"] = dict(record.config)
    return {**values, "config_hash": config_hash(record.config)}


def measurement_values(record: TrialRecord) -> dict[str, Any] | None:
    """Columns of `measurement` except the trial.

    None for a trial that was neither timed nor verified.
    """
    values = _plain(record, _MEASURED)
    values["clocks"] = dict(record.clocks)
    return values if any(v != _DEFAULTS.get(name) for name, v in values.items()) else None


def baseline_rows(task_id: int, records: Sequence[BaselineRecord]) -> list[dict[str, Any]]:
    return [
        {**_plain(record), "task_id": task_id, "position": position}
        for position, record in enumerate(records)
    ]


def final_rows(task_id: int, records: Sequence[FinalRecord]) -> list[dict[str, Any]]:
    return [
        {
            **_plain(record),
            "config": dict(record.config),
            "task_id": task_id,
            "position": position,
        }
        for position, record in enumerate(records)
    ]


def calibration_values(
    device: Device, toolchain: Toolchain, host: str, calibration: Calibration
) -> dict[str, Any]:
    """Columns of `calibration` except references and time. Equal values have equal identities."""
    values = _plain(calibration)
    values |= {name: dict(values[name]) for name in ("overhead_us", "flops_per_us")}
    about = [device_values(device)["identity"], toolchain.key, host]
    return {**values, "identity": identity([about, values]), "host": host}


def selection_values(record: SelectionRecord) -> dict[str, Any]:
    values = _plain(record)
    default = values.pop("default")
    return {
        **values,
        "winner": dict(record.winner),
        "tie_set": [dict(config) for config in record.tie_set],
        "runner_up": None if record.runner_up is None else dict(record.runner_up),
        "default_config": None if default is None else dict(default),
        "clocks": dict(record.clocks),
    }


def run_info(row: models.Run, silent_s: float | None) -> RunInfo:
    own = {"run_id": row.id, "campaign": row.campaign.name, "status": RunStatus(row.status)}
    return _read(RunInfo, row, **own, silent_s=silent_s)


def task_info(row: models.Task) -> TaskInfo:
    key = TaskKey(
        kernel=row.kernel.name,
        launch_hash=row.kernel.launch_hash,
        space_hash=row.kernel.space_hash,
        workload=workload_of(row.workload.dims, row.workload.key),
        device=_read(Device, row.device),
        toolchain=_read(Toolchain, row.toolchain),
        protocol=row.protocol,
        kernel_hashes=tuple(row.kernel.kernel_hashes),
    )
    return _read(
        TaskInfo,
        row,
        task_id=row.id,
        key=key,
        stage=Stage(row.stage),
        selection=None if row.selection is None else selection_record(row.selection),
        baselines=tuple(baseline_record(baseline) for baseline in row.baselines),
        finals=tuple(final_record(final) for final in row.finals),
        place=RangePlace.from_json(row.place) if row.place else None,
    )


def calibration_record(row: models.Calibration) -> CalibrationRecord:
    parts = {"device": _read(Device, row.device), "toolchain": _read(Toolchain, row.toolchain)}
    return _read(CalibrationRecord, row, **parts, calibration=_read(Calibration, row))


def trial_record(row: Row[Any]) -> TrialRecord:
    """The record of a row with the columns `TRIAL_ROW`."""
    names = _BUILT if row.trial_id is None else _TRIAL
    values = dict(zip(names, row, strict=False))
    values["status"], values["source"] = Status(values["status"]), Source(values["source"])
    if values.get("log_ratio") is not None:
        values["log_ratio"] = log_ratio(row)
    return TrialRecord(**values)


def baseline_record(row: models.Baseline) -> BaselineRecord:
    return _read(BaselineRecord, row, status=Status(row.status), log_ratio=log_ratio(row))


def final_record(row: models.Finalist) -> FinalRecord:
    words = {"stage": Mode(row.stage), "status": Status(row.status)}
    return _read(FinalRecord, row, **words, log_ratio=log_ratio(row))


def selection_record(row: models.Selection) -> SelectionRecord:
    configs = {"tie_set": tuple(row.tie_set), "default": row.default_config}
    verdict, ratio = Verdict(row.verdict), log_ratio(row)
    return _read(SelectionRecord, row, **configs, verdict=verdict, log_ratio=ratio)


def log_ratio(row: Any) -> LogRatio | None:
    """The ratio in the three columns of a row; None where unknown."""
    if row.log_ratio is None:
        return None
    return LogRatio.of(row.log_ratio, row.log_ratio_low, row.log_ratio_high)


def fire_values(
    schedule: str,
    instant: datetime,
    host: str,
    state: FireState,
    fired_at: datetime,
    process: str = "",
) -> dict[str, Any]:
    return {
        "schedule": schedule,
        "instant": instant,
        "state": state,
        "host": host,
        "run_id": None,
        "fired_at": fired_at,
        "message": "",
        "process": process,
        "attempts": 1,
    }


def fire(row: models.ScheduleFire) -> Fire:
    return _read(Fire, row, state=FireState(row.state))


def export_values(
    path: str, format: str, run_id: int | None, sha256: str, task_ids: Sequence[int]
) -> dict[str, Any]:
    return {
        "path": path,
        "format": format,
        "run_id": run_id,
        "sha256": sha256,
        "task_ids": list(task_ids),
        "exported_at": datetime.now(UTC),
    }


def export_info(row: models.Export) -> ExportInfo:
    return _read(ExportInfo, row, task_ids=tuple(row.task_ids))


def promotion_values(record: PromotionRecord) -> dict[str, Any]:
    return _plain(record) | {"decided_at": datetime.now(UTC)}


def promotion_record(row: models.Promotion) -> PromotionRecord:
    outcome = PromotionOutcome(row.outcome)
    return _read(PromotionRecord, row, outcome=outcome, log_ratio=log_ratio(row))


def regression_record(row: models.Regression) -> RegressionRecord:
    state = RegressionState(row.state)
    return _read(RegressionRecord, row, state=state, log_ratio=log_ratio(row))


def _read(kind: type[_Record], row: Any, **own: Any) -> _Record:
    """A record with the columns of its fields' names, and what is its own."""
    names = {field.name for field in fields(kind)} - own.keys()
    return kind(**{name: getattr(row, name) for name in names}, **own)


def _plain(record: DataclassInstance, names: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a record, or those with these names, as columns. Refuses NaN."""
    names = names or [field.name for field in fields(record)]
    values = {name: getattr(record, name) for name in names}
    if "log_ratio" in values:
        values |= ratio_columns(values["log_ratio"])
    _refuse_nan(values)
    return values


def ratio_columns(ratio: LogRatio | None) -> dict[str, float | None]:
    """Neither databases nor JSON have an infinity: an unknown end is None."""
    ends = (ratio.low, ratio.high) if ratio else (None, None)
    low, high = (None if end is None or math.isinf(end) else end for end in ends)
    value = ratio.value if ratio else None
    return {"log_ratio": value, "log_ratio_low": low, "log_ratio_high": high}


def _refuse_nan(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        numbers = value if name.endswith("samples_us") else (value,)
        if any(isinstance(number, float) and math.isnan(number) for number in numbers):
            raise StoreError(
                f"{name} is not a number", "leave it out, or record the trial as failed"
            )
