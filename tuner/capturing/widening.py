"""The search space of a call beyond the library's own configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.errors import KernelError
from search_spaces.near_names import did_you_mean
from search_spaces.params import Choice, Parameter, is_member, is_power_of_two
from search_spaces.records import Config, Device, Value, Workload
from search_spaces.space import Constraint, SearchSpace
from tuner.capturing.arguments import has_descriptor
from tuner.capturing.call_records import Call
from tuner.capturing.grids import constexprs
from tuner.runtime._arguments import defaults_of

#: Values of the compiler options of a widened space, in addition to the listed ones.
_OPTIONS: dict[str, tuple[Value, ...]] = {
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5),
    "num_ctas": (1, 2),
    "maxnreg": (None, 96, 128, 168, 232),
}
#: Elements of a tile that a thread may hold in a widened space: half of its registers.
_TILE_PER_THREAD = 128.0
#: What Triton takes for options that a config does not set.
UNSET: dict[str, Value] = {"num_warps": 4, "num_stages": 3, "num_ctas": 1}


@dataclass(frozen=True)
class Opened:
    """How far a space is opened beyond the library's own configs."""

    #: Whether compiler options and the constexprs of the configs take further values.
    widen: bool = False
    #: Further parameters, or other values of them.
    space: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    #: Constexprs that do not change a grid which is a tuple; the user's word.
    same_grid: Sequence[str] = ()

    @property
    def wide(self) -> bool:
        return self.widen or bool(self.space)

    def names(self, parts: AutotuneParts) -> tuple[str, ...]:
        """The kernel's arguments that a config sets."""
        listed = dict.fromkeys(name for config in parts.configs for name in config)
        found = dict.fromkeys([*listed, *self.space])
        return tuple(name for name in found if name in parts.arg_names)


def check_space(call: Call, parts: AutotuneParts, opened: Opened) -> None:
    """Raise `KernelError` in one line for a `space=` that the call cannot have."""
    where = f"captured kernel {call.kernel}"
    names = [*_OPTIONS, *sorted(constexprs(parts))]
    listed = {name for config in parts.configs for name in config}
    for name, values in opened.space.items():
        if name not in names and name not in listed:
            known = name in parts.arg_names
            raise KernelError(
                f"{where}: space names {name}, which is "
                + ("no constexpr" if known else f"no parameter{did_you_mean(name, names)}"),
                f"it may name {', '.join(names)}",
            )
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise KernelError(
                f"{where}: space has {name}={values!r}", f"give a list of values: {name}=[...]"
            )
        if name not in listed and name not in _OPTIONS and name not in call.arguments:
            raise KernelError(
                f"{where}: space names {name}, which the library's heuristics compute",
                "leave it out",
            )
        if name in listed or name in _OPTIONS:
            continue
        own = call.arguments[name]
        if isinstance(own, Mapping):
            raise KernelError(
                f"{where}: {name} is {own} in the call, which has no plain value, so it stays",
                "leave it out",
            )
        if not call.grid.callable and name not in opened.same_grid:
            raise KernelError(
                f"{where}: its grid {call.grid.sizes} is a tuple, so {name} stays at {own}",
                f"the grid may depend on it; if it does not, declare(same_grid=[{name!r}]), else "
                f"leave {name} out, or launch with `grid=lambda meta: ...` and capture again",
            )


def space_of(
    call: Call, parts: AutotuneParts, opened: Opened, constraints: Sequence[Constraint]
) -> SearchSpace:
    """The opened space of a call. constraints: what the library's pruning and hooks demand."""
    check_space(call, parts, opened)
    listed: dict[str, list[Value]] = {}
    for config in parts.configs:
        for name in config:
            listed.setdefault(name, [other.get(name) for other in parts.configs])
    if opened.widen:
        for name in _OPTIONS:
            if name != "num_ctas" or _is_for_clusters(call):
                listed.setdefault(name, [])
    for name in opened.space:
        listed.setdefault(name, [call.arguments[name]] if name in call.arguments else [])
    parameters = [_parameter(name, values, opened) for name, values in listed.items()]
    constraints = [*constraints, *([_known_grid(call, parts)] if call.grid.reads else [])]
    if opened.widen:
        tiles = [name for name, values in listed.items() if len(_neighbours(values)) > 1]
        constraints.append(_tile_per_thread(tiles, parts.configs))
    return SearchSpace(parameters, constraints, kernel=call.kernel)


def _is_for_clusters(call: Call) -> bool:
    """Whether several CTAs per program may help: they share what descriptors load.

    Of other kernels Triton 3.6 refuses most programs of two CTAs, and some give wrong results.
    """
    return any(has_descriptor(encoded) for encoded in call.arguments.values())


def single_config(call: Call) -> SearchSpace:
    """The space of a kernel without an autotuner: the config of the call alone."""
    own = call.default or {}
    return SearchSpace([Choice(name, [value]) for name, value in own.items()], kernel=call.kernel)


def _parameter(name: str, listed: Sequence[Value], opened: Opened) -> Parameter:
    if name in opened.space:
        given = list(opened.space[name])
        return Choice(name, _distinct([*listed, *given]))
    if not opened.widen:
        return Choice(name, _distinct(listed))
    if name in _OPTIONS:
        more: list[Value] = list(_OPTIONS[name])
        return Choice(name, _sort(_distinct([*listed, *more])))
    return Choice(name, _sort(_distinct([*listed, *_neighbours(listed)])))


def _neighbours(listed: Sequence[Value]) -> list[Value]:
    """Powers of two from half the least to twice the largest listed one."""
    powers = [value for value in listed if type(value) is int and is_power_of_two(value)]
    if not powers or len(powers) < len([value for value in listed if value is not None]):
        return []
    found: list[Value] = []
    size = max(1, min(powers) // 2)
    while size <= max(powers) * 2:
        found.append(size)
        size *= 2
    # A constexpr that has one value in all configs is mostly a flag or a fixed size.
    return found if len(set(powers)) > 1 else list(powers)


def _distinct(values: Sequence[Value]) -> list[Value]:
    found: list[Value] = []
    for value in values:
        if not is_member(value, found):
            found.append(value)
    return found


def _sort(values: list[Value]) -> list[Value]:
    if all(isinstance(value, int) or value is None for value in values):
        return sorted(values, key=lambda value: (value is not None, value or 0))
    return values


def _tile_per_thread(tiles: Sequence[str], listed: Sequence[Config]) -> Constraint:
    """Compilers unroll what a thread holds of a tile. Some take minutes beyond what registers can
    hold, and such a variant is slow: on `cuda:90` 121 s for 64 x 512 elements in 64 threads."""

    def largest(config: Config) -> float:
        sizes = [size for name in tiles if type(size := config.get(name)) is int]
        products = [one * other for one, other in combinations(sizes, 2)]
        warps = config.get("num_warps") or UNSET["num_warps"]
        return max([*sizes, *products], default=0) / (32 * int(str(warps)))

    limit = max([_TILE_PER_THREAD, *map(largest, listed)])

    def fits(config: Config, workload: Workload, device: Device) -> bool:
        return largest(config) <= limit

    return Constraint("tile", fits, f"a thread would hold more than {limit:g} elements of a tile")


def _known_grid(call: Call, parts: AutotuneParts) -> Constraint:
    reads = list(call.grid.reads)
    rows = [list(read) for read, _ in call.grid.rows]
    # The grid may read constexprs that the caller passes and no config sets.
    fixed = {**defaults_of(parts.fn.fn), **call.arguments}

    def has_grid(config: Config, workload: Workload, device: Device) -> bool:
        values: list[Any] = [config[name] if name in config else fixed.get(name) for name in reads]
        return values in rows

    return Constraint("grid", has_grid, "the grid of the captured call is not known for it")
