"""Results as pandas frames, for notebooks and exports; one documented dictionary per frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from results_db.models import (
    Baseline,
    Campaign,
    Device,
    Kernel,
    Measurement,
    Run,
    Selection,
    Task,
    Toolchain,
    Trial,
    Workload,
)
from search_spaces.records import canonical_json

if TYPE_CHECKING:
    import pandas as pd

_Columns = Mapping[str, tuple[Any, str, str]]

_TASK: _Columns = {
    "run_id": (Run.id, "int64", "the run"),
    "campaign": (Campaign.name, "str", "its campaign"),
    "task_id": (Task.id, "int64", "the task"),
    "kernel": (Kernel.name, "str", "name of the kernel"),
    "launch_hash": (Kernel.launch_hash, "str", "digest of the kernel's code and state"),
    "space_hash": (Kernel.space_hash, "str", "digest of the declared search space"),
    "workload": (Workload.key, "str", "the workload in readable form"),
    "dims": (Workload.dims, "json", "the workload as JSON"),
    "device": (Device.name, "str", "exact name of the device"),
    "device_kind": (
        Device.kind,
        "str",
        "kind of the backend, such as cuda, cpu or simulated",
    ),
    "fingerprint": (Device.fingerprint, "str", "digest that equal devices share"),
    "target": (Device.target, "str", "target of the compiler, such as cuda:90"),
    "toolchain": (Toolchain.key, "str", "digest of the versions of the toolchain"),
    "protocol": (Task.protocol, "str", "digest of the measurement protocol's constants"),
    "flops": (Task.flops, "float64", "least operations of the workload"),
    "bytes": (Task.bytes, "float64", "least bytes of the workload through device memory"),
}

_RATIOS = {
    "log_ratio_low": "its 95 % interval, lower end",
    "log_ratio_high": "its 95 % interval, upper end",
}


def _figures(model: type[Measurement | Baseline | Selection], median: str, ratio: str) -> _Columns:
    described = {"median_us": median, "log_ratio": ratio, **_RATIOS}
    return {name: (getattr(model, name), "float64", text) for name, text in described.items()}


_TRIAL: _Columns = {
    **_TASK,
    "attempt_id": (Trial.attempt_id, "str", "unique name of the attempt"),
    "number": (Trial.number, "int64", "position in the order of proposal, from 0"),
    "config": (Trial.config, "json", "the config as canonical JSON"),
    "status": (Trial.status, "str", "outcome, in the words of T4"),
    "source": (Trial.source, "str", "measured, built, binary, reused or verified"),
    "strategy": (Trial.strategy, "str", "the strategy that proposed it"),
    "copied_from": (Trial.copied_from, "str", "attempt that a copied result was taken from"),
    "message": (Trial.message, "str", "one line on a failure"),
    "binary_hash": (Trial.binary_hash, "str", "equal hashes run the same machine code"),
    "registers": (Trial.registers, "Int64", "32-bit registers per thread"),
    "spill_bytes": (Trial.spill_bytes, "Int64", "local memory per thread"),
    "shared_bytes": (Trial.shared_bytes, "Int64", "shared memory of a block"),
    "binary_bytes": (Trial.binary_bytes, "Int64", "size of the binaries"),
    "build_s": (Trial.build_s, "float64", "seconds of building"),
    "device_s": (Trial.device_s, "float64", "seconds for which the device was held"),
    "worker": (Trial.worker, "str", "the runner or builder"),
    "method": (Measurement.method, "str", "timing method; empty where nothing was timed"),
    "cache": (Measurement.cache, "str", "cache policy: cold, rotate or warm"),
    **_figures(
        Measurement, "calibrated median time", "ln(time / incumbent's time) in the same screening"
    ),
    "incumbent": (Measurement.incumbent, "str", "config key of that incumbent"),
    "error": (Measurement.error, "float64", "||out - ref|| / ||ref||, the largest over all seeds"),
    "compiled": (Measurement.compiled, "Int64", "launches that compiled on the device worker"),
    "verified_by": (Measurement.verified_by, "str", "check that the outputs passed"),
    "timing_s": (Measurement.timing_s, "float64", "of device_s, the seconds spent timing"),
    "deterministic": (Measurement.deterministic, "boolean", "whether a repetition was bit-equal"),
    "finished_at": (
        func.coalesce(Trial.finished_at, Trial.recorded_at),
        "datetime64[us, UTC]",
        "when it finished",
    ),
}

_SELECTION: _Columns = {
    **_TASK,
    "stage": (Task.stage, "str", "search, finals, confirm or done"),
    "winner": (Selection.winner, "json", "the chosen config as canonical JSON"),
    "default": (Selection.default_config, "json", "the default config"),
    "runner_up": (Selection.runner_up, "json", "the runner-up"),
    "tie_set": (Selection.tie_set, "json", "configs that cannot be distinguished from the winner"),
    "verdict": (
        Selection.verdict,
        "str",
        "winner against default: faster, slower, same, undecided",
    ),
    "reason": (Selection.reason, "str", "how the winner was chosen from its tie set"),
    **_figures(Selection, "the winner's confirmed time", "ln(default time / winner time)"),
    "default_us": (Selection.default_us, "float64", "the default's confirmed time"),
    "compiled": (Selection.compiled, "int64", "launches that compiled in the confirmation"),
    "confirmed_at": (Selection.confirmed_at, "datetime64[us, UTC]", "when it was confirmed"),
}

_BASELINE: _Columns = {
    **_TASK,
    "name": (Baseline.name, "str", "the baseline: eager, compile, vendor..."),
    "status": (Baseline.status, "str", "why it has no time, else correct"),
    **_figures(Baseline, "its confirmed time", "ln(baseline time / winner time)"),
    "error": (Baseline.error, "float64", "||out - ref|| / ||ref||"),
    "message": (Baseline.message, "str", "one line on a failure"),
}

#: Columns of `Store.trials_frame` with their meaning. Each parameter adds a column `config.<name>`,
#: which is None for configs without it.
TRIAL_COLUMNS = {name: text for name, (_, _, text) in _TRIAL.items()}
#: Columns of `Store.selections_frame` with their meaning.
SELECTION_COLUMNS = {name: text for name, (_, _, text) in _SELECTION.items()}
#: Columns of `Store.baselines_frame` with their meaning.
BASELINE_COLUMNS = {name: text for name, (_, _, text) in _BASELINE.items()}


def trials(connection: Connection, run_id: int | None, task_id: int | None) -> pd.DataFrame:
    query = (
        _of_tasks(_TRIAL, run_id)
        .join(Trial, Trial.task_id == Task.id)
        .outerjoin(Measurement, Measurement.trial_id == Trial.id)
        .order_by(Task.id, Trial.number)
    )
    if task_id is not None:
        query = query.where(Task.id == task_id)
    rows = connection.execute(query).all()
    configs = [row[list(_TRIAL).index("config")] for row in rows]
    frame = _frame(rows, _TRIAL)
    for name in sorted({name for config in configs for name in config}):
        frame[f"config.{name}"] = _values([config.get(name) for config in configs])
    return frame


def selections(connection: Connection, run_id: int | None) -> pd.DataFrame:
    query = _of_tasks(_SELECTION, run_id).join(Selection, Selection.task_id == Task.id)
    return _frame(connection.execute(query.order_by(Task.id)).all(), _SELECTION)


def baselines(connection: Connection, run_id: int | None) -> pd.DataFrame:
    query = _of_tasks(_BASELINE, run_id).join(Baseline, Baseline.task_id == Task.id)
    return _frame(connection.execute(query.order_by(Task.id, Baseline.position)).all(), _BASELINE)


def _of_tasks(columns: _Columns, run_id: int | None) -> Select[Any]:
    selected: list[ColumnElement[Any]] = [column for column, _, _ in columns.values()]
    query = (
        select(*selected)
        .select_from(Task)
        .join(Run, Task.run_id == Run.id)
        .join(Campaign, Run.campaign_id == Campaign.id)
        .join(Kernel, Task.kernel_id == Kernel.id)
        .join(Workload, Task.workload_id == Workload.id)
        .join(Device, Task.device_id == Device.id)
        .join(Toolchain, Task.toolchain_id == Toolchain.id)
    )
    return query if run_id is None else query.where(Run.id == run_id)


def _frame(rows: Sequence[Any], columns: _Columns) -> pd.DataFrame:
    import pandas as pd

    data = {}
    for position, (name, (_, kind, _)) in enumerate(columns.items()):
        values = [row[position] for row in rows]
        data[name] = _series(values, kind)
    return pd.DataFrame(data)


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
