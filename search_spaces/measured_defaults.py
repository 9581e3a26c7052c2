"""The default config of a built-in GPU family: the winner of the nearest measured workload.

`kernels/measured.json` has what was measured, one winner per line; `scripts/fit_defaults.py` writes
it. Near is a workload of similar sizes at which the winner means the same kind of launch: its
features in the search space are alike, and none or few of its values have to be moved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

from search_spaces.bound import BoundSpace
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.params import Parameter
from search_spaces.records import Config, Device, Value, Workload, config_key
from search_spaces.registry import BUILT_IN

FILE = Path(__file__).parent / "kernels" / "measured.json"
#: Octaves of one size that count at most: features tell the rest.
_OCTAVES = 2.0
#: Distances of another dtype of the same width, of another flag or text, of a value that is moved
#: by an octave or replaced, and of another device of the same target.
_DTYPE, _FLAG, _MOVED, _DEVICE = 1.0, 2.0, 2.0, 1.0
#: The weight of a difference of one in a feature; most features are logarithms.
_FEATURE = 4.0
#: The most values that may be moved.
_MOST_MOVED = 3
_WIDTHS = {"float16": 16, "bfloat16": 16}


@dataclass(frozen=True, eq=False)
class Measured:
    """A winner: what ships for one workload on one device."""

    kernel: str
    workload: Workload
    config: Config
    #: The device's name, and what code is generated for.
    device: str
    target: str
    #: The file or the database it comes from.
    source: str


def measured_default(kernel: Kernel, workload: Workload, device: Device) -> Config | None:
    """The default config of a built-in kernel by measurements on this target.

    It is a point of the space. None for other kernels and targets.
    """
    place = f"{type(kernel).__module__}:{type(kernel).__qualname__}"
    if BUILT_IN.get(kernel.name) != place:
        return None
    return _find(kernel, workload, device)


@lru_cache(maxsize=1024)
def _find(kernel: Kernel, workload: Workload, device: Device) -> Config | None:
    known = [item for item in read(FILE).get(kernel.name, ()) if item.target == device.target]
    if not known:
        return None
    return choose_nearest(kernel, kernel.space(workload).bind(workload, device), known)


@lru_cache(maxsize=4)
def read(path: Path) -> dict[str, list[Measured]]:
    """The winners of a file by kernel; of one workload, the preferred one first."""
    found: dict[str, list[Measured]] = {}
    for line in json.loads(path.read_text()):
        item = Measured(**{**line, "workload": Workload.from_mapping(line["workload"])})
        found.setdefault(item.kernel, []).append(item)
    return found


def choose_nearest(kernel: Kernel, space: BoundSpace, known: Iterable[Measured]) -> Config | None:
    """The config for the workload and device of a space by the nearest of those winners.

    A winner that is the family's own default stands for that rule, hence for the own default here.
    None where no winner can be carried over.
    """
    found = [near for item in known if (near := _carry(kernel, space, item)) is not None]
    return min(found, key=lambda near: near[:2])[2] if found else None


def _carry(kernel: Kernel, space: BoundSpace, item: Measured) -> tuple[float, float, Config] | None:
    """A winner in another space: how far it is, how far it is moved, and the config there.

    None where it has no place.
    """
    origin = _describe(kernel, item, space.device)
    if origin is None:
        return None
    follows_rule, features = origin
    config = kernel.default_config(space.workload, space.device) if follows_rule else item.config
    moved = _move(space, config)
    if moved is None:
        return None
    here, changes = moved
    shift = sum(abs(a - b) for a, b in zip(features, _features(space, here), strict=False))
    total = _differ(item.workload, space.workload) + _FEATURE * shift
    total += _MOVED * changes + _DEVICE * (item.device != space.device.name)
    return total, changes, here


@lru_cache(maxsize=4096)
def _describe(
    kernel: Kernel, item: Measured, device: Device
) -> tuple[bool, tuple[float, ...]] | None:
    """Whether a winner is the family's own default at its workload, and its features there.

    None where the family does not take that workload on this device.
    """
    try:
        space = kernel.space(item.workload).bind(item.workload, device)
        own = kernel.default_config(item.workload, device)
    except TunerError:
        return None
    return config_key(own) == config_key(item.config), _features(space, item.config)


def _features(space: BoundSpace, config: Config) -> tuple[float, ...]:
    try:
        return space.features(config)
    except TunerError:  # a config of another space
        return ()


def _move(space: BoundSpace, config: Config) -> tuple[Config, float] | None:
    """The feasible config nearest to one, and how far it is; None if many values differ."""
    if space.feasible(config):
        return config, 0.0
    kept = {
        parameter.name: value
        for parameter in space.parameters
        if parameter.name in config
        and (value := _nearest(parameter, config[parameter.name])) is not None
    }
    here = space.complete(kept)
    pairs = [(value, here.get(name, "")) for name, value in config.items()]
    changes = [_octaves(a, b) if _is_size(a) and _is_size(b) else 1.0 for a, b in pairs if a != b]
    if len(changes) > _MOST_MOVED or not space.feasible(here):
        return None
    return here, sum(changes)


def _nearest(parameter: Parameter, value: Value) -> Value:
    """The value itself if the parameter has it, else the nearest number; None for what is none."""
    if parameter.contains(value):
        return value
    numbers = [item for item in parameter.values() if _is_size(item)]
    if not numbers or not _is_size(value):
        return None
    return min(numbers, key=lambda item: _octaves(item, value))


def _differ(there: Workload, here: Workload) -> float:
    """How far apart two workloads of a kernel are."""
    total = 0.0
    for name in {*there, *here}:
        x, y = there.get(name), here.get(name)
        if _is_size(x) and _is_size(y):
            total += min(_octaves(x, y), _OCTAVES)
        elif x != y:
            widths = [_WIDTHS.get(f"{value}", value) for value in (x, y)]
            total += _DTYPE if widths[0] == widths[1] else _FLAG
    return total


def _is_size(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _octaves(a: float, b: float) -> float:
    return abs(math.log2(a / b))
