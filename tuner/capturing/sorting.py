"""Arguments of a call by what they do: sizes, specialisation, and free ones.

A free argument is a scalar at run time whose value changes neither the work (`data_flow.py`) nor
the grid, what heuristics compute or the configs that the library keeps, and which no decorator
names as a key. So calls that differ in free arguments alone are one call. Other integers are sizes;
all else is specialisation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.errors import KernelError
from search_spaces.near_names import did_you_mean
from search_spaces.source_positions import one_line
from tuner.capturing.call_configs import arguments_on_meta
from tuner.capturing.call_records import Call
from tuner.capturing.grids import compiled_in, other_values

_log = logging.getLogger(__name__)


def sort_call(call: Call, parts: AutotuneParts, find_free: Callable[[], Collection[str]]) -> Call:
    """The call with its free arguments. find_free: the free scalars of its compiled launch."""
    if call.free is not None or call.problem:
        return call
    try:
        scalars = _list_scalars(call, parts)
        free = find_free() if scalars else ()
        idle = (name for name in scalars if name in free and _is_idle(name, call, parts))
        return replace(call, free=tuple(idle))
    except Exception as error:  # of a pruner, or of a process that ends and can start no other
        _log.info("%s: its arguments are not sorted (%s)", call.kernel, one_line(error))
        return call


def _list_scalars(call: Call, parts: AutotuneParts) -> list[str]:
    """The scalars that are arguments at run time."""
    constant = compiled_in(parts)
    return [
        name
        for name, value in call.arguments.items()
        if name not in constant and isinstance(value, bool | int | float)
    ]


def _is_idle(name: str, call: Call, parts: AutotuneParts) -> bool:
    """Whether a scalar changes neither the grid nor which configs the library has."""
    if name in call.grid.steered_by or name in parts.tuner.keys:
        return False
    if parts.pruner is None:
        return True
    given = arguments_on_meta(call)
    kept = [
        parts.apply_pruner({**given, name: value}, call.grid.sizes).configs
        for value in (given[name], *other_values(given[name]))
    ]
    return all(configs == kept[0] for configs in kept)


def correct(calls: Sequence[Call], free: Collection[str], sizes: Collection[str]) -> list[Call]:
    """The calls with what is declared of their arguments.

    An integer that is 1 in one call is compiled in there. It is free as well if it is free in all
    calls that show it. Raises `KernelError` for a name that is no scalar argument.
    """
    where = f"captured kernel {calls[0].kernel}"
    names = {name: value for call in calls for name, value in call.arguments.items()}
    scalars = [name for name, value in names.items() if isinstance(value, bool | int | float)]
    for option, given in (("free", free), ("sizes", sizes)):
        for name in given:
            if name not in scalars:
                raise KernelError(
                    f"{where}: {option} names {name}, which is no scalar argument"
                    f"{did_you_mean(name, scalars)}",
                    f"it may name {', '.join(scalars)}" if scalars else "leave it out",
                )
    if both := sorted({*free} & {*sizes}):
        raise KernelError(f"{where}: free and sizes both name {both[0]}", "leave one out")
    return [
        replace(call, free=_choose_free(call, [*_seen_elsewhere(call, calls), *free], sizes))
        for call in calls
    ]


def _choose_free(call: Call, free: Iterable[str], sizes: Collection[str]) -> tuple[str, ...]:
    chosen = {*(call.free or ()), *free} - {*sizes}
    return tuple(name for name in call.arguments if name in chosen)


def _seen_elsewhere(call: Call, calls: Sequence[Call]) -> list[str]:
    """The integers that are 1 here, and free wherever they are not."""
    return [
        name
        for name, value in call.arguments.items()
        if type(value) is int and value == 1
        if (seen := [other for other in calls if other.arguments.get(name) != 1])
        and all(name in (other.free or ()) for other in seen)
    ]
