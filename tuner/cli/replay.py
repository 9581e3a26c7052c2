"""`tuner replay`: repeat the decisions of a run from its events."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.command_context import flag
from tuner.cli.console import Format, FormatOption, emit, note

if TYPE_CHECKING:
    from tuner.engine.task import Task

_COLUMNS = ("task", "stage", "trials", "failed", "best_us", "winner")


def replay(
    events: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that `tuner run --events` has written.")
    ],
    validate: Annotated[
        bool, flag("--validate", help="Check the engine's state after every event.")
    ] = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Repeat the decisions of a run from its events, without workers or database.

    The exit code is 1 if the engine ends in another state than in the run. The kernels that the
    file names are imported, so replay only files that you trust.
    """
    from tuner.campaign.replay import replay as play

    replayed = play(events, validate=validate)
    emit([_row(task) for task in replayed.engine.tasks], _COLUMNS, style, empty="no tasks")
    note(f"{replayed.events} events end in the state of the run, digest {replayed.digest:.12}")


def _row(task: Task) -> dict[str, object]:
    from search_spaces.records import Status, config_key

    records = [trial.record for trial in task.search.trials.values() if trial.record is not None]
    incumbent = task.search.incumbent
    winner = task.finals.tie[0] if task.finals is not None and task.finals.tie else None
    known = incumbent is not None and incumbent.score is not None
    return {
        "task": task.spec.label,
        "stage": task.stage.value,
        "trials": len(records),
        "failed": sum(record.status is not Status.CORRECT for record in records),
        "best_us": math.exp(incumbent.score) if known and incumbent and incumbent.score else None,
        "winner": None if winner is None else config_key(winner.config),
    }
