"""Check that a config of a table can be launched in place of the kernel's own configs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from ._compile_mode import NotCompiled, never_compiles, without_compiler
from ._entry import Hit
from ._own_configs import OwnConfigs, UnknownHook, as_config
from ._ranks import tunes_nothing
from ._text import printable
from ._warn import warn_once
from .device_code import place_text

#: What a launch without an entry does: tune as Triton does, or launch the default config.
Miss: TypeAlias = Literal["tune", "default"]
_Plan = TypeVar("_Plan")
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


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch with the config of a table."""

    hit: Hit
    #: What the launch adds to its arguments.
    config: dict[str, Any]
    #: The same config as `triton.Config`, for `best_config`.
    best: Any
    #: Called before each launch, as in any tuned launch.
    pre_hook: Callable[[Mapping[str, Any]], object] | None = None
    #: Whether a launch of this plan has succeeded.
    launched: bool = False

    @property
    def text(self) -> str:
        return f"config {printable(self.config)} of table {self.hit.table}"

    def after_launch(self) -> Plan:
        """The same plan after its first successful launch."""
        return replace(self, launched=True)


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


def plan_default(
    own: OwnConfigs, arg_names: Sequence[str], named: Mapping[str, Any]
) -> Plan | None:
    """The plan of the default config, for a miss that must not tune; None where there is none.

    It is the first config that the library's pruning keeps: what the library may launch anywhere,
    which a table does not say of its own default config. own, arg_names, named: as for `plan_for`.
    """
    try:
        kept = [item.all_kwargs() for item in own.kept[:1]]
    except Exception:  # the library's pruning, which its own launch would call too
        return None
    plans = [plan_for(own, arg_names, Hit(config, "default"), named)[0] for config in kept]
    return plans[0] if plans else None


def plan_substitutes(
    own: OwnConfigs, arg_names: Sequence[str], hit: Hit | None, named: Mapping[str, Any]
) -> Iterator[Plan]:
    """Plans that may stand in for a hit whose config is not compiled: configs that tie with it,
    then the library's own. The arguments are as for `plan_for`."""
    ties = hit.entry.tie_set if hit and hit.entry else ()
    for config in [*ties, *(item.all_kwargs() for item in own.kept)]:
        plan, _ = plan_for(own, arg_names, Hit(config, "default"), named)
        if plan is not None:
            yield plan


def launch_first(plans: Iterable[_Plan], launch: Callable[[_Plan], Any]) -> tuple[Any, _Plan]:
    """The result of the first plan that needs no compiler, and that plan; else raises
    NotCompiled."""
    error = NotCompiled("no config can be launched, and TUNER_COMPILE=never")
    for at, plan in enumerate(plans):
        try:
            with without_compiler():
                return launch(plan), plan
        except NotCompiled as found:
            error = found if not at else error
    raise error


def plan_for(
    own: OwnConfigs, arg_names: Sequence[str], hit: Hit, named: Mapping[str, Any]
) -> tuple[Plan | None, str]:
    """The plan for a hit; or None with the reason why the config must not be launched.

    own: the kernel's configs on the arguments of the launch. arg_names: its parameters in order.
    named: the arguments of the launch. Raises what the kernel's pruning raises.
    """
    config = _restore(own, hit.config)
    if problem := _incompatibility(own, arg_names, config, named):
        return None, problem
    equal = own.equal(config)
    if hit.how != "exact" and equal is not None and not own.keeps(config):
        return None, f"has {printable(config)} nearest, which early_config_prune rejects here"
    try:
        hook = own.hook(config)
    except UnknownHook:
        return None, f"has {printable(config)}, whose pre_hook is unknown"
    return Plan(hit, config, _triton_config(config, equal, hook), hook), ""


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
