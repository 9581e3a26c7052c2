"""The `Strategy` role: who suggests the next configs of one task."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from search_spaces.records import Config, Status


class Strategy(Protocol):
    """Suggests feasible configs of one bound space and learns from results as they come.

    The engine may drop a suggestion (it was tried already) and always tells what it knows of it.
    A strategy never blocks and keeps no state outside the process: it is rebuilt from the results
    database on resume.
    """

    name: str
    #: The suggestions depend on the seed alone, never on what was told: after an interruption the
    #: same sequence comes again, and the engine skips what it has.
    replays: bool

    def ask(self, n: int) -> list[Config]:
        """Up to `n` suggestions; an empty list means the space is exhausted."""
        ...

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        """A result: `score` is ln(time in us), lower is better; None where nothing was timed."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A strategy that also wants to know which configs are tried without its having asked: the
    default, warm starts, polish. Their results are told to every strategy."""

    def under_way(self, config: Config) -> None: ...
