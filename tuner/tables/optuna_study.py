"""A run as Optuna studies: an SQLite file that `optuna.load_study` and optuna-dashboard open."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from results_db.stored_records import TaskInfo, TrialRecord
from search_spaces.records import Status, Value, config_key
from tuner.tables.exporters import File
from tuner.tables.results import Results
from tuner.tables.t4 import task_name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

#: The constraint of every trial: above 0 for one that was not correct.
CONSTRAINT = "fails"


class OptunaStudies:
    """`optuna`: one SQLite file per run, with one study per task that has trials.

    The value of a trial is its median time in us, to be minimised. A correct trial is `COMPLETE`,
    or `PRUNED` if nothing was timed; any other is `FAIL` with a violated constraint.
    Parameters have their own values; those that a config does not have are missing. User attributes
    hold the rest of the result.
    """

    def files(self, results: Results) -> Iterator[File]:
        tasks = [task for task in results.tasks if results.trials(task.task_id)]
        if tasks:
            name = f"run-{results.run_id}.optuna.db"
            yield File(name, _database(results, tasks), tuple(task.task_id for task in tasks))


def _database(results: Results, tasks: Sequence[TaskInfo]) -> bytes:
    """The SQLite file. It is written in memory, because Optuna commits every value on its own."""
    import optuna
    from sqlalchemy.pool import StaticPool

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage("sqlite://", engine_kwargs={"poolclass": StaticPool})
    try:
        for task in tasks:
            _add_study(storage, results, task)
        connection = storage.engine.raw_connection()
        database = connection.driver_connection
        assert isinstance(database, sqlite3.Connection)
        return database.serialize()
    finally:
        storage.engine.dispose()


def _add_study(storage: RDBStorage, results: Results, task: TaskInfo) -> None:
    import optuna

    trials = results.trials(task.task_id)
    study = optuna.create_study(
        storage=storage, study_name=task_name(task), direction=optuna.study.StudyDirection.MINIMIZE
    )
    for name, value in _study_attributes(results, task).items():
        study.set_user_attr(name, value)
    distributions = _distributions([trial.config for trial in trials])
    begun = results.run.started_at
    for trial in sorted(trials, key=lambda trial: trial.number):
        study.add_trial(_trial(trial, task, distributions, begun))


def _study_attributes(results: Results, task: TaskInfo) -> dict[str, Any]:
    key, selection = task.key, task.selection
    found: dict[str, Any] = {
        "unit": "us",
        "campaign": results.run.campaign,
        "run": results.run_id,
        "task": task.task_id,
        "kernel": key.kernel,
        "workload": key.workload.as_dict(),
        "device": key.device.name,
        "toolchain": key.toolchain.key,
        "launch_hash": key.launch_hash,
        "check_hash": key.check_hash,
    }
    if selection is not None:
        found |= {
            "winner": dict(selection.winner),
            "tie_set": [dict(config) for config in selection.tie_set],
            "verdict": selection.verdict,
            "confirmed_us": selection.median_us,
            "default_us": selection.default_us,
        }
    return found


def _trial(
    record: TrialRecord,
    task: TaskInfo,
    distributions: Mapping[str, _StudyParameter],
    begun: datetime,
) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    correct = record.status is Status.CORRECT
    timed = correct and record.median_us is not None
    untimed = TrialState.PRUNED if correct else TrialState.FAIL
    trial = create_trial(
        state=TrialState.COMPLETE if timed else untimed,
        value=record.median_us if timed else None,
        params={name: distributions[name].external(v) for name, v in record.config.items()},
        distributions={name: distributions[name].distribution for name in record.config},
        user_attrs=_trial_attributes(record, task),
        constraints={CONSTRAINT: -1.0 if correct else 1.0},
    )
    finished = record.finished_at or begun
    took = timedelta(seconds=record.build_s + record.device_s)
    trial.datetime_start, trial.datetime_complete = _naive(finished - took), _naive(finished)
    return trial


def _trial_attributes(record: TrialRecord, task: TaskInfo) -> dict[str, Any]:
    """What is known of a trial; absent facts are left out."""
    selection = task.selection
    found: dict[str, Any] = {
        "number": record.number,
        "attempt_id": record.attempt_id,
        "status": str(record.status),
        "message": record.message,
        "source": record.source,
        "strategy": record.strategy,
        "worker": record.worker,
        "method": record.method,
        "incumbent": record.incumbent,
        "median_us": record.median_us,
        "interval_us": _interval_us(record),
        "samples": len(record.samples_us),
        "build_s": record.build_s,
        "device_s": record.device_s,
        "registers": record.registers,
        "spill_bytes": record.spill_bytes,
        "shared_bytes": record.shared_bytes,
        "error": record.error,
        "binary_hash": record.binary_hash,
    }
    if selection is not None:
        key = config_key(record.config)
        ties = {config_key(config) for config in selection.tie_set}
        found["winner"] = key == config_key(selection.winner) or None
        found["tie_set"] = key in ties or None
    kept = {name: value for name, value in found.items() if value is not None and value != ""}
    return {name: value for name, value in kept.items() if not _not_finite(value)}


def _interval_us(record: TrialRecord) -> list[float] | None:
    """The 95 % interval of the time, as far as its comparison with the incumbent is uncertain."""
    ratios = (record.log_ratio, record.log_ratio_low, record.log_ratio_high)
    if record.median_us is None or None in ratios:
        return None
    ratio, low, high = (float(each or 0.0) for each in ratios)
    interval = [record.median_us * math.exp(low - ratio), record.median_us * math.exp(high - ratio)]
    return interval if all(map(math.isfinite, interval)) else None


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _naive(moment: datetime) -> datetime:
    """UTC without a time zone, which Optuna's tables cannot hold."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


class _StudyParameter:
    """An Optuna distribution over the values that one parameter had in a task's trials.

    Integers become an integer range, in the logarithm where all are powers of two; all other values
    become a categorical choice. Choices that Python takes to be equal, such as 1 and True, and
    numbers beyond 64 bits are written as JSON texts.
    """

    def __init__(self, values: Sequence[Value]) -> None:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        self.distribution: BaseDistribution
        numbers = [value for value in values if type(value) is int and abs(value) < 1 << 53]
        if len(numbers) == len(values):
            log = len(set(numbers)) > 1 and all(n > 0 and n & (n - 1) == 0 for n in numbers)
            self.distribution = IntDistribution(min(numbers), max(numbers), log=log)
            self._as_text = False
            return
        texts = sorted({json.dumps(value) for value in values})
        plain = [json.loads(text) for text in texts]
        self._as_text = any(a == b for a, b in itertools.combinations(plain, 2)) or any(
            type(value) is int and abs(value) >= 1 << 53 for value in plain
        )
        self.distribution = CategoricalDistribution(texts if self._as_text else plain)

    def external(self, value: Value) -> Value:
        return json.dumps(value) if self._as_text else value


def _distributions(configs: Sequence[Mapping[str, Value]]) -> dict[str, _StudyParameter]:
    names = dict.fromkeys(name for config in configs for name in config)
    return {
        name: _StudyParameter([config[name] for config in configs if name in config])
        for name in names
    }
