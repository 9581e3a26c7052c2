"""Check that a config of a table can be launched in place of a kernel's own, and launch it.

`plan_hit` makes the plan of a hit, `plan_default` that of a miss which must not tune, and
`plan_substitutes` those for a config that is not compiled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from ._arguments import Arguments
from ._call_key import GRID, is_call_key
from ._captured_calls import is_between
from ._compile_mode import never_compiles
from ._decorators import Decorated
from ._entry import Hit
from ._own_configs import OwnConfigs, UnknownHook, as_config
from ._ranks import tunes_nothing
from ._text import printable
from ._warn import warn_once
from .device_code import place_text

#: What a launch without an entry does: tune as Triton does, or launch the default config.
Miss: TypeAlias = Literal["tune", "default"]
#: A launch: positional arguments, keywords, grid, and whether it only compiles.
Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any], Any, bool]
_MISSES = ("tune", "default")
_VARIABLE = "TUNER_MISS"

#: The module in the place of an object.
_MODULE = re.compile(r"[\w.]+:(?=[^\W\d])")
#: Launch options that a table may set, each with its largest value. Larger values make compilers
#: abort the process. Options that name files, compiler flags or code (`ir_override`, `extern_libs`,
#: `ptx_options`) are refused: a table is data.
OPTIONS = {
    "num_warps": 64,
    "num_stages": 64,
    "num_ctas": 16,
    "maxnreg": 1024,
    "enable_fp_fusion": 1,
    "waves_per_eu": 64,
    "matrix_instr_nonkdim": 64,
    "kpack": 16,
    "grf_mode": 1024,
}


class Call:
    """A launch of a kernel: its arguments, and the kernel's own configs on them.

    parts: the kernel under its decorators. Raises what its heuristics raise.
    """

    def __init__(self, parts: Decorated, arguments: Arguments, given: Given) -> None:
        self.parts, self._arguments = parts, arguments
        args, kwargs, grid, _ = given
        self.args, self.grid = args, grid
        #: The keywords, and what heuristics compute that run before a config is known.
        self.keywords = parts.compute(args, kwargs)
        self._by_place = dict(zip(parts.names, args, strict=False))
        #: All that is passed, by name.
        self.passed = {**self._by_place, **self.keywords}

    @cached_property
    def named(self) -> dict[str, Any]:
        """All arguments by name, with defaults."""
        return self._arguments.name_arguments(self.args, self.keywords)

    @cached_property
    def own(self) -> OwnConfigs:
        """The configs of the kernel's autotuner.

        `early_config_prune` gets the arguments as Triton's Autotuner hands them on: those by
        position under their names, and the keywords.
        """
        prune = getattr(self.parts.tuner, "early_config_prune", None)
        more = {"grid": self.grid, "warmup": False, **self.keywords}
        bound = prune and (lambda configs: prune(configs, dict(self._by_place), **more))
        return OwnConfigs(self.parts.tuner.configs, bound)


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch with the config of a table."""

    hit: Hit
    #: What the launch passes by keyword in place of, or in addition to, the caller's keywords.
    config: dict[str, Any]
    #: The same config as `triton.Config`, for `best_config`.
    best: Any
    #: Called before each launch, as in any tuned launch.
    pre_hook: Callable[[Mapping[str, Any]], object] | None
    #: Whether the launch only merges the config into the keywords.
    plain: bool
    #: Whether a table has it; else it is the default config, or one in the place of another.
    is_hit: bool
    #: Positions of arguments that the config replaces.
    places: dict[int, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"config {printable(self.config)} of table {self.hit.table}"

    def launch(self, parts: Decorated, given: Given) -> Any:
        """Launch as Triton does after tuning: heuristics, the config's hook, the function.

        Heuristics around an autotuner run before it; without one they depend on the config.
        """
        args, kwargs, grid, warmup = given
        args, values = self._bind(parts, args, kwargs)
        if parts.tuner is not None:
            parts.tuner.best_config = self.best
        if self.pre_hook is not None:
            by_place = dict(zip(parts.names, args, strict=False))
            self.pre_hook({**by_place, **values, **self.best.all_kwargs()})
        return parts.launched.run(*args, grid=grid, warmup=warmup, **values)

    def _bind(
        self, parts: Decorated, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What is launched by position and by keyword."""
        if parts.tuner is not None:
            return args, {**parts.compute(args, kwargs), **self.config}
        args = tuple(self.places.get(at, value) for at, value in enumerate(args))
        return args, parts.compute(args, {**kwargs, **self.config}, self.config)

    def bind_constants(
        self, parts: Decorated, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The arguments and options that this plan sets, or that depend on them."""
        args, values = self._bind(parts, args, kwargs)
        bound = {**dict(zip(parts.names, args, strict=False)), **values}
        own = {*self.config, *(parts.names[at] for at in self.places)}
        own.update(parts.computed if parts.tuner is None else ())
        return {name: bound[name] for name in own}


def choose_miss(given: Miss | None = None) -> Miss:
    """What a miss does: as given, else as the environment variable TUNER_MISS says, else `tune`;
    with TUNER_COMPILE=never `default`, since a tuner compiles.

    Ranks of a process group launch the default where TUNER_RANKS says `table-only`. Raises
    ValueError for another word that is given; one in the variable is logged once.
    """
    if never_compiles():
        return "default"
    if given is not None:
        if given not in _MISSES:
            raise ValueError(f'miss is {given!r}; write "tune" or "default"')
        return given
    word = os.environ.get(_VARIABLE, "tune")
    if word not in _MISSES:
        shown = printable(word, 40)
        warn_once((_VARIABLE, word), f"{_VARIABLE} is {shown}, not tune or default; misses tune")
        word = "tune"
    return "default" if word == "default" or tunes_nothing() else "tune"


def plan_hit(call: Call, hit: Hit) -> tuple[Plan | None, str]:
    """The plan for a hit; or None with the reason why the config must not be launched, which is
    empty for a call of other sizes whose config is none of the library's own, nor verified there.

    Raises what the kernel's pruning raises.
    """
    is_near_call = hit.how == "nearest" and hit.entry is not None and is_call_key(hit.entry.key)
    unverified = is_near_call and not (hit.entry and is_between(hit.entry, call.named))
    if call.parts.tuner is None:
        if unverified and not _is_callers(hit, call):
            return None, ""
        return _replace_callers(call, hit, keeps_config=unverified)
    plan, problem = _plan_with(call, hit, call.own, call.passed)
    if unverified and not (plan and any(plan.best is item for item in call.own.kept)):
        return None, ""
    return plan, problem


def plan_default(call: Call) -> Plan | None:
    """The plan of the default config, for a miss that must not tune; None where there is none, as
    for a kernel whose caller chooses the config.

    It is the first config that the library's pruning keeps: what the library may launch anywhere,
    which a table does not say of its own default config.
    """
    if call.parts.tuner is None:
        return None
    try:
        kept = [item.all_kwargs() for item in call.own.kept[:1]]
    except Exception:  # the library's pruning, which its own launch would call too
        return None
    return _plan_with(call, Hit(kept[0], "default"), call.own, call.passed)[0] if kept else None


def plan_substitutes(call: Call, hit: Hit | None) -> Iterator[Plan | None]:
    """What may stand in for a hit whose config is not compiled: configs that tie with it, then the
    library's own. Without an autotuner None, the library's own launch, which tunes nothing."""
    if call.parts.tuner is None:
        yield None
        return
    ties = hit.entry.tie_set if hit and hit.entry else ()
    for config in [*ties, *(item.all_kwargs() for item in call.own.kept)]:
        plan, _ = _plan_with(call, Hit(config, "default"), call.own, call.passed)
        if plan is not None:
            yield plan


def _plan_with(
    call: Call, hit: Hit, own: OwnConfigs, passed: Mapping[str, Any]
) -> tuple[Plan | None, str]:
    """The plan for a hit among some configs; or None with the reason.

    passed: the arguments that the config must not set.
    """
    names, config = call.parts.names, _restore(own, hit.config)
    if problem := _incompatibility(own, names, config, passed):
        return None, problem
    equal = own.equal(config)
    if hit.how != "exact" and equal is not None and not own.keeps(config):
        return None, f"has {printable(config)} nearest, which early_config_prune rejects here"
    try:
        hook = own.hook(config)
    except UnknownHook:
        return None, f"has {printable(config)}, whose pre_hook is unknown"
    plain = not (call.parts.outer or hook or never_compiles())
    return Plan(
        hit, config, _triton_config(config, equal, hook), hook, plain, hit.how != "default"
    ), ""


def _is_callers(hit: Hit, call: Call) -> bool:
    """Whether a config is what the caller of a kernel without an autotuner chooses."""
    given = {**as_config({}).all_kwargs(), **call.named}
    return all(given.get(name) == value for name, value in hit.config.items())


def _replace_callers(call: Call, hit: Hit, keeps_config: bool) -> tuple[Plan | None, str]:
    """The plan for a kernel whose caller chooses the config: the table's values replace the
    caller's, and have their types.

    keeps_config: whether it is launched as the caller does, whatever it chooses.
    """
    from triton import Config

    parts, named = call.parts, call.named
    own = {name: named[name] for name in hit.config if name in named and name in parts.names}
    for name in own.keys() - parts.constants:
        return None, f"sets {printable(name, 40)}, which is an argument of the caller's"
    is_exact = hit.how == "exact" and hit.entry and GRID in hit.entry.key
    if not callable(call.grid) and not is_exact:
        for name, value in own.items():
            if hit.config[name] != value:
                return None, (
                    f"sets {name}, on which the grid of this launch may depend: it is a tuple, and "
                    "the table's keys have no dim grid"
                )
    free = {name: value for name, value in named.items() if name not in hit.config}
    plan, problem = _plan_with(call, hit, OwnConfigs([Config(own)], None), free)
    if plan is None:
        return None, problem
    config = {} if keeps_config else dict(plan.config)
    by_place = parts.names[: len(call.args)]
    places = {at: config.pop(name) for at, name in enumerate(by_place) if name in config}
    return replace(plan, config=config, places=places, plain=plan.plain and not places), ""


def _restore(own: OwnConfigs, config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of a table with the values of the kernel's own configs.

    A value that is left to Triton is null in the table. A value that JSON lacks, such as
    `tl.float32`, is text in the table and is replaced by the equal value of an own config.
    """
    found = {}
    for name, value in config.items():
        values = _own_values(own, name)
        if value is None and None not in values:
            continue
        if isinstance(value, str):
            special = [item for item in values if not isinstance(item, bool | int | float | str)]
            value = _find_object(value, special)
        found[name] = value
    return found


def _find_object(text: str, objects: Sequence[Any]) -> Any:
    """The object of a text; a library may have another module name where it is used."""
    for shorten in (str, _without_module):
        found = [item for item in objects if shorten(place_text(item)) == shorten(text)]
        if found and all(item is found[0] or item == found[0] for item in found):
            return found[0]
    return text


def _without_module(text: str) -> str:
    return _MODULE.sub("", text)


def _own_values(own: OwnConfigs, name: str) -> list[Any]:
    return [_plain(item.kwargs[name]) for item in own.all if name in item.kwargs]


def _plain(value: Any) -> Any:
    """A value of an own config as a table holds it, for numbers of numpy and constants."""
    kind = type(value)
    if kind.__name__ == "constexpr":
        return _plain(value.value)
    is_number = kind.__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


def _incompatibility(
    own: OwnConfigs, arg_names: Sequence[str], config: Mapping[str, Any], named: Mapping[str, Any]
) -> str:
    """Why the kernel cannot take a config; empty text where it can."""
    for name, value in config.items():
        values, shown = _own_values(own, name), printable(name, 40)
        if name in named or not (values or name in arg_names or name in OPTIONS):
            return f"sets {shown}, which is not a parameter of the kernel to set"
        as_option = not values and name in OPTIONS
        if not (_is_valid_option(name, value) if as_option else _has_type_of(value, values)):
            return f"sets {shown} to {printable(repr(value), 40)}, a wrong type or range"
    launched = own.kept or own.listed
    always = set(arg_names) if launched else set()
    always = always.intersection(*(item.kwargs for item in launched))
    missing = always - config.keys() - named.keys()
    return f"lacks {', '.join(sorted(missing))}" if missing else ""


def _is_valid_option(name: str, value: Any) -> bool:
    if type(value) not in (int, bool) or not 0 <= value <= OPTIONS[name]:
        return False
    return name != "num_warps" or (value > 0 and value & (value - 1) == 0)


def _has_type_of(value: Any, own: list[Any]) -> bool:
    """Whether a value has the type of an own value, and is positive where all own values are."""
    if own and type(value) not in [type(item) for item in own]:
        return False
    if type(value) is int and own and all(type(item) is int and item > 0 for item in own):
        return value > 0
    return True


def _triton_config(config: Mapping[str, Any], own: Any, hook: Any) -> Any:
    """A config of a table as `triton.Config`, for `best_config`; the kernel's own where equal."""
    unset = as_config({}).all_kwargs()
    if own is not None and all(
        name in config or unset.get(name) == value for name, value in own.all_kwargs().items()
    ):
        return own
    return as_config(config, hook)
