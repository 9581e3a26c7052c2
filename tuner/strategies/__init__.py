"""Strategies by name; others by entry points of the group `tuner.strategies`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from search_spaces.errors import TunerError
from search_spaces.params import Choice, PowerOfTwo
from search_spaces.plugins import PluginGroup
from search_spaces.records import Device, Status, Workload
from search_spaces.space import BoundSpace, SearchSpace
from tuner.strategies.base import Strategy

_OPTUNA = ("tpe", "gp", "cmaes", "random", "grid")
STRATEGIES = PluginGroup(
    "tuner.strategies",
    "strategy",
    {
        **dict.fromkeys(_OPTUNA, "tuner.strategies.optuna_samplers:OptunaStrategy"),
        "bayes": "tuner.strategies.bayes:BayesStrategy",
        "exhaustive": "tuner.strategies.exhaustive:ExhaustiveStrategy",
    },
)
#: What the strategies of our own take as options.
_TAKES = {"exhaustive": "`shuffle`", "bayes": "`initial`"}

__all__ = ["Strategy", "check", "create", "names"]


def names() -> list[str]:
    """The names `create` takes."""
    return list(STRATEGIES.names())


def check(name: str, options: Mapping[str, Any]) -> None:
    """Raise the `TunerError` of an unknown name or of options the strategy cannot use.

    Options are tried on a space of four configs, so that none fails in the middle of a campaign.
    """
    if name in names() and not options:
        return
    space = SearchSpace([PowerOfTwo("a", 1, 2), Choice("b", (0, 1))])
    bound = space.bind(Workload.of(), Device("cpu", "none", "cpu"))
    try:
        strategy = create(name, bound, 1, options)
        for config in strategy.ask(2):
            strategy.tell(config, 1.0, Status.CORRECT)
        strategy.ask(1)
    except TunerError:
        raise
    except Exception as error:
        raise _refused(name, error) from error


def create(
    name: str, space: BoundSpace, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Strategy:
    """A strategy over a bound space; a callable `(space, seed, **options)` per entry point.

    Raises `TunerError` for an unknown name or options the strategy does not take.
    """
    options = dict(options or {})
    make = cast("Callable[..., Strategy]", STRATEGIES.load(name))
    try:
        if name in _OPTUNA:
            return make(space, seed, name=name, options=options)
        return make(space, seed, **options)
    except TypeError as error:
        raise _refused(name, error) from error


def _refused(name: str, error: Exception) -> TunerError:
    takes = _TAKES.get(name, "those of its Optuna sampler")
    known = name in _OPTUNA or name in _TAKES
    return TunerError(
        f"strategy {name!r} cannot use these options: {' '.join(f'{error}'.split())}",
        f"its options are {takes}" if known else "see its documentation",
    )
