"""Trials as a pandas frame, for notebooks and exports, with one documented dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, func, select

from results_db.tables import (
    CAMPAIGN,
    DEVICE,
    KERNEL,
    MEASUREMENT,
    RUN,
    TASK,
    TASKS,
    TOOLCHAIN,
    TRIAL,
    WORKLOAD,
)
from search_spaces.records import canonical_json

if TYPE_CHECKING:
    import pandas as pd

_TRIAL: Mapping[str, tuple[Any, str, str]] = {
    "run_id": (RUN.c.id, "int64", "the run"),
    "campaign": (CAMPAIGN.c.name, "str", "its campaign"),
    "task_id": (TASK.c.id, "int64", "the task"),
    "kernel": (KERNEL.c.name, "str", "name of the kernel"),
    "launch_hash": (KERNEL.c.launch_hash, "str", "digest of the kernel's code and state"),
    "space_hash": (KERNEL.c.space_hash, "str", "digest of the declared search space"),
    "workload": (WORKLOAD.c.key, "str", "the workload in readable form"),
    "dims": (WORKLOAD.c.dims, "json", "the workload as JSON"),
    "device": (DEVICE.c.name, "str", "exact name of the device"),
    "device_kind": (DEVICE.c.kind, "str", "kind of the backend, such as cuda, cpu or simulated"),
    "fingerprint": (DEVICE.c.fingerprint, "str", "digest that equal devices share"),
    "target": (DEVICE.c.target, "str", "target of the compiler, such as cuda:90"),
    "toolchain": (TOOLCHAIN.c.key, "str", "digest of the versions of the toolchain"),
    "protocol": (TASK.c.protocol, "str", "digest of the measurement protocol's constants"),
    "flops": (TASK.c.flops, "float64", "least operations of the workload"),
    "bytes": (TASK.c.bytes, "float64", "least bytes of the workload through device memory"),
    "attempt_id": (TRIAL.c.attempt_id, "str", "unique name of the attempt"),
    "number": (TRIAL.c.number, "int64", "position in the order of proposal, from 0"),
    "config": (TRIAL.c.config, "json", "the config as canonical JSON"),
    "status": (TRIAL.c.status, "str", "outcome, in the words of T4"),
    "source": (TRIAL.c.source, "str", "measured, built, binary, reused or verified"),
    "strategy": (TRIAL.c.strategy, "str", "the strategy that proposed it"),
    "copied_from": (TRIAL.c.copied_from, "str", "attempt that a copied result was taken from"),
    "message": (TRIAL.c.message, "str", "one line on a failure"),
    "binary_hash": (TRIAL.c.binary_hash, "str", "equal hashes run the same machine code"),
    "registers": (TRIAL.c.registers, "Int64", "32-bit registers per thread"),
    "spill_bytes": (TRIAL.c.spill_bytes, "Int64", "local memory per thread"),
    "shared_bytes": (TRIAL.c.shared_bytes, "Int64", "shared memory of a block"),
    "binary_bytes": (TRIAL.c.binary_bytes, "Int64", "size of the binaries"),
    "build_s": (TRIAL.c.build_s, "float64", "seconds of building"),
    "device_s": (TRIAL.c.device_s, "float64", "seconds for which the device was held"),
    "worker": (TRIAL.c.worker, "str", "the runner or builder"),
    "method": (MEASUREMENT.c.method, "str", "timing method; empty where nothing was timed"),
    "cache": (MEASUREMENT.c.cache, "str", "cache policy: cold, rotate or warm"),
    "median_us": (MEASUREMENT.c.median_us, "float64", "calibrated median time"),
    "log_ratio": (
        MEASUREMENT.c.log_ratio,
        "float64",
        "ln(time / incumbent's time) in the same screening",
    ),
    "log_ratio_low": (MEASUREMENT.c.log_ratio_low, "float64", "its 95 % interval, lower end"),
    "log_ratio_high": (MEASUREMENT.c.log_ratio_high, "float64", "its 95 % interval, upper end"),
    "incumbent": (MEASUREMENT.c.incumbent, "str", "config key of that incumbent"),
    "error": (
        MEASUREMENT.c.error,
        "float64",
        "||out - ref|| / ||ref||, the largest over all seeds",
    ),
    "compiled": (MEASUREMENT.c.compiled, "Int64", "launches that compiled on the device worker"),
    "verified_by": (MEASUREMENT.c.verified_by, "str", "check that the outputs passed"),
    "timing_s": (MEASUREMENT.c.timing_s, "float64", "of device_s, the seconds spent timing"),
    "deterministic": (MEASUREMENT.c.deterministic, "boolean", "whether a repetition was bit-equal"),
    "row_bits": (MEASUREMENT.c.row_bits, "str", "digest of the bits of single rows"),
    "finished_at": (
        func.coalesce(TRIAL.c.finished_at, TRIAL.c.recorded_at),
        "datetime64[us, UTC]",
        "when it finished",
    ),
}

#: Columns of `Store.trials_frame` with their meaning. Each parameter adds a column `config.<name>`,
#: which is None for configs without it.
TRIAL_COLUMNS = {name: text for name, (_, _, text) in _TRIAL.items()}


def trials(connection: Connection, run_id: int | None, task_id: int | None) -> pd.DataFrame:
    import pandas as pd

    tables = TASKS.join(RUN).join(CAMPAIGN).join(TRIAL).outerjoin(MEASUREMENT)
    selected: list[ColumnElement[Any]] = [column for column, _, _ in _TRIAL.values()]
    query = select(*selected).select_from(tables).order_by(TASK.c.id, TRIAL.c.number)
    if run_id is not None:
        query = query.where(RUN.c.id == run_id)
    if task_id is not None:
        query = query.where(TASK.c.id == task_id)
    rows = connection.execute(query).all()
    kinds = enumerate(kind for _, kind, _ in _TRIAL.values())
    columns = [_series([row[position] for row in rows], kind) for position, kind in kinds]
    frame = pd.DataFrame(dict(zip(_TRIAL, columns, strict=True)))
    configs = [row[list(_TRIAL).index("config")] for row in rows]
    for name in sorted({name for config in configs for name in config}):
        frame[f"config.{name}"] = _values([config.get(name) for config in configs])
    return frame


def _series(values: list[Any], kind: str) -> pd.Series[Any]:
    import pandas as pd

    if kind == "json":
        return pd.Series([_json(value) for value in values], dtype=object)
    if kind == "str":
        return pd.Series(["" if value is None else value for value in values], dtype=object)
    dtype: Any = kind
    series: pd.Series[Any] = pd.Series(values, dtype=dtype)
    return series


def _values(values: list[Any]) -> pd.Series[Any]:
    """Values of one parameter: a numeric column where all have one numeric type, else objects."""
    import pandas as pd

    series = pd.Series(values, dtype=object)
    types = {type(value) for value in values}
    return series.infer_objects() if len(types) == 1 and types < {bool, int, float} else series


def _json(value: Any) -> str | None:
    return None if value is None else canonical_json(value)
