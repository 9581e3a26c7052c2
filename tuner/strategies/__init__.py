"""Strategies by name; others by entry points of the group `tuner.strategies`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.space import BoundSpace
from tuner.strategies.base import Strategy

_OPTUNA = ("tpe", "gp", "cmaes", "random", "grid")
_GROUP = "tuner.strategies"

__all__ = ["Strategy", "create", "names"]


def names() -> list[str]:
    """The names `create` takes."""
    return sorted({*_OPTUNA, "exhaustive", *(e.name for e in entry_points(group=_GROUP))})


def create(
    name: str, space: BoundSpace, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Strategy:
    """A strategy over a bound space; a callable `(space, seed, **options)` per entry point.

    Raises `TunerError` for an unknown name or options the strategy does not take.
    """
    options = dict(options or {})
    try:
        if name in _OPTUNA:
            from tuner.strategies.optuna_strategy import OptunaStrategy

            return OptunaStrategy(space, seed, name=name, options=options)
        if name == "exhaustive":
            from tuner.strategies.exhaustive import ExhaustiveStrategy

            return ExhaustiveStrategy(space, seed, **options)
        for entry in entry_points(group=_GROUP):
            if entry.name == name:
                strategy: Strategy = entry.load()(space, seed, **options)
                return strategy
    except TypeError as error:
        raise TunerError(
            f"strategy {name!r} does not take these options: {error}",
            "see `strategy.options` in docs/configuration.md",
        ) from error
    near = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known strategies: {', '.join(names())}"
    raise TunerError(f"unknown strategy {name!r}", hint)
