"""The arguments of a Triton launch against the function's parameters, without compiling it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from search_spaces.kernel import Launch
from search_spaces.near_names import did_you_mean

#: What every launch takes besides the function's parameters and its backend's options.
_ALWAYS = ("debug", "instrumentation_mode")
_TARGETS = {"cuda": ("cuda", 90, 32), "hip": ("hip", "gfx942", 64)}


def binding_error(launch: Launch, kind: str) -> str:
    """What Triton would refuse about a launch's grid and arguments; empty when it binds.

    kind: `cuda` or `hip`, whose options a launch may name. Heuristics above the function are
    called, once each; what they raise is passed on.
    """
    grid = launch.grid
    if not isinstance(grid, tuple | list) or not 1 <= len(grid) <= 3:
        return f"the grid {grid!r:.80}, not one to three integers"
    if not all(hasattr(size, "__index__") and size >= 0 for size in grid):
        return f"the grid {tuple(grid)!r:.80}, not one to three integers"
    fn = launch.fn
    given = dict(launch.kwargs)
    names = getattr(fn, "arg_names", None)
    if names is None:
        return "its arguments, but it is no function under @triton.jit"
    if len(launch.args) > len(names):
        return f"{len(launch.args)} arguments by position, it has {len(names)}"
    for name, value in zip(names, launch.args, strict=False):
        if name in given:
            return f"the argument {name} twice, by position and by name"
        given[name] = value
    return _naming_error(jitted_below(fn, given), given, kind)


def tensors_in(launch: Launch) -> Iterator[Any]:
    """The tensors among a launch's arguments, also inside descriptors, tuples and lists."""
    for value in (*launch.args, *launch.kwargs.values()):
        yield from _tensors(value)


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))


def name_of(launch: Launch) -> str:
    """The name of the function a launch calls, below its wrappers."""
    fn = launch.fn
    while not hasattr(fn, "__name__") and hasattr(fn, "fn"):
        fn = fn.fn
    return getattr(fn, "__name__", f"{launch.fn!r:.80}")


def jitted_below(fn: Any, given: dict[str, Any]) -> Any:
    """The function under its wrappers, which add what they compute to `given`, by name."""
    while hasattr(getattr(fn, "fn", None), "arg_names"):
        if hasattr(fn, "configs"):
            given.update(fn.configs[0].all_kwargs() if fn.configs else {})
        else:
            for name, rule in getattr(fn, "values", {}).items():
                given[name] = rule(dict(given))
        fn = fn.fn
    return fn


def _naming_error(fn: Any, given: Mapping[str, Any], kind: str) -> str:
    parameters = inspect.signature(fn.fn).parameters
    for name in given:
        if name not in parameters and name not in known_options(kind):
            guess = did_you_mean(name, parameters)
            return f"an unknown argument {name}{guess} (its parameters are {', '.join(parameters)})"
    missing = [
        name
        for name, parameter in parameters.items()
        if name not in given and parameter.default is inspect.Parameter.empty
    ]
    return f"no argument {', '.join(missing)}" if missing else ""


@cache
def known_options(kind: str) -> frozenset[str]:
    """The options of a launch that the backend's compiler knows (`num_warps`, `maxnreg`)."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    options = make_backend(GPUTarget(*_TARGETS[kind])).parse_options({})
    return frozenset({*vars(options), *_ALWAYS})
