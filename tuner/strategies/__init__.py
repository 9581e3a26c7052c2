"""Strategies by name; others by entry points of the group `tuner.strategies`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, cast

from search_spaces.errors import TunerError
from search_spaces.params import Choice, PowerOfTwo
from search_spaces.plugins import PluginGroup
from search_spaces.records import Device, Status, Workload
from search_spaces.space import BoundSpace, SearchSpace
from tuner.strategies.guarded import GuardedStrategy, guard
from tuner.strategies.strategy import PendingAware, Strategy

_BUILT_IN = ("bayes", "tpe", "gp", "cmaes", "random", "grid", "exhaustive")
STRATEGIES = PluginGroup(
    "tuner.strategies",
    "strategy",
    {name: f"tuner.strategies.samplers:{name}" for name in _BUILT_IN},
)

__all__ = ["PendingAware", "Strategy", "check", "create", "names"]


def names() -> list[str]:
    """The names `create` takes."""
    return list(STRATEGIES.names())


def check(name: str, options: Mapping[str, Any]) -> None:
    """Raise the `TunerError` of an unknown name or of options the strategy cannot use.

    Options, and strategies of installed packages, are tried on a space of four configs, so that
    none fails in the middle of a campaign.
    """
    if STRATEGIES.is_built_in(name) and not options:
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
        raise _make_error(name, error) from error


def create(
    name: str, space: BoundSpace, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Strategy:
    """A strategy over a bound space.

    An entry point is a callable `(space, seed, **options)` that returns an Optuna sampler or a
    `Strategy`. Raises `TunerError` for an unknown name or options the strategy does not take; a
    strategy of an installed package raises it for its own faults, too (`GuardedStrategy`).
    """
    make = cast("Callable[..., Any]", STRATEGIES.load(name))
    from optuna.samplers import BaseSampler

    from tuner.strategies.study_strategy import StudyStrategy

    unusable = partial(STRATEGIES.unusable, name)
    own = STRATEGIES.is_built_in(name)
    with nullcontext() if own else guard("its constructor", name, unusable):
        made = _make(make, name, space, seed, options or {})
        if isinstance(made, BaseSampler):
            made = StudyStrategy(space, seed, made, name=name)
    strategy: Strategy = made if own else GuardedStrategy(made, name, space, unusable)
    return strategy


def _make(
    make: Callable[..., Any], name: str, space: BoundSpace, seed: int, options: Mapping[str, Any]
) -> Any:
    try:
        return make(space, seed, **options)
    except TypeError as error:
        raise _make_error(name, error) from error


def load(names: Iterable[str]) -> None:
    """Import the strategies of those names; raises `TunerError` for one that cannot be imported."""
    for name in names:
        STRATEGIES.load(name)


def load_numerics(names: Iterable[str]) -> None:
    """Begin to import the libraries behind strategies and statistics, in a thread.

    They take half a second, and a search needs them after its first results only. names: of the
    strategies in use.
    """
    modules = ["scipy.special"]
    if "bayes" in names:
        modules += ["scipy.linalg", "scipy.optimize"]

    def load() -> None:
        for module in modules:
            import_module(module)

    threading.Thread(target=load, name="imports", daemon=True).start()


def _make_error(name: str, error: Exception) -> TunerError:
    hint = "see its documentation"
    if STRATEGIES.is_built_in(name):
        make = cast("Callable[..., Any]", STRATEGIES.load(name))
        given = signature(make).parameters.values()
        options = ", ".join(f"`{each.name}`" for each in given if each.kind is each.KEYWORD_ONLY)
        hint = f"its options are {options or 'those of its Optuna sampler'}"
    return TunerError(
        f"strategy {name!r} cannot use these options: {' '.join(f'{error}'.split())}", hint
    )
