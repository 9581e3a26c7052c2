"""`tuner tag`: give a run a name by which every command takes it."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from search_spaces.errors import TunerError
from tuner.cli.command_context import ConfigOption, flag, settings_of, store_of
from tuner.cli.completion import complete_runs
from tuner.cli.console import note
from tuner.views.runs import pick_run

#: A word that is no number and holds no `/`, which separates run, task and trial.
_NAME = re.compile(r"[^\W\d][\w.+-]{0,99}")


def tag(
    run: Annotated[
        str,
        typer.Argument(
            help="The run: its number or its tag.", metavar="RUN", autocompletion=complete_runs
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(help="A word that does not begin with a digit.", metavar="NAME"),
    ] = None,
    remove: Annotated[bool, flag("--remove", help="Remove the run's tag.")] = False,
    config: ConfigOption = None,
) -> None:
    """Give a run a tag, by which every command takes it, and keep it from `tuner prune`.

    A run has one tag, and a tag is that of one run: it moves from a run that has it.
    """
    if (name is None) != remove:
        raise TunerError("tag: give either NAME or --remove", "as in `tuner tag 7 baseline`")
    if name is not None and _NAME.fullmatch(name) is None:
        raise TunerError(
            f"{name!r:.120} is no name of a run",
            "write up to 100 letters, digits, '_', '.', '+' and '-', with a letter first",
        )
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        info = pick_run(store, run)
        former = store.tag_run(info.run_id, name)
    if former is not None:
        note(f"run {former} is no longer {name!r}")
    note(f"run {info.run_id} of {info.campaign} " + (f"is {name!r}" if name else "has no tag"))
