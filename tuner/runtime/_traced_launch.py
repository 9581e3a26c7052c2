"""Launches that PyTorch traces into a graph: a table chooses the config while the graph is made.

Dynamo, and `torch.library.wrap_triton`, make a node of a launch in one method of `TritonHOPifier`,
which this module wraps. For a hit the node has the library's function under an autotuner of one
config, and the constants of the config as arguments: what torch makes of a launch that passes them.
All else is torch's own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol
from weakref import WeakValueDictionary

from ._import_watch import ImportWatch
from ._own_configs import as_config
from ._table import Table
from ._warn import warn_once

#: The attribute of a kernel that is launched from tables; under heuristics, the keyword by which
#: what lies below is told of it.
STATE = "_tuner_applied"
#: The options that Inductor hands to Triton. On AMD it hands on all.
_OPTIONS = {"num_warps", "num_stages"}
#: Values by which Triton leaves an option out.
_UNSET = {"num_ctas": 1, "maxnreg": None}
_SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class TracedPlan:
    """A function to launch in a graph, and the arguments and options that a table sets."""

    fn: Any
    config: Mapping[str, Any]


class TracedKernel(Protocol):
    """A kernel that is launched from tables."""

    def plan_traced(self, read: Callable[[], tuple[Any, ...]]) -> TracedPlan | None:
        """The plan of a launch; None, with the reason logged, where it stays as torch makes it.

        read: gives its positional arguments, keywords and grid; raises where sizes are symbols.
        """
        ...

    def traced_tables(self) -> list[Table]:
        """The tables in use."""
        ...


#: Kernels that may be traced, by name.
_kernels: WeakValueDictionary[str, Any] = WeakValueDictionary()
#: Functions that Dynamo shall trace in the place of others.
_substitutes: dict[Callable[..., Any], Callable[..., Any]] = {}


def watch_traces(name: str, kernel: TracedKernel) -> None:
    """Ask a kernel for its plan wherever torch traces a launch of it, also if torch comes later."""
    _kernels[name] = kernel
    _WATCH.watch(frozenset(_WRAPS.keys() - sys.modules.keys()))
    for module in [each for each in _WRAPS if each in sys.modules]:
        _wrap(module, sys.modules[module])


def substitute(function: Callable[..., Any], traced: Callable[..., Any]) -> None:
    """Let Dynamo trace another function in the place of one."""
    _substitutes[function] = traced


def find_obstacle(names: Collection[str], config: Mapping[str, Any], hook: Any) -> str:
    """Why a config cannot be part of a graph; empty text where it can. names: the parameters."""
    if hook is not None:
        return "has a pre_hook, which compiled code does not call"
    hip = getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None)
    for name, value in config.items():
        is_unset = name in _UNSET and value == _UNSET[name]
        if not (hip or is_unset or name in names or name in _OPTIONS):
            return f"sets {name}, which compiled code does not pass to Triton"
    return ""


# -- torch -------------------------------------------------------------------------------------
def _wrap(name: str, module: ModuleType) -> None:
    """Put our part into a module of torch, once."""
    if name in _wrapped:
        return
    _wrapped.add(name)
    try:
        _WRAPS[name](module)
    except Exception as error:  # of a version of torch without this interface
        text = f"{name} differs from what is known ({error!r})"
        warn_once((_wrap, name), f"{text}; compiled code has the library's own configs")


def _wrap_launches(module: ModuleType) -> None:
    own = module.TritonHOPifier.call_triton_kernel

    @functools.wraps(own)
    def call(self: Any, variable: Any, args: Any, kwargs: dict[str, Any], tx: Any) -> Any:
        name = _read(kwargs.pop(STATE, None))
        found = _find(self, variable, args, kwargs, name)
        if found is not None:
            variable, args, kwargs = _put(found, variable, args, kwargs, tx)
        return own(self, variable, args, kwargs, tx)

    module.TritonHOPifier.call_triton_kernel = call


def _find(
    hopifier: Any, variable: Any, args: Any, kwargs: Any, name: str | None
) -> TracedPlan | None:
    """The plan of the kernel's tables, or of those of our decorator."""

    def read() -> tuple[Any, ...]:
        grid = getattr(variable.grid, "realize", lambda: variable.grid)()
        grid = len if hopifier.is_callable(grid) else _read(grid)
        return tuple(map(_read, args)), {key: _read(kwargs[key]) for key in kwargs}, grid

    kernel = variable.kernel
    applied = vars(kernel).get(STATE) if name is None else _kernels.get(name)
    asked: list[Any] = [each for each in (applied, kernel) if hasattr(each, "plan_traced")]
    return next(filter(None, (each.plan_traced(read) for each in asked)), None)


def _put(
    plan: TracedPlan, variable: Any, args: Any, kwargs: Mapping[str, Any], tx: Any
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A launch with the config of a plan: its kernel, arguments and keywords."""
    from triton.runtime.autotuner import autotune

    names = plan.fn.arg_names
    passed = {**dict(zip(names, args, strict=False)), **kwargs}
    passed = {name: value for name, value in passed.items() if name not in plan.config}
    options = dict(plan.config)
    for name in plan.config.keys() & set(names):
        if isinstance(plan.config[name], _SCALARS):
            # As a constant of the config alone, Inductor would take launches with others for equal.
            passed[name] = options.pop(name) if tx is None else _constant(options.pop(name))
    tuned = autotune(configs=[as_config(options)], key=[])(plan.fn)
    return type(variable)(tuned, None, variable.grid), (), passed


def _constant(value: Any) -> Any:
    from torch._dynamo.variables import ConstantVariable

    return ConstantVariable.create(value)


def _read(value: Any) -> Any:
    """An argument as a launch has it, of Dynamo's variable for it. A tensor of sizes that are
    symbols has no shape. Raises ValueError for a symbol."""
    if hasattr(value, "realize"):
        value = value.realize()
        if value.is_python_constant():
            return value.as_python_constant()
        if hasattr(value, "items") and isinstance(value.items, list):
            return tuple(map(_read, value.items))
        value = value.as_proxy().node.meta["example_value"]
    if isinstance(value, tuple | list):
        return tuple(map(_read, value))
    if hasattr(value, "data_ptr"):
        if all(type(size) is int for size in value.shape):
            return value
        return SimpleNamespace(dtype=value.dtype, data_ptr=value.data_ptr)
    if type(value).__name__.startswith("Sym"):
        raise ValueError("a size is a symbol of the graph")
    return value


def _wrap_cache_key(module: ModuleType) -> None:
    """Tables belong to the key of compiled code: in a graph as torch looks it up, an operator of
    `triton_op` is one node, for which torch adds at most the sources of its kernels."""
    details = module.AOTAutogradCacheDetails
    own = details.get_triton_source_codes_from_gm

    @functools.wraps(own)
    def sources(self: Any, gm: Any) -> list[Any]:
        found = own(self, gm)
        try:
            held = ((name, each.traced_tables()) for name, each in sorted(_kernels.items()))
            used = [(name, [table.entries for table in tables]) for name, tables in held if tables]
        except Exception as error:  # such as a kernel without source text
            used = [(f"{error!r}", [])]
        return [*found, repr(used)] if used else found

    details.get_triton_source_codes_from_gm = sources


def _substitute_all(module: ModuleType) -> None:
    assert hasattr(import_module(_LAUNCHES).TritonHOPifier.call_triton_kernel, "__wrapped__")
    for function, traced in _substitutes.items():
        sys.modules["torch"].compiler.substitute_in_graph(function)(traced)


_LAUNCHES = "torch._higher_order_ops.triton_kernel_wrap"
_WRAPS = {
    _LAUNCHES: _wrap_launches,
    "torch._functorch._aot_autograd.autograd_cache": _wrap_cache_key,
    "torch._dynamo": _substitute_all,
}
_wrapped: set[str] = set()
_WATCH = ImportWatch(_wrap, lambda: None)
