"""Launches that PyTorch traces into a graph: a table chooses the config while the graph is made.

Dynamo, and `torch.library.wrap_triton`, make a node of a launch in one method of `TritonHOPifier`,
which this module wraps. For a hit the node has the library's function under an autotuner of one
config, and the constants of the config as arguments: what torch makes of a launch that passes them.
All else is torch's own, and all of it where a version of torch lacks this interface.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

from ._import_watch import ImportWatch
from ._own_configs import as_config
from ._warn import warn_once

#: The attribute of a kernel that is launched from tables. Heuristics pass it as a keyword to the
#: kernel that they wrap.
STATE = "_tuner_applied"
#: Kernels that may be traced, by names that end with `@` and what makes them unique.
_kernels: WeakValueDictionary[str, Any] = WeakValueDictionary()
#: Functions that Dynamo traces in the place of others.
SUBSTITUTES: dict[Callable[..., Any], Callable[..., Any]] = {}


def watch_traces(name: str, kernel: Any) -> None:
    """Ask a kernel for a plan wherever torch traces a launch of it, also if torch comes later.

    kernel: `plan_traced(args, kwargs, grid)` gives None or a plan, the function to launch, and the
    arguments and options that the plan sets. `end_traced(plan, problem)` counts the launch, and
    says why the plan is not used. `traced_tables()` are the tables in use.
    """
    _kernels[name] = kernel
    _WATCH.watch(frozenset(_WRAPS.keys() - sys.modules.keys()))
    for module in [each for each in _WRAPS if each in sys.modules]:
        _wrap(module, sys.modules[module])


def _wrap(name: str, module: ModuleType) -> None:
    """Put our part into a module of torch, once."""
    try:
        if name not in _wrapped:
            _WRAPS[name](module)
            _wrapped.add(name)
    except Exception as error:
        _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    text = f"{name} is none that tuner knows ({error!r}); compiled code is as torch makes it"
    warn_once(name, text)


def _wrap_launches(module: ModuleType) -> None:
    own = module.TritonHOPifier.call_triton_kernel

    def call(self: Any, variable: Any, args: Any, kwargs: dict[str, Any], tx: Any) -> Any:
        mark = kwargs.pop(STATE, None)
        try:
            variable, args, kwargs = _choose(self, variable, args, kwargs, _read(mark), tx)
        except Exception as error:
            _warn(_LAUNCHES, error)
        return own(self, variable, args, kwargs, tx)

    module.TritonHOPifier.call_triton_kernel = call


def _choose(
    hopifier: Any, variable: Any, args: Any, kwargs: dict[str, Any], mark: str | None, tx: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """A launch as it is, or with the config of tables: its kernel, arguments and keywords."""
    applied = vars(variable.kernel).get(STATE) if mark is None else _kernels.get(mark)
    asked = [applied] if applied is not None and applied.traced_tables() else []
    own = getattr(variable.kernel, "_tuner_launches", None)
    asked += [] if own is None else [own]
    for kernel in asked:
        plan, problem = None, ""
        try:
            grid = getattr(variable.grid, "realize", lambda: variable.grid)()
            grid = len if hopifier.is_callable(grid) else _read(grid)
            values = tuple(map(_read, args)), {name: _read(kwargs[name]) for name in kwargs}
            if found := kernel.plan_traced(*values, grid):
                plan, fn, config = found
                problem = _find_obstacle(plan, fn, config)
        except Exception as error:  # as in any first launch, and for sizes that are symbols
            problem = f"its arguments make no key in a graph ({error!r})"
        kernel.end_traced(plan, problem)
        if plan is not None and not problem:
            return _launch_with(fn, config, variable, args, kwargs, tx)
    return variable, args, kwargs


def _find_obstacle(plan: Any, fn: Any, config: Mapping[str, Any]) -> str:
    """Why a plan cannot be part of a graph; empty text where it can."""
    if plan.pre_hook is not None:
        return f"{plan.text} has a pre_hook, which compiled code does not call"
    for name, value in as_config(config).all_kwargs().items():
        own = name in fn.arg_names or name in ("num_warps", "num_stages")
        if not own and (name, value) != ("num_ctas", 1):
            return f"{plan.text} sets {name}, which compiled code does not pass to Triton"
    return ""


def _launch_with(
    fn: Any, config: Mapping[str, Any], variable: Any, args: Any, kwargs: Any, tx: Any
) -> tuple[Any, Any, dict[str, Any]]:
    from torch._dynamo.variables import ConstantVariable
    from triton.runtime.autotuner import autotune

    passed = {**dict(zip(fn.arg_names, args, strict=False)), **kwargs}
    passed = {name: value for name, value in passed.items() if name not in config}
    options = dict(config)
    for name in config.keys() & set(fn.arg_names):
        if isinstance(config[name], bool | int | float | str | None):
            # As a constant of the config alone, Inductor would take launches with others for equal.
            value = options.pop(name)
            passed[name] = value if tx is None else ConstantVariable.create(value)
    tuned = autotune(configs=[as_config(options)], key=[])(fn)
    return type(variable)(tuned, None, variable.grid), (), passed


def _read(value: Any) -> Any:
    """An argument as a launch has it, of Dynamo's variable for it. A tensor of sizes that are
    symbols has no shape. Raises ValueError for a symbol."""
    if hasattr(value, "realize"):
        value = value.realize()
        if value.is_python_constant():
            return value.as_python_constant()
        value = value.as_proxy()
        value = value.node.meta["example_value"] if hasattr(value, "node") else value
    if hasattr(value, "data_ptr") and not all(type(size) is int for size in value.shape):
        return SimpleNamespace(dtype=value.dtype, data_ptr=value.data_ptr)
    if isinstance(value, tuple | list):
        return tuple(map(_read, value))
    if type(value).__name__.startswith("Sym") or hasattr(value, "node"):
        raise ValueError("a size is a symbol of the graph")
    return value


def _wrap_cache_key(module: ModuleType) -> None:
    """Tables belong to the key of compiled code: in a graph as torch looks it up, an operator of
    `triton_op` is one node, for which torch adds at most the sources of its kernels."""
    details = module.AOTAutogradCacheDetails
    own = details.get_triton_source_codes_from_gm

    def find_sources(self: Any, gm: Any) -> list[Any]:
        used = sorted(
            (name.partition("@")[0], repr([table.entries for table in tables]))
            for name, kernel in _kernels.items()
            if (tables := kernel.traced_tables())
        )
        return [*own(self, gm), *used]

    details.get_triton_source_codes_from_gm = find_sources


def _substitute_all(module: ModuleType) -> None:
    if import_module(_LAUNCHES) and _LAUNCHES in _wrapped:  # else it knows no marks
        for function, traced in SUBSTITUTES.items():
            sys.modules["torch"].compiler.substitute_in_graph(function)(traced)


_LAUNCHES = "torch._higher_order_ops.triton_kernel_wrap"
_WRAPS = {
    _LAUNCHES: _wrap_launches,
    "torch._functorch._aot_autograd.autograd_cache": _wrap_cache_key,
    "torch._dynamo": _substitute_all,
}
_wrapped: set[str] = set()
_WATCH = ImportWatch(_wrap, lambda: None)
