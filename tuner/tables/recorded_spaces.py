"""Exporter of recorded spaces: the trials of a task, for replay by the simulated backend."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from results_db.stored_records import TaskInfo, TrialRecord
from search_spaces.errors import TunerError
from search_spaces.params import is_member
from search_spaces.recorded.entries import RecordedConfig, RecordedParameter
from search_spaces.recorded.recorded_space import RecordedSpace, encode
from search_spaces.records import Config, Status, Value, config_key
from tuner.tables.exporters import File
from tuner.tables.results import Results
from tuner.tables.t4 import task_name


class Recorded:
    """`space`: one `tuner-space/1` file per task with a timed trial."""

    def files(self, results: Results) -> Iterator[File]:
        for task in results.tasks:
            trials = [t for t in results.trials(task.task_id) if _usable(t)]
            if any(trial.median_us for trial in trials):
                space = _space(task, trials)
                name = f"{task_name(task)}.space.json"
                yield File(name, encode(space).encode(), (task.task_id,))


def _usable(trial: TrialRecord) -> bool:
    return trial.status is not Status.CORRECT or bool(trial.median_us)


def _space(task: TaskInfo, trials: Sequence[TrialRecord]) -> RecordedSpace:
    newest = {config_key(trial.config): trial for trial in trials}
    kept = sorted(newest.values(), key=lambda trial: trial.number)
    timed = [trial for trial in kept if trial.median_us]
    selection = task.selection
    default: Config = min(timed, key=lambda trial: (trial.median_us, trial.number)).config
    if selection and selection.default and config_key(selection.default) in newest:
        default = selection.default
    return RecordedSpace(
        kernel=task.key.kernel,
        workload=task.key.workload,
        device=replace(task.key.device, uuid=""),
        toolchain=task.key.toolchain,
        parameters=parameters_of([trial.config for trial in kept]),
        default=default,
        configs=tuple(_config(trial) for trial in kept),
        flops=task.flops,
        bytes=task.bytes,
        tolerance=task.tolerance or 0.0,
        baselines=_baselines(task, newest),
    )


def _baselines(task: TaskInfo, newest: Mapping[str, TrialRecord]) -> Mapping[str, float]:
    """Median times, microseconds: a confirmed ratio times the recorded time of the winner.

    The confirmation runs at other clocks than the search that timed the configs.
    """
    timed = {b.name: b.median_us for b in task.baselines if b.median_us}
    winner = newest.get(config_key(task.selection.winner)) if task.selection else None
    time_us = winner and winner.median_us
    paired = {b.name: b.log_ratio.ratio for b in task.baselines if b.log_ratio and time_us}
    return timed | {name: ratio * time_us for name, ratio in paired.items() if time_us}


def parameters_of(configs: Sequence[Config]) -> tuple[RecordedParameter, ...]:
    """Parameters, their values and their conditions, inferred from configs.

    A parameter follows those in its condition, which may be conditional too. Raises TunerError
    where the values of other parameters do not determine which configs have a parameter.
    """
    remaining = list(dict.fromkeys(name for config in configs for name in config))
    found: dict[str, RecordedParameter] = {}
    while remaining:
        conditions = ((name, _condition(name, configs, list(found))) for name in remaining)
        known = ((name, when) for name, when in conditions if when is not None)
        name, when = next(known, ("", None))
        if when is None:
            raise TunerError(
                f"parameter {remaining[0]} is in some configs only; no other one decides which",
                "export the task as t4 or csv, which need no search space",
            )
        values = _values(name, [config for config in configs if name in config])
        found[name] = RecordedParameter(name, _kind(values), _order(values), when)
        remaining.remove(name)
    return tuple(found.values())


def _condition(
    name: str, configs: Sequence[Config], others: Sequence[str]
) -> Mapping[str, tuple[Value, ...]] | None:
    """The values of other parameters that decide whether a config has `name`.

    One parameter if possible, else a minimal set of several. Empty where every config has `name`;
    None where `others` do not decide.
    """
    having = [config for config in configs if name in config]
    lacking = [config for config in configs if name not in config]
    shown = {other: _values(other, having) for other in others if all(other in c for c in having)}

    def decides(named: Sequence[str]) -> bool:
        return not any(
            all(other in c and is_member(c[other], shown[other]) for other in named)
            for c in lacking
        )

    if decides(()):
        return {}
    needed = next(([other] for other in shown if decides([other])), list(shown))
    if not decides(needed):
        return None
    for other in reversed(needed):
        fewer = [one for one in needed if one != other]
        needed = fewer if decides(fewer) else needed
    return {other: _order(tuple(sorted(shown[other], key=repr))) for other in needed}


def _values(name: str, configs: Sequence[Config]) -> tuple[Value, ...]:
    """The distinct values in the order of their first use."""
    return tuple({repr(config[name]): config[name] for config in configs}.values())


def _kind(values: Sequence[Value]) -> str:
    if all(isinstance(value, bool) for value in values):
        return "boolean"
    if not all(type(value) is int for value in values):
        return "choice"
    numbers = [value for value in values if isinstance(value, int)]
    if all(number > 0 and number & (number - 1) == 0 for number in numbers):
        return "power_of_two"
    return "integer"


def _order(values: tuple[Value, ...]) -> tuple[Value, ...]:
    numbers = [value for value in values if isinstance(value, int | float)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else values


def _calibrate(trial: TrialRecord) -> tuple[float, ...]:
    """The samples at the clocks of the trial's median, which are those of the whole search."""
    if trial.status is not Status.CORRECT or not trial.samples_us or not trial.median_us:
        return ()
    factor = trial.median_us / statistics.median(trial.samples_us)
    return tuple(sample * factor for sample in trial.samples_us)


def _config(trial: TrialRecord) -> RecordedConfig:
    return RecordedConfig(
        config=dict(trial.config),
        status=trial.status,
        median_us=trial.median_us if trial.status is Status.CORRECT else None,
        binary=trial.binary_hash,
        registers=trial.registers or 0,
        spill_bytes=trial.spill_bytes or 0,
        shared_bytes=trial.shared_bytes or 0,
        build_s=trial.build_s,
        message=trial.message,
        samples_us=_calibrate(trial),
    )
