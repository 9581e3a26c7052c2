"""The stages of a task."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """How far a task has come. `results_db` stores these values."""

    #: Not opened yet: the run searches a bounded number of tasks at once.
    WAITING = "waiting"
    #: Configs are asked, built, verified and screened against the incumbent.
    SEARCH = "search"
    #: The finalists are built again where needed, and raced.
    FINALS = "finals"
    #: The winner of the race is measured in a fresh process.
    CONFIRM = "confirm"
    #: Over: selected, without any correct variant, or left for a later run.
    DONE = "done"
