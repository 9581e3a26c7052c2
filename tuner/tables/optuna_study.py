"""A run as Optuna studies: an SQLite file that `optuna.load_study` and optuna-dashboard open."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

from results_db.stored_records import TaskInfo, TrialRecord
from search_spaces.records import Status, Value, config_key
from tuner.tables.exporters import File
from tuner.tables.results import Results
from tuner.tables.t4 import task_name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

#: The constraint of every trial: above 0 for one that was not correct.
CONSTRAINT = "fails"
#: Fields of a trial that become attributes of the same names where they are known.
_FACTS = (
    *("attempt_id", "status", "message", "build_s", "device_s"),
    *("registers", "spill_bytes", "shared_bytes"),
)


class OptunaStudies:
    """`optuna`: one SQLite file per run, with one study per task that has trials.

    The value of a trial is its median time in us, to be minimised. A correct trial is `COMPLETE`,
    or `PRUNED` if nothing was timed; any other is `FAIL` with a violated constraint.
    Parameters have their own values; those that a config does not have are missing.
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
            study = optuna.create_study(storage=storage, study_name=task_name(task))
            for name, value in _study_attributes(task).items():
                study.set_user_attr(name, value)
            trials = sorted(results.trials(task.task_id), key=lambda trial: trial.number)
            parameters = _parameters([trial.config for trial in trials])
            for trial in trials:
                study.add_trial(_trial(trial, task, parameters, results))
        connection = storage.engine.raw_connection().driver_connection
        assert isinstance(connection, sqlite3.Connection)
        return connection.serialize()
    finally:
        storage.engine.dispose()


def _study_attributes(task: TaskInfo) -> dict[str, Any]:
    key, selection = task.key, task.selection
    found = {
        "kernel": key.kernel,
        "workload": key.workload.as_dict(),
        "device": key.device.name,
    }
    if selection is None:
        return found
    ties = [dict(config) for config in selection.tie_set]
    return {
        **found,
        "winner": dict(selection.winner),
        "tie_set": ties,
        "verdict": selection.verdict,
    }


def _trial(
    record: TrialRecord, task: TaskInfo, parameters: Mapping[str, _Parameter], results: Results
) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    correct = record.status is Status.CORRECT
    timed = correct and record.median_us is not None
    untimed = TrialState.PRUNED if correct else TrialState.FAIL
    trial = create_trial(
        state=TrialState.COMPLETE if timed else untimed,
        value=record.median_us if timed else None,
        params={name: parameters[name].external(v) for name, v in record.config.items()},
        distributions={name: parameters[name].distribution for name in record.config},
        user_attrs=_trial_attributes(record, task),
        constraints={CONSTRAINT: -1.0 if correct else 1.0},
    )
    # Optuna's tables hold UTC without a time zone.
    finished = record.finished_at or results.run.started_at
    finished = finished.astimezone(UTC).replace(tzinfo=None) if finished.tzinfo else finished
    trial.datetime_complete = finished
    trial.datetime_start = finished - timedelta(seconds=record.build_s + record.device_s)
    return trial


def _trial_attributes(record: TrialRecord, task: TaskInfo) -> dict[str, Any]:
    facts = {name: getattr(record, name) for name in _FACTS}
    found = {name: value for name, value in facts.items() if value not in (None, "")}
    ratio = record.log_ratio
    if record.median_us is not None and ratio is not None and ratio.ends:
        # As far as the comparison with the incumbent is uncertain.
        interval = [record.median_us * math.exp(end - ratio.value) for end in ratio.ends]
        found |= {"interval_us": interval} if all(map(math.isfinite, interval)) else {}
    if task.selection and config_key(record.config) == config_key(task.selection.winner):
        found["winner"] = True
    return found


class _Parameter:
    """An Optuna distribution over the values that one parameter had in a task's trials.

    Integers become an integer range, in the logarithm where all are powers of two; all other values
    become a categorical choice. Choices that Python takes to be equal, such as 1 and True, and
    numbers beyond 64 bits are written as JSON texts.
    """

    def __init__(self, values: Sequence[Value]) -> None:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        self.distribution: BaseDistribution
        self._as_text = False
        numbers = [value for value in values if type(value) is int and abs(value) < 1 << 53]
        if len(numbers) == len(values):
            log = len(set(numbers)) > 1 and all(n > 0 and n & (n - 1) == 0 for n in numbers)
            self.distribution = IntDistribution(min(numbers), max(numbers), log=log)
            return
        texts = sorted({json.dumps(value) for value in values})
        plain = [json.loads(text) for text in texts]
        self._as_text = any(a == b for a, b in itertools.combinations(plain, 2)) or any(
            type(value) is int and abs(value) >= 1 << 53 for value in plain
        )
        self.distribution = CategoricalDistribution(texts if self._as_text else plain)

    def external(self, value: Value) -> Value:
        return json.dumps(value) if self._as_text else value


def _parameters(configs: Sequence[Mapping[str, Value]]) -> dict[str, _Parameter]:
    names = dict.fromkeys(name for config in configs for name in config)
    return {
        name: _Parameter([config[name] for config in configs if name in config]) for name in names
    }
