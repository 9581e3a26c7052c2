"""Parameters of a search space: each knows its values, default, neighbours and encoding.

All are immutable and hold plain JSON values. A parameter with `when` is conditional: it is part of
a config only when every parameter it names is present and has one of the listed values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from search_spaces.errors import SpaceError
from search_spaces.records import Config, Value

When: TypeAlias = Mapping[str, Sequence[Value]]


def same_value(left: object, right: object) -> bool:
    """Equality that keeps `True`, `1` and `1.0` apart, as JSON does."""
    return type(left) is type(right) and left == right


def plain_value(value: Any) -> Any:
    """A number or text as JSON holds it: of numpy's scalars and of subclasses (enumerations) the
    value alone. Any other object as it is."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return value if type(value) is plain else plain(value)
    return value


def is_member(value: object, values: Sequence[Value]) -> bool:
    return any(same_value(value, item) for item in values)


def is_power_of_two(value: object) -> bool:
    return type(value) is int and value > 0 and value & (value - 1) == 0


class Parameter(Protocol):
    """One dimension of a search space."""

    @property
    def name(self) -> str: ...

    @property
    def when(self) -> When | None: ...

    @property
    def default(self) -> Value:
        """The value a partial config is completed with: the first of `values()`."""
        ...

    def values(self) -> tuple[Value, ...]:
        """Every value, in order."""
        ...

    def contains(self, value: Value) -> bool: ...

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        """Values one step away; for a choice, which has no order, all others."""
        ...

    def encode(self, value: Value) -> int | float:
        """A number for optimisers: the exponent of a power of two, the index of a choice."""
        ...

    def decode(self, code: float) -> Value:
        """The inverse of `encode`."""
        ...

    def describe(self) -> dict[str, object]:
        """The declaration as JSON, the same in every process."""
        ...


def _check_declaration(name: object, when: When | None) -> None:
    if not isinstance(name, str) or not name:
        raise SpaceError(f"parameter name {name!r} is not a text", "give every parameter a name")
    for other, values in (when or {}).items():
        if other == name:
            raise SpaceError(f"parameter {name}: its condition names itself", "name another one")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise SpaceError(
                f"parameter {name}: condition on {other} lists no values, got {values!r}",
                f'write when={{"{other}": (value, ...)}}',
            )


def _describe_when(when: When | None) -> dict[str, list[Value]]:
    return {name: list(values) for name, values in sorted((when or {}).items())}


def _adjacent(values: tuple[Value, ...], value: Value) -> tuple[Value, ...]:
    at = next(index for index, item in enumerate(values) if same_value(item, value))
    return values[max(at - 1, 0) : at] + values[at + 1 : at + 2]


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """Powers of two from `low` to `high`, both included and both powers of two, at least 1."""

    name: str
    low: int
    high: int
    when: When | None = None

    def __post_init__(self) -> None:
        _check_declaration(self.name, self.when)
        for bound in (self.low, self.high):
            if not is_power_of_two(bound):
                raise SpaceError(
                    f"parameter {self.name}: {bound!r} is not a power of two",
                    "give low and high as powers of two, at least 1",
                )
        if self.low > self.high:
            raise SpaceError(
                f"parameter {self.name}: low {self.low} is above high {self.high}", "swap them"
            )

    @property
    def default(self) -> Value:
        return self.low

    def values(self) -> tuple[Value, ...]:
        exponents = range(self.low.bit_length() - 1, self.high.bit_length())
        return tuple(1 << exponent for exponent in exponents)

    def contains(self, value: Value) -> bool:
        return type(value) is int and is_power_of_two(value) and self.low <= value <= self.high

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        return _adjacent(self.values(), value)

    def encode(self, value: Value) -> int | float:
        if type(value) is not int or not is_power_of_two(value):
            raise SpaceError(f"parameter {self.name}: {value!r} is not a power of two")
        return value.bit_length() - 1

    def decode(self, code: float) -> Value:
        return 1 << round(code)

    def describe(self) -> dict[str, object]:
        return {
            "kind": "power_of_two",
            "name": self.name,
            "low": self.low,
            "high": self.high,
            "when": _describe_when(self.when),
        }


@dataclass(frozen=True, slots=True)
class Integer:
    """Integers from `low` up to at most `high`, `step` apart."""

    name: str
    low: int
    high: int
    step: int = 1
    when: When | None = None

    def __post_init__(self) -> None:
        _check_declaration(self.name, self.when)
        if not all(type(item) is int for item in (self.low, self.high, self.step)):
            raise SpaceError(
                f"parameter {self.name}: bounds {self.low!r}, {self.high!r} and step "
                f"{self.step!r} are not all integers",
                "use Choice for other values",
            )
        if self.low > self.high or self.step < 1:
            raise SpaceError(
                f"parameter {self.name}: no integer from {self.low} to {self.high} "
                f"in steps of {self.step}",
                "low must not be above high, and step at least 1",
            )

    @property
    def default(self) -> Value:
        return self.low

    def values(self) -> tuple[Value, ...]:
        return tuple(range(self.low, self.high + 1, self.step))

    def contains(self, value: Value) -> bool:
        return type(value) is int and value in range(self.low, self.high + 1, self.step)

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        return _adjacent(self.values(), value)

    def encode(self, value: Value) -> int | float:
        if type(value) is not int:
            raise SpaceError(f"parameter {self.name}: {value!r} is not an integer")
        return value

    def decode(self, code: float) -> Value:
        return round(code)

    def describe(self) -> dict[str, object]:
        return {
            "kind": "integer",
            "name": self.name,
            "low": self.low,
            "high": self.high,
            "step": self.step,
            "when": _describe_when(self.when),
        }


@dataclass(frozen=True, slots=True, init=False)
class Choice:
    """One of a list of unordered values: texts, numbers, booleans or None."""

    name: str
    choices: tuple[Value, ...]
    when: When | None

    def __init__(self, name: str, values: Sequence[Value], when: When | None = None) -> None:
        _check_declaration(name, when)
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise SpaceError(
                f"parameter {name}: {values!r} is not a list of values",
                "write Choice(name, (first, second))",
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "choices", tuple(map(plain_value, values)))
        object.__setattr__(self, "when", when)
        self._check_choices()

    def _check_choices(self) -> None:
        if not self.choices:
            raise SpaceError(
                f"parameter {self.name}: no values to choose from", "list at least one"
            )
        for index, value in enumerate(self.choices):
            if not isinstance(value, bool | int | float | str | None):
                raise SpaceError(
                    f"parameter {self.name}: {value!r} is no plain value",
                    "use texts, numbers, booleans or None, and map them in `launches`",
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise SpaceError(
                    f"parameter {self.name}: {value} is no value, because JSON has none of it",
                    'use a text, such as "inf", and map it in `launches`',
                )
            if is_member(value, self.choices[:index]):
                raise SpaceError(
                    f"parameter {self.name}: {value!r} is listed twice", "list it once"
                )

    @property
    def default(self) -> Value:
        return self.choices[0]

    def values(self) -> tuple[Value, ...]:
        return self.choices

    def contains(self, value: Value) -> bool:
        return is_member(value, self.choices)

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        return tuple(item for item in self.choices if not same_value(item, value))

    def encode(self, value: Value) -> int | float:
        for index, item in enumerate(self.choices):
            if same_value(item, value):
                return index
        raise SpaceError(f"parameter {self.name}: {value!r} is not one of {list(self.choices)}")

    def decode(self, code: float) -> Value:
        return self.choices[round(code)]

    def describe(self) -> dict[str, object]:
        return {
            "kind": "choice",
            "name": self.name,
            "values": list(self.choices),
            "when": _describe_when(self.when),
        }


@dataclass(frozen=True, slots=True)
class Boolean:
    """False or True."""

    name: str
    when: When | None = None

    def __post_init__(self) -> None:
        _check_declaration(self.name, self.when)

    @property
    def default(self) -> Value:
        return False

    def values(self) -> tuple[Value, ...]:
        return (False, True)

    def contains(self, value: Value) -> bool:
        return isinstance(value, bool)

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        return (not value,)

    def encode(self, value: Value) -> int | float:
        if not isinstance(value, bool):
            raise SpaceError(f"parameter {self.name}: {value!r} is neither true nor false")
        return int(value)

    def decode(self, code: float) -> Value:
        return bool(round(code))

    def describe(self) -> dict[str, object]:
        return {"kind": "boolean", "name": self.name, "when": _describe_when(self.when)}


@dataclass(frozen=True, slots=True)
class Restricted:
    """A parameter narrowed to some of its values; encoding is that of the parameter itself."""

    base: Parameter
    allowed: tuple[Value, ...]

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def when(self) -> When | None:
        return self.base.when

    @property
    def default(self) -> Value:
        return self.base.default if self.contains(self.base.default) else self.allowed[0]

    def values(self) -> tuple[Value, ...]:
        return self.allowed

    def contains(self, value: Value) -> bool:
        return is_member(value, self.allowed)

    def neighbours(self, value: Value) -> tuple[Value, ...]:
        if isinstance(self.base, Choice):
            return tuple(item for item in self.allowed if not same_value(item, value))
        return _adjacent(self.allowed, value)

    def encode(self, value: Value) -> int | float:
        return self.base.encode(value)

    def decode(self, code: float) -> Value:
        return self.base.decode(code)

    def describe(self) -> dict[str, object]:
        return {**self.base.describe(), "allowed": list(self.allowed)}


def is_active(parameter: Parameter, config: Config) -> bool:
    """Whether a config with these values has the parameter."""
    return all(
        other in config and is_member(config[other], values)
        for other, values in (parameter.when or {}).items()
    )
