"""The `Strategy` role: a source of configs for one task."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from search_spaces.records import Config, Status


class Strategy(Protocol):
    """Suggests feasible configs of one bound space and learns from their results.

    The engine may ignore a suggestion that was tried before, and then repeats the known result.
    A strategy never blocks. It keeps its state in the process: on resume it is rebuilt from the
    results database.
    """

    #: The name in `config.yaml`, also stored with every trial.
    name: str
    #: Suggestions depend on the seed alone and never on results. After an interruption the same
    #: sequence comes again, and the engine skips the configs that have a result.
    replays: bool

    def ask(self, n: int) -> list[Config]:
        """Up to `n` suggestions; an empty list means the space is exhausted."""
        ...

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        """Learn a result: `score` is ln(time in us), lower is better; None without a time."""
        ...


@runtime_checkable
class PendingAware(Protocol):
    """A strategy that also follows configs which it did not suggest and which have no result yet.

    These are the default config, warm starts and polish. All strategies learn their results.
    """

    def start(self, config: Config) -> None:
        """A config that the strategy did not suggest is being evaluated."""
        ...

    def withdraw(self, config: Config) -> None:
        """A config that is being evaluated gets no result; the strategy may suggest it again."""
        ...


def time_score(score: float | None, status: Status) -> float | None:
    """The score that a model may learn: a finite ln(time) of a correct config, else None."""
    correct = status is Status.CORRECT and score is not None and math.isfinite(score)
    return score if correct else None
