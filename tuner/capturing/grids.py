"""The grid of a launch as a table over the tuned parameters that it reads.

A callable grid lives in the library's process only, and the variables that it captures may change
after the launch. So it is evaluated at once, for every value that the parameters may have.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.params import is_member, is_power_of_two
from tuner.capturing.call_records import Grid
from tuner.runtime._arguments import TrackedArguments

#: The most rows of a table.
_MOST = 4096
#: How far a table reaches beyond the listed powers of two, as a factor.
_REACH = 8


def tabulate(
    grid: Any, parts: AutotuneParts, arguments: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Grid:
    """The grid of a launch. `sizes` is that of the first config.

    arguments: those of the launch. defaults: of the parameters that were not passed.
    """
    first = parts.launch_values(parts.configs[0])
    steered_by = _list_steering(grid, parts, arguments, defaults)
    if not callable(grid):
        return Grid(_sizes(grid), steered_by=steered_by)
    names = set(parts.arg_names)

    def bind(values: Mapping[str, Any]) -> dict[str, Any]:
        computed = parts.constants(arguments, {**first, **values})
        everything = {**defaults, **arguments, **first, **values, **computed}
        return {name: value for name, value in everything.items() if name in names}

    seen = TrackedArguments(bind({}))
    sizes = _sizes(grid(seen))
    tunable = tunable_values(parts, {**defaults, **arguments})
    computed = set(parts.constants(arguments, first))
    reads = [name for name in tunable if name in seen.names]
    if computed & seen.names:
        reads = [name for name in tunable if any(name in config for config in parts.configs)]
    rows = _rows(reads, tunable, parts, lambda values: _sizes(grid(bind(values))))
    return Grid(sizes, True, tuple(reads), rows, steered_by)


def other_values(value: float) -> tuple[float, ...]:
    """Values that a scalar might have as well."""
    return (not value,) if isinstance(value, bool) else (-value, 2 * value + 1, 65 * value + 4096)


def _list_steering(
    grid: Any, parts: AutotuneParts, arguments: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[str, ...]:
    """The scalars whose other values change the grid, or what heuristics compute."""
    first = parts.launch_values(parts.configs[0])

    def outcome(changed: Mapping[str, Any]) -> Any:
        given = {**arguments, **changed}
        try:
            computed = parts.constants(given, first)
            meta = {**defaults, **given, **first, **computed}
            named = {name: meta[name] for name in parts.arg_names if name in meta}
            return repr((computed, _sizes(grid(named)) if callable(grid) else ()))
        except Exception as error:  # as for a size that nothing has
            return repr(error)

    scalars = {name: v for name, v in arguments.items() if isinstance(v, bool | int | float)}
    base = outcome({}) if scalars else ""
    return tuple(
        name
        for name, value in scalars.items()
        if any(outcome({name: other}) != base for other in other_values(value))
    )


def tunable_values(parts: AutotuneParts, arguments: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Values that constexprs may have: those of the configs, and powers of two near them."""
    found: dict[str, list[Any]] = {}
    for name in parts.arg_names:
        listed = [config[name] for config in parts.configs if name in config]
        if not listed and name in constexprs(parts) and type(arguments.get(name)) is int:
            listed = [arguments[name]]
        if listed:
            found[name] = _widen(listed)
    return found


def constexprs(parts: AutotuneParts) -> frozenset[str]:
    """Names of the kernel's parameters that are compiled in."""
    annotations = getattr(parts.fn.fn, "__annotations__", {})
    return frozenset(name for name, kind in annotations.items() if "constexpr" in f"{kind}")


def compiled_in(parts: AutotuneParts) -> frozenset[str]:
    """Names of the kernel's parameters and options that are no arguments at run time."""
    return constexprs(parts).union(*parts.configs)


def _widen(listed: Sequence[Any]) -> list[Any]:
    found = [value for at, value in enumerate(listed) if not is_member(value, listed[:at])]
    powers = [value for value in found if type(value) is int and is_power_of_two(value)]
    if powers:
        size = max(1, min(powers) // _REACH)
        while size <= max(powers) * _REACH:
            found += [size] if size not in found else []
            size *= 2
    return found


def _rows(
    reads: Sequence[str],
    values: Mapping[str, Sequence[Any]],
    parts: AutotuneParts,
    evaluate: Callable[[Mapping[str, Any]], tuple[int, ...]],
) -> tuple[tuple[tuple[Any, ...], tuple[int, ...]], ...]:
    rows: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for row in itertools.islice(_combinations(reads, values, parts), _MOST):
        if row not in rows:
            try:
                rows[row] = evaluate(dict(zip(reads, row, strict=True)))
            except Exception:  # a combination that the library never uses
                continue
    return tuple(rows.items()) if reads else ()


def _combinations(
    reads: Sequence[str], values: Mapping[str, Sequence[Any]], parts: AutotuneParts
) -> Iterator[tuple[Any, ...]]:
    """The listed combinations first, then all others."""
    for config in parts.configs:
        given = parts.launch_values(config)
        if all(name in given for name in reads):
            yield tuple(given[name] for name in reads)
    yield from itertools.product(*(values[name] for name in reads))


def _sizes(grid: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in grid)
