"""A search space on one workload and device: counting, enumerating, sampling, neighbours."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias

from search_spaces.constraints import Constraint, Preference
from search_spaces.errors import SpaceError, TunerError
from search_spaces.feasible_walk import walk
from search_spaces.near_names import did_you_mean
from search_spaces.params import Parameter, Restricted, is_active, is_member
from search_spaces.records import Config, Device, Value, Workload, config_key
from search_spaces.source_positions import one_line

#: Numbers for a model of times, in addition to the parameters; pure, equally many per config.
Features: TypeAlias = Callable[[Config, Workload, Device], Sequence[float]]

#: Raw configs up to which sampling enumerates the space instead of rejecting draws.
_ENUMERATED = 100_000
#: Draws per requested point before rejection sampling gives up.
_TRIES = 1_000
#: Raw configs that are evaluated to find the constraint that empties a space.
_DIAGNOSED = 100_000


class BoundSpace:
    """The feasible configs of a workload on a device.

    A config holds exactly the active parameters, in the order of declaration. Constraints are
    pure, so counts and enumerations are cached.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        constraints: Sequence[Constraint],
        workload: Workload,
        device: Device,
        *,
        kernel: str = "",
        features: Features | None = None,
        admits: Sequence[str | Parameter] = (),
    ) -> None:
        self.parameters = tuple(parameters)
        self.workload = workload
        self.device = device
        self._constraints = tuple(constraints)
        self._kernel = kernel
        self._features = features
        self._admits = tuple(admits)
        self._by_name = {parameter.name: parameter for parameter in self.parameters}
        self._values = {parameter.name: parameter.values() for parameter in self.parameters}
        self._size: int | None = None
        self._points: tuple[Config, ...] | None = None

    # -- counting and listing ------------------------------------------------------------------
    def cardinality(self) -> int:
        """Configs before constraints; inactive conditional parameters are not multiplied in."""
        named = {other for parameter in self.parameters for other in parameter.when or {}}

        def count(at: int, partial: dict[str, Value]) -> int:
            if at == len(self.parameters):
                return 1
            parameter = self.parameters[at]
            if not is_active(parameter, partial):
                return count(at + 1, partial)
            if parameter.name not in named:
                return len(self._values[parameter.name]) * count(at + 1, partial)
            return sum(
                count(at + 1, {**partial, parameter.name: value})
                for value in self._values[parameter.name]
            )

        return count(0, {})

    def size(self) -> int:
        """Feasible configs; walks the whole space once."""
        if self._size is None:
            self._size = sum(1 for _ in self.enumerate())
        return self._size

    def enumerate(self) -> Iterator[Config]:
        """Every feasible config, lazily, in the order of declaration and values."""
        if self._points is not None:
            return iter(self._points)
        checks = [partial(self._holds, constraint) for constraint in self._constraints]
        return walk(self.parameters, self._values, checks)

    def require_feasible(self) -> None:
        """Raise `SpaceError` when no config is feasible, with the strictest constraint."""
        if next(self.enumerate(), None) is not None:
            return
        removed = dict.fromkeys((item.name for item in self._constraints), 0)
        seen = 0
        for config in islice(walk(self.parameters, self._values), _DIAGNOSED):
            seen += 1
            for constraint in self._constraints:
                removed[constraint.name] += not self._holds(constraint, config)
        worst = max(self._constraints, key=lambda item: removed[item.name])
        raise SpaceError(
            f"{self._where()}: none of {seen} configs is feasible; {worst.name} "
            f"({worst.reason}) rules out {removed[worst.name]} of them",
            "widen the parameters, relax that constraint, or leave this workload out",
        )

    # -- drawing -------------------------------------------------------------------------------
    def sample(self, rng: random.Random, n: int = 1) -> list[Config]:
        """Up to `n` distinct feasible configs, uniformly.

        Fewer come back when the space has fewer or, in a huge space, when feasible points are too
        rare to be hit by chance.
        """
        if self.cardinality() <= _ENUMERATED:
            if self._points is None:
                self._points = tuple(self.enumerate())
                self._size = len(self._points)
            return [dict(item) for item in rng.sample(self._points, min(n, len(self._points)))]
        found: dict[str, Config] = {}
        for _ in range(_TRIES * n):
            if len(found) == n:
                break
            config = self._draw(rng)
            if config is not None and self._find_failed(config) is None:
                found.setdefault(config_key(config), config)
        return list(found.values())

    def _draw(self, rng: random.Random) -> Config | None:
        """A raw config, each equally likely, or None.

        Every parameter draws, the inactive ones too; a config stands for as many draws as its
        inactive parameters have values, so only the draw where all of them came first counts.
        """
        config: dict[str, Value] = {}
        counts = True
        for parameter in self.parameters:
            values = self._values[parameter.name]
            at = rng.randrange(len(values))
            if is_active(parameter, config):
                config[parameter.name] = values[at]
            else:
                counts = counts and at == 0
        return config if counts else None

    # -- judging one config --------------------------------------------------------------------
    def why_not(self, config: Config) -> str | None:
        """Why a config is not a feasible point, in one line; None when it is one."""
        return self._find_fault(config, {}, self._constraints)

    def why_invalid(self, config: Config) -> str | None:
        """Why a launch with a config is wrong or impossible here; None where it is right, whether
        or not a search would try it."""
        admitted = {item if isinstance(item, str) else item.name: item for item in self._admits}
        rules = [item for item in self._constraints if not isinstance(item, Preference)]
        return self._find_fault(config, admitted, rules)

    def _find_fault(
        self,
        config: Config,
        admitted: Mapping[str, str | Parameter],
        constraints: Sequence[Constraint],
    ) -> str | None:
        for name in config:
            if name not in self._by_name and name not in admitted:
                return f"unknown parameter {name}{did_you_mean(name, self._by_name)}"
        for name in [*self._by_name, *(name for name in admitted if name not in self._by_name)]:
            fault = self._find_fault_of(name, config, admitted.get(name))
            if fault is not None:
                return fault
        failed = self._find_failed(config, constraints)
        return None if failed is None else f"{failed.name}: {failed.reason}"

    def _find_fault_of(self, name: str, config: Config, more: str | Parameter | None) -> str | None:
        """What is wrong with one value; nothing where `more`, what is admitted, is the name."""
        parameter = self._by_name.get(name)
        if isinstance(more, str) or (more is not None and name not in config):
            return None
        if parameter is not None and more is None and not is_active(parameter, config):
            if name in config:
                return f"{name} is given, but only applies when {_condition(parameter)}"
            return None
        if name not in config:
            return f"{name} is missing"
        known = [item for item in (parameter, more) if item is not None]
        if any(item.contains(config[name]) for item in known):
            return None
        return f"{name} is {config[name]!r}, not one of {_listing(known[0].values())}"

    def feasible(self, config: Config) -> bool:
        return self.why_not(config) is None

    def _find_failed(
        self, config: Config, constraints: Sequence[Constraint] | None = None
    ) -> Constraint | None:
        for constraint in self._constraints if constraints is None else constraints:
            if not self._holds(constraint, config):
                return constraint
        return None

    def _holds(self, constraint: Constraint, config: Config) -> bool:
        try:
            return bool(constraint.check(config, self.workload, self.device))
        except TunerError:
            raise
        except Exception as error:
            raise self._make_error(f"constraint {constraint.name} raises", error, config) from error

    def _make_error(self, what: str, error: Exception, config: Config) -> SpaceError:
        return SpaceError(
            f"{self._where()}: {what} {one_line(error)} on {config_key(config)}",
            "constraints and features must answer for every config; read conditional parameters "
            "with config.get",
        )

    # -- moving about --------------------------------------------------------------------------
    def neighbours(self, config: Config) -> list[Config]:
        """Feasible configs one parameter step away; conditional parameters are completed."""
        found: dict[str, Config] = {}
        for parameter in self.parameters:
            if parameter.name not in config:
                continue
            for value in parameter.neighbours(config[parameter.name]):
                moved = self.complete({**config, parameter.name: value})
                if self._find_failed(moved) is None:
                    found.setdefault(config_key(moved), moved)
        found.pop(config_key(config), None)
        return list(found.values())

    def encode(self, config: Config) -> dict[str, float]:
        """The active parameters as numbers, for optimisers and plots."""
        return {
            parameter.name: float(parameter.encode(config[parameter.name]))
            for parameter in self.parameters
            if parameter.name in config
        }

    def features(self, config: Config) -> tuple[float, ...]:
        """The kernel's features of a config, for a model of its time."""
        if self._features is None:
            return ()
        try:
            return tuple(map(float, self._features(config, self.workload, self.device)))
        except Exception as error:
            raise self._make_error("its features raise", error, config) from error

    def complete(self, partial: Config) -> Config:
        """A whole config from part of one: what is inactive or unknown is dropped, what is missing
        takes its default. Values are kept as they are, feasible or not."""
        config: dict[str, Value] = {}
        for parameter in self.parameters:
            if is_active(parameter, config):
                config[parameter.name] = partial.get(parameter.name, parameter.default)
        return config

    def restrict(self, allowed: Mapping[str, Sequence[Value]]) -> BoundSpace:
        """The same space with some parameters narrowed to the given values."""
        for name, values in allowed.items():
            if name not in self._by_name:
                raise SpaceError(
                    f"{self._where()}: no parameter {name}{did_you_mean(name, self._by_name)}",
                    f"the parameters are {', '.join(self._by_name)}",
                )
            known = self._by_name[name].values()
            listed = not isinstance(values, str) and isinstance(values, Sequence)
            unknown = [item for item in values if not is_member(item, known)] if listed else []
            if not listed or not values or unknown:
                wrong = repr(unknown[0]) if unknown else f"{values!r}, not a list of values"
                raise SpaceError(
                    f"{self._where()}: parameter {name} cannot be {wrong}",
                    f"list some of {_listing(known)}",
                )
        parameters = [
            _narrow(item, allowed[item.name]) if item.name in allowed else item
            for item in self.parameters
        ]
        return BoundSpace(
            parameters,
            self._constraints,
            self.workload,
            self.device,
            kernel=self._kernel,
            features=self._features,
            admits=self._admits,
        )

    def _where(self) -> str:
        return f"{self._kernel or 'space'} [{self.workload.key}] on {self.device.target}"


def _narrow(parameter: Parameter, allowed: Sequence[Value]) -> Parameter:
    base = parameter.base if isinstance(parameter, Restricted) else parameter
    return Restricted(base, tuple(item for item in base.values() if is_member(item, allowed)))


def _condition(parameter: Parameter) -> str:
    return " and ".join(
        f"{other} is {_listing(values)}" for other, values in (parameter.when or {}).items()
    )


def _listing(values: Sequence[Value], shown: int = 12) -> str:
    text = ", ".join(repr(value) for value in values[:shown])
    return text if len(values) <= shown else f"{text}, ... {values[-1]!r}"
