"""The launch of a library's kernel with a config of a table in the place of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ._call_key import GRID, is_call_key
from ._captured_calls import is_between
from ._compile_mode import never_compiles
from ._decorators import Decorated
from ._entry import Hit
from ._own_configs import OwnConfigs, as_config, bound_prune
from ._plan import Plan, plan_default, plan_for, plan_substitutes
from ._text import printable


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """A launch with the config of a table."""

    hit: Hit
    #: What the launch passes by keyword in place of, or in addition to, the caller's keywords.
    config: dict[str, Any]
    #: The config as `triton.Config`.
    best: Any
    #: The `pre_hook` of the config.
    pre_hook: Callable[[Mapping[str, Any]], object] | None = None
    #: Positions of arguments that the config replaces.
    places: dict[int, Any] = field(default_factory=dict)
    #: Whether the launch is a hit that only merges the config into the keywords.
    plain: bool = False

    @property
    def text(self) -> str:
        return f"config {printable(self.config)} of table {self.hit.table}"

    def launch(
        self, parts: Decorated, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any
    ) -> Any:
        """Launch as Triton does after tuning: heuristics, the config's hook, the function.

        Heuristics around an autotuner run before it; without one they depend on the config.
        """
        args, values = self._bind(parts, args, kwargs)
        if parts.tuner is not None:
            parts.tuner.best_config = self.best
        if self.pre_hook is not None:
            given = dict(zip(parts.names, args, strict=False))
            self.pre_hook({**given, **values, **self.best.all_kwargs()})
        return parts.launched.run(*args, grid=grid, warmup=False, **values)

    def _bind(
        self, parts: Decorated, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What is launched by position and by keyword."""
        values, tuner = dict(kwargs), parts.tuner
        if tuner is None:
            args = tuple(self.places.get(at, value) for at, value in enumerate(args))
            values.update(self.config)
        given = dict(zip(parts.names, args, strict=False))
        for rules in parts.outer:
            for name, rule in rules.items():
                if tuner is not None or name not in self.config:
                    values[name] = rule({**given, **values})
        return args, {**values, **self.config}

    def bind_constants(
        self, parts: Decorated, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The arguments and options that this plan sets, or that depend on them."""
        args, values = self._bind(parts, args, kwargs)
        bound = {**dict(zip(parts.names, args, strict=False)), **values}
        own = {*self.config, *(parts.names[at] for at in self.places)}
        own.update(parts.computed if parts.tuner is None else ())
        return {name: bound[name] for name in own}


def applied_plan(
    parts: Decorated,
    hit: Hit,
    named: Mapping[str, Any],
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
    grid: Any,
) -> tuple[AppliedPlan | None, str]:
    """The plan for a hit; or None with the reason why the config must not be launched, which is
    empty for a call of other sizes whose config is none of the library's own, nor verified there.

    named: all arguments of the launch by name, with defaults and what outer heuristics compute.
    keywords: those that are passed by keyword, and what outer heuristics compute.
    """
    unverified = _is_near_call(hit) and not (hit.entry and is_between(hit.entry, named))
    if parts.tuner is not None:
        own, passed = _own_configs(parts, args, keywords, grid)
        found, problem = plan_for(own, parts.names, hit, passed)
        if unverified and not (found and any(found.best is item for item in own.kept)):
            return None, ""
    else:
        if unverified and not _is_callers(hit, named):
            return None, ""
        found, problem = _without_tuner(parts, hit, named, grid)
        if found and unverified:
            found = replace(found, config={})  # launched as the caller does, whatever it chooses
    return (None, problem) if found is None else (_make_applied(parts, found, args), "")


def _is_near_call(hit: Hit) -> bool:
    return hit.how == "nearest" and hit.entry is not None and is_call_key(hit.entry.key)


def _is_callers(hit: Hit, named: Mapping[str, Any]) -> bool:
    """Whether a config is what the caller of a kernel without an autotuner chooses."""
    given = {**as_config({}).all_kwargs(), **named}
    return all(given.get(name) == value for name, value in hit.config.items())


def applied_default(
    parts: Decorated,
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
    grid: Any,
) -> AppliedPlan | None:
    """The plan of a kernel's default config, for a miss that must not tune.

    None for a kernel that has no autotuner: its caller chooses the config. The arguments are as for
    `applied_plan`.
    """
    if parts.tuner is None:
        return None
    own, passed = _own_configs(parts, args, keywords, grid)
    found = plan_default(own, parts.names, passed)
    return None if found is None else _make_applied(parts, found, args)


def applied_substitutes(
    parts: Decorated,
    plan: AppliedPlan | None,
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
    grid: Any,
) -> Iterator[AppliedPlan | None]:
    """What may be launched where a plan is not compiled; None is the library's own launch, which
    tunes nothing."""
    if parts.tuner is None:
        yield None
        return
    own, passed = _own_configs(parts, args, keywords, grid)
    for found in plan_substitutes(own, parts.names, plan.hit if plan else None, passed):
        yield _make_applied(parts, found, args)


def _own_configs(
    parts: Decorated, args: tuple[Any, ...], keywords: Mapping[str, Any], grid: Any
) -> tuple[OwnConfigs, dict[str, Any]]:
    """The configs of the library's autotuner, and what the launch passes by name."""
    prune = getattr(parts.tuner, "early_config_prune", None)
    own = OwnConfigs(parts.tuner.configs, bound_prune(prune, parts.names, args, keywords, grid))
    return own, {**dict(zip(parts.names, args, strict=False)), **keywords}


def _make_applied(parts: Decorated, found: Plan, args: tuple[Any, ...]) -> AppliedPlan:
    config = dict(found.config)
    by_place = parts.names[: len(args)]
    places = {at: config.pop(name) for at, name in enumerate(by_place) if name in config}
    plain = not (parts.outer or found.pre_hook or places or found.hit.how == "default")
    plain = plain and not never_compiles()
    return AppliedPlan(found.hit, config, found.best, found.pre_hook, places, plain)


def _without_tuner(
    parts: Decorated, hit: Hit, named: Mapping[str, Any], grid: Any
) -> tuple[Plan | None, str]:
    """The plan for a kernel whose caller chooses the config: the table's values replace the
    caller's, and have their types."""
    from triton import Config

    own = {name: named[name] for name in hit.config if name in named and name in parts.names}
    for name in own.keys() - parts.constants:
        return None, f"sets {printable(name, 40)}, which is an argument of the caller's"
    if not callable(grid) and not (hit.how == "exact" and hit.entry and GRID in hit.entry.key):
        for name, value in own.items():
            if hit.config[name] != value:
                return None, (
                    f"sets {name}, on which the grid of this launch may depend: it is a tuple, and "
                    "the table's keys have no dim grid"
                )
    free = {name: value for name, value in named.items() if name not in hit.config}
    return plan_for(OwnConfigs([Config(own)], None), parts.names, hit, free)
