"""`tuner trials`: the stored trials of a run, all of them or those that meet conditions.

Conditions are written as `num_warps=8 status=failed time<50us`.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.stored_records import NOT_CHECKED
from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from search_spaces.records import Status, Value
from tuner.cli.command_context import ConfigOption, RunArgument, open_store
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.views.column import Column
from tuner.views.runs import pick_run
from tuner.views.units import format_us

if TYPE_CHECKING:
    from results_db.stored_records import FoundTrial

_TRIALS: tuple[Column[FoundTrial], ...] = (
    Column("kernel"),
    Column("workload", lambda trial: trial.workload.key),
    Column("device"),
    Column("status", lambda trial: trial.state),
    Column("source", heading=None),
    Column("strategy", heading=None),
    Column("median_us", show=lambda trial: format_us(trial.median_us), heading="time"),
    Column("registers", heading=None),
    Column("spill_bytes", heading=None),
    Column("shared_bytes", heading=None),
    Column("config", lambda trial: dict(sorted(trial.config.items()))),
    Column("message"),
)


def list_trials(
    run: RunArgument = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only trials that meet these conditions, as 'num_warps=8 status=failed "
            "time<50us'; may be repeated."
        ),
    ] = None,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """List the trials of a run, task by task, in the order in which they were proposed."""
    from results_db.stored_records import TrialFilter
    from search_spaces.records import Status

    conditions = parse_conditions(where or ())
    with open_store(config) as store:
        info = pick_run(store, run)
        trials = store.list_trials(TrialFilter(info.run_id, statuses=tuple(Status)))
        tasks = store.number_tasks(info.run_id)
    name: Column[FoundTrial] = Column(
        "trial", lambda each: f"{each.run_id}/{tasks[each.task_id]}/{each.number}"
    )
    found = find_matching(trials, conditions)
    if found or style is not Format.TABLE:
        emit(found, (name, *_TRIALS), style)
    if not found:
        note(explain_none(trials, conditions))


_FORM = re.compile(r"(\w[\w.-]*)(!=|<=|>=|=|<|>|~)(.*)", re.DOTALL)
_NUMBER = re.compile(r"([-+]?[\d.]+(?:e[-+]?\d+)?)\s*(us|ms|s|)", re.IGNORECASE)
_UNITS_US = {"": 1.0, "us": 1.0, "ms": 1e3, "s": 1e6}
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FACTS: Mapping[str, Callable[[FoundTrial], Value]] = {
    "kernel": lambda trial: trial.kernel,
    "workload": lambda trial: trial.workload.key,
    "device": lambda trial: trial.device,
    "status": lambda trial: trial.state,
    "message": lambda trial: trial.message,
    "source": lambda trial: str(trial.source),
    "strategy": lambda trial: trial.strategy,
    "time": lambda trial: trial.median_us,
    "number": lambda trial: trial.number,
    "registers": lambda trial: trial.registers,
    "spill_bytes": lambda trial: trial.spill_bytes,
    "shared_bytes": lambda trial: trial.shared_bytes,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on a trial. A trial without a value of that name does not meet it."""

    #: A fact, a parameter of the config or a dim of the workload, in this order.
    name: str
    #: `=`, `!=`, `<`, `<=`, `>`, `>=`, or `~` for a text that is contained.
    sign: str
    text: str

    def holds(self, trial: FoundTrial) -> bool:
        """Whether a trial meets it."""
        values = list_values(trial)
        if self.name not in values:
            return False
        value = values[self.name]
        if self.sign in _ORDERS:
            asked = _read_number(self.text)
            if asked is None or not isinstance(value, int | float):
                return False
            return _ORDERS[self.sign](value, asked)
        if self.sign == "~":
            return self.text.casefold() in f"{value}".casefold()
        return self._equals(value) == (self.sign == "=")

    def _equals(self, value: Value) -> bool:
        if self.name == "status" and self.text == "failed":
            return value not in (Status.CORRECT, NOT_CHECKED)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _read_number(self.text) == value
        return f"{value}".casefold() == self.text.casefold()


def list_values(trial: FoundTrial) -> dict[str, Value]:
    """What conditions can name of a trial; facts that are unknown are left out."""
    facts = {name: read(trial) for name, read in _FACTS.items()}
    known = {name: value for name, value in facts.items() if value is not None}
    return {**trial.workload.as_dict(), **trial.config, **known}


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """The conditions of all texts, each with blanks between conditions and quotes around blanks.

    Raises `TunerError` for what is no condition.
    """
    return [_parse(word) for text in texts for word in _split(text)]


def find_matching(
    trials: Sequence[FoundTrial], conditions: Sequence[Condition]
) -> list[FoundTrial]:
    """The trials that meet all conditions. Raises `TunerError` for a name that no trial has."""
    known = dict.fromkeys(_FACTS)
    for trial in trials if conditions else ():
        known |= dict.fromkeys(list_values(trial))
    for condition in conditions:
        if trials and condition.name not in known:
            raise TunerError(
                f"--where: no trial has {condition.name!r}{did_you_mean(condition.name, known)}",
                f"known here: {', '.join(known)}",
            )
    return [trial for trial in trials if all(each.holds(trial) for each in conditions)]


def explain_none(trials: Sequence[FoundTrial], conditions: Sequence[Condition]) -> str:
    """Why no trial meets all conditions: the first value that no trial has, or all together."""
    for each in conditions:
        if each.sign == "=" and not any(map(each.holds, trials)):
            values = {f"{list_values(trial).get(each.name)}" for trial in trials}
            values |= {"failed", *Status} if each.name == "status" else set()
            near = did_you_mean(each.text, sorted(values))
            return f"no trial has {each.name}={each.text}{near}"
    return "no trial matches" if conditions else "the run has no trial"


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise TunerError(f"--where {text!r}: {error}", "close the quotes") from error


def _parse(word: str) -> Condition:
    found = _FORM.fullmatch(word)
    if found is None:
        raise TunerError(
            f"--where: {word!r} is no condition",
            "write a name, one of = != < <= > >= ~, and a value, as in 'num_warps=8 time<50us'",
        )
    condition = Condition(*found.groups())
    if condition.sign in _ORDERS and _read_number(condition.text) is None:
        raise TunerError(
            f"--where: {condition.text!r} in {word!r} is no number", "write 8, 1.5e3, 50us or 2ms"
        )
    return condition


def _read_number(text: str) -> float | None:
    """A number, times in microseconds; None for other texts."""
    found = _NUMBER.fullmatch(text)
    try:
        return float(found[1]) * _UNITS_US[found[2].lower()] if found else None
    except ValueError:
        return None
