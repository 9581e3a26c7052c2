"""Whether a tabled config can be launched in place of the kernel's own, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ._read import printable
from ._table import Hit

if TYPE_CHECKING:
    from ._launch import Autotuned

#: Launch options a table may set, and up to what value: beyond it, compilers abort the process.
#: Options that name files, compiler flags or code (`ir_override`, `extern_libs`, `ptx_options`)
#: are refused: a table is data.
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
    """What a launch adds to its arguments.

    best: the config as Triton's Config. proven: it has been launched once.
    """

    hit: Hit
    config: dict[str, Any]
    best: Any
    pre_hook: Callable[[Mapping[str, Any]], object] | None = None
    proven: bool = False

    @property
    def text(self) -> str:
        return f"config {printable(self.config)} of table {self.hit.table}"

    def trusted(self) -> Plan:
        return replace(self, proven=True)


def plan_for(
    kernel: Autotuned, hit: Hit, named: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> tuple[Plan | None, str]:
    """The plan for a hit, or None and the reason why the config must not be launched."""
    config = _restored(kernel, hit.config)
    if problem := _misfit(kernel, config, named):
        return None, problem
    own = _same(kernel.configs, config)
    hooks = {getattr(item, "pre_hook", None) for item in ([own] if own else kernel.configs)}
    if len(hooks) > 1:
        return None, f"has {printable(config)}, for which no pre_hook is known"
    if hit.how != "exact" and own is not None and _pruned(kernel, own, named, kwargs):
        return None, f"has {printable(config)} nearest, which early_config_prune rejects here"
    hook = next(iter(hooks), None)
    return Plan(hit, config, _triton_config(config, own, hook), hook), ""


def _restored(kernel: Autotuned, config: Mapping[str, Any]) -> dict[str, Any]:
    """A tabled config as the kernel writes its own.

    What it leaves to Triton is null in the table; what JSON cannot hold, such as `tl.float32`, is
    there as text, and is taken from the kernel's own configs.
    """
    found = {}
    for name, value in config.items():
        own = _own_values(kernel, name)
        if value is None and None not in own:
            continue
        if isinstance(value, str):
            special = (item for item in own if not isinstance(item, bool | int | float | str))
            value = next((item for item in special if f"{item}" == value), value)
        found[name] = value
    return found


def _own_values(kernel: Autotuned, name: str) -> list[Any]:
    return [item.kwargs[name] for item in kernel.configs if name in item.kwargs]


def _misfit(kernel: Autotuned, config: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    for name, value in config.items():
        own, shown = _own_values(kernel, name), printable(name, 40)
        if name in named or not (own or name in kernel.arg_names or name in OPTIONS):
            return f"sets {shown}, which is not a parameter of the kernel to set"
        if not (_alike(value, own) if own or name not in OPTIONS else _option(name, value)):
            return f"sets {shown} to {printable(repr(value), 40)}, not a value of its kind"
    always = set(kernel.arg_names) if kernel.configs else set()
    always = always.intersection(*(item.kwargs for item in kernel.configs))
    missing = always - config.keys() - named.keys()
    return f"lacks {', '.join(sorted(missing))}" if missing else ""


def _option(name: str, value: Any) -> bool:
    if type(value) not in (int, bool) or not 0 <= value <= OPTIONS[name]:
        return False
    return name != "num_warps" or (value > 0 and value & (value - 1) == 0)


def _alike(value: Any, own: list[Any]) -> bool:
    """Whether a value has a type, and where it matters the sign, of the kernel's own values."""
    if own and type(value) not in [type(item) for item in own]:
        return False
    if type(value) is int and own and all(type(item) is int and item > 0 for item in own):
        return value > 0
    return True


def _same(configs: Sequence[Any], config: Mapping[str, Any]) -> Any:
    """The kernel's own config equal to a tabled one, options that the table leaves out aside."""
    for item in configs:
        full = item.all_kwargs()
        if config.keys() <= full.keys() and all(full[name] == config[name] for name in config):
            return item
    return None


def _triton_config(config: Mapping[str, Any], own: Any, hook: Any) -> Any:
    """A tabled config as host code reads it from `best_config`: the kernel's own if it is one."""
    from triton import Config

    unset = Config({}).all_kwargs()
    if own is not None and all(
        name in config or unset.get(name) == value for name, value in own.all_kwargs().items()
    ):
        return own
    options = {name: config[name] for name in unset.keys() | {"maxnreg"} if name in config}
    kwargs = {name: value for name, value in config.items() if name not in options}
    return Config(kwargs, **options, pre_hook=hook)


def _pruned(
    kernel: Autotuned, own: Any, named: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> bool:
    prune = kernel.own_prune
    if prune is None:
        return False
    positional = {name: value for name, value in named.items() if name not in kwargs}
    return own not in prune(list(kernel.configs), positional, **kwargs)
