"""Strategies of installed packages: a fault in one is an error that names it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from search_spaces.errors import TunerError
from search_spaces.foreign_imports import contain_foreign_code
from search_spaces.records import Config, Status
from search_spaces.source_positions import one_line
from search_spaces.space import BoundSpace
from tuner.strategies.strategy import PendingAware, Strategy

if TYPE_CHECKING:
    from tuner.strategies.surrogate import Surrogate

_log = logging.getLogger(__name__)
#: After this time, seconds, a line says that a strategy has not answered; then again and again.
SLOW_S = 10.0
_ROLE = ("ask", "tell")


class GuardedStrategy:
    """A strategy whose exceptions, exits and wrong answers raise `TunerError`.

    name: in `config.yaml`. unusable: makes the error from a problem in words. It also follows
    configs that it did not suggest where the strategy does.
    """

    def __init__(
        self,
        strategy: Strategy,
        name: str,
        space: BoundSpace,
        unusable: Callable[[str], TunerError],
    ) -> None:
        lacking = [method for method in _ROLE if not callable(getattr(strategy, method, None))]
        if lacking:
            raise unusable(f"makes a {type(strategy).__name__}, which has no {lacking[0]}()")
        self.name = name
        self.replays = bool(getattr(strategy, "replays", False))
        #: The strategy of the package, or that around its sampler.
        self.strategy = strategy
        self._space, self._unusable = space, unusable

    @property
    def surrogate(self) -> Surrogate | None:
        """The strategy's model of the space, for the stopping rule; None where it has none."""
        found: Surrogate | None = getattr(self.strategy, "surrogate", None)
        return found

    def ask(self, n: int) -> list[Config]:
        with guard("ask", self.name, self._unusable):
            suggested = self.strategy.ask(n)
        if not isinstance(suggested, list) or len(suggested) > n:
            raise self._unusable(f"returns {suggested!r:.80} from ask({n}), not a list of configs")
        for config in suggested:
            self._check(config)
        return suggested

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        with guard("tell", self.name, self._unusable):
            self.strategy.tell(config, score, status)

    def start(self, config: Config) -> None:
        if isinstance(self.strategy, PendingAware):
            with guard("start", self.name, self._unusable):
                self.strategy.start(config)

    def withdraw(self, config: Config) -> None:
        if isinstance(self.strategy, PendingAware):
            with guard("withdraw", self.name, self._unusable):
                self.strategy.withdraw(config)

    def _check(self, config: object) -> None:
        try:
            feasible = isinstance(config, dict) and self._space.feasible(config)
        except Exception as error:
            raise self._unusable(f"suggests {config!r:.80}: {one_line(error)}") from error
        if not feasible:
            raise self._unusable(f"suggests {config!r:.80}, which is no config of the space")


@contextmanager
def guard(doing: str, name: str, unusable: Callable[[str], TunerError]) -> Iterator[None]:
    """A context for code of a strategy. Raises the error that names it; logs that it is slow."""
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(done, doing, name), daemon=True)
    watch.start()
    try:
        with contain_foreign_code():
            yield
    except TunerError:
        raise
    except (Exception, SystemExit) as error:
        raise unusable(f"fails in {doing}: {one_line(error)}") from error
    finally:
        done.set()


def _watch(done: threading.Event, doing: str, name: str) -> None:
    waited_s = SLOW_S
    while not done.wait(SLOW_S):
        _log.warning("strategy %r has not returned from %s for %.0f s", name, doing, waited_s)
        waited_s += SLOW_S
