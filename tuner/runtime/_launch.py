"""A replacement for `@triton.autotune` that launches the config of a table without tuning."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from ._arguments import Arguments, Dims, KeyMap
from ._compile_mode import never_compiles
from ._device import current_device
from ._entry import Hit
from ._lookup import MAX_CACHED
from ._own_configs import OwnConfigs, bound_prune
from ._plan import (
    Miss,
    Plan,
    choose_miss,
    launch_first,
    plan_default,
    plan_for,
    plan_substitutes,
)
from ._ranks import agree
from ._table import Table
from ._table_files import FoundTable, PathLike, Stale, find_table, search_path
from ._traced_launch import watch_traces
from ._warn import warn_once
from .device_code import accepted_hashes, base_function, source_text

Prune: TypeAlias = Callable[..., Sequence[Any]]

#: Held while a miss is planned and tuned: Triton's Autotuner keeps the arguments of the launch
#: that it tunes on itself, and two at once would disturb each other's times.
_MISS = threading.RLock()


def _renew_lock() -> None:
    """A child must not wait for a thread of its parent."""
    global _MISS
    _MISS = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)

#: The arguments of `triton.autotune` after its first two, in order.
_OPTIONS = (
    *("prune_configs_by", "reset_to_zero", "restore_value", "pre_hook", "post_hook"),
    *("warmup", "rep", "use_cuda_graph", "do_bench", "cache_results"),
)


def autotune(
    configs: Sequence[Any],
    key: Sequence[str],
    *more: Any,
    table: PathLike | None = None,
    kernel: str | None = None,
    stale: Stale = "fallback",
    miss: Miss | None = None,
    dims: Dims | None = None,
    key_map: KeyMap | None = None,
    **options: Any,
) -> Callable[[Any], Autotuned]:
    """Decorate a Triton kernel like `@triton.autotune`; a table replaces the tuning where it can.

    configs, key, more and options are `triton.autotune`'s. table: a file, or a folder of tables; by
    default those in the environment variable TUNER_TABLES, then `tables/` in the folder of the
    kernel's module. kernel: its name in tables, by default the function's. stale: `use` admits a
    table of another Triton or of other source code, `fallback` misses instead. miss: what a launch
    without an entry does. `tune` is as `triton.autotune`; `default` launches the first
    config that the library's pruning keeps, and never tunes. By default what the environment
    variable TUNER_MISS says, else `tune`.

    The workload has the dims of the table. A dim is the argument of its name, passed or default,
    whether `key` names it or not; `dtype` is the dtype of the first parameter that holds a tensor
    (`float16`). dims: for a dim that is not an argument, the name of its argument or a function of
    all arguments by name. key_map: a function of all arguments by name that returns the whole
    workload. Functions are called at every launch. Raises ValueError for an invalid `stale`, `miss`
    or `dims`.
    """
    given = {**dict(zip(_OPTIONS, more, strict=False)), **options}
    if len(more) > len(_OPTIONS):
        raise TypeError(f"autotune takes at most {len(_OPTIONS) + 2} positional arguments")

    def decorate(fn: Any) -> Autotuned:
        return Autotuned(
            fn,
            configs,
            key,
            table=table,
            kernel=kernel,
            stale=stale,
            miss=miss,
            dims=dims,
            key_map=key_map,
            **given,
        )

    return decorate


@lru_cache
def _triton_class(cls: type[Autotuned]) -> type[Autotuned]:
    """A subclass of `cls` and of Triton's Autotuner, made when the first kernel is decorated.

    The Autotuner is imported from its module, since `triton.autotune` may be replaced by ours.
    """
    from triton.runtime.autotuner import Autotuner

    own = {"_init": Autotuner.__init__, "_tune": Autotuner.run, "_compile": Autotuner.warmup}
    return type(cls.__name__, (cls, Autotuner), {"__module__": cls.__module__, **own})


class Autotuned:
    """A kernel that is launched as `kernel[grid](*args)`; `autotune` makes one.

    A hit runs `fn` with the config of the table, as Triton does after tuning. `Config.pre_hook` is
    called; `reset_to_zero` and `restore_value` are not applied, since nothing is benchmarked. A
    miss behaves like `triton.autotune` with the same arguments, unless `miss` is `default`; ranks
    of a process group agree on its config.

    Every instance is also a `triton.runtime.autotuner.Autotuner`. `best_config` is the config of
    the latest launch, from a table or tuned. `cache`, `configs_timings` and `bench_time` describe
    tuning in this process; they are empty, empty and 0.0 until the first miss.
    """

    _init: Callable[..., None]
    _tune: Callable[..., Any]
    _compile: Callable[..., list[Any]]
    arg_names: list[str]
    configs: Sequence[Any]
    keys: Sequence[str]
    cache: dict[Any, Any]
    best_config: Any
    early_config_prune: Prune | None

    def __new__(cls, *args: Any, **options: Any) -> Autotuned:
        return super().__new__(cls if hasattr(cls, "_tune") else _triton_class(cls))  # type: ignore[arg-type]

    def __init__(
        self,
        fn: Any,
        configs: Sequence[Any],
        key: Sequence[str],
        *,
        table: PathLike | None = None,
        kernel: str | None = None,
        stale: Stale = "fallback",
        miss: Miss | None = None,
        dims: Dims | None = None,
        key_map: KeyMap | None = None,
        **options: Any,
    ) -> None:
        if stale not in ("fallback", "use"):
            raise ValueError(f'stale is {stale!r}; write "fallback" or "use"')
        choose_miss(miss)
        given = {name: value for name, value in options.items() if value is not None}
        needed = {"reset_to_zero": None, "restore_value": None}
        self._init(fn, fn.arg_names, configs, key, **{**needed, **given})
        self.fn = fn
        self.table = table
        self.base_fn = base_function(fn)
        self.kernel = kernel or self.base_fn.__name__
        self.stale = stale
        self.miss = miss
        self.configs_timings: dict[Any, Any] = {}
        self.bench_time = 0.0
        self.__name__ = self.base_fn.__name__
        self.__doc__ = self.base_fn.__doc__
        self.__module__ = self.base_fn.__module__
        self.arguments = Arguments(self.arg_names, self.base_fn, key, dims, key_map)
        self._ready: dict[Any, tuple[dict[str, Any], Any]] = {}
        self._plans: dict[Any, Plan | None] = {}
        self._token = object()
        watch_traces(f"{self.__module__}.{self.kernel}@{id(self)}", self)

    # -- launching -----------------------------------------------------------------------------
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        makers = self.arguments.memos.makers

        def launch(*args: Any, **kwargs: Any) -> Any:
            try:
                make = makers[(len(args), *kwargs) if kwargs else len(args)]
                found = self._ready[make(args, kwargs, None)]
            except (LookupError, AttributeError, TypeError):
                pass
            else:
                config, self.best_config = found
                return self.fn.run(*args, grid=grid, warmup=False, **kwargs, **config)
            return self.run(*args, grid=grid, warmup=False, **kwargs)

        return launch

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch (or, with warmup, only compile) as Triton's KernelInterface does."""
        memo, plan = self._find_plan(args, kwargs, grid)
        if never_compiles():
            return self._launch_compiled(memo, plan, args, kwargs, grid, warmup)
        if plan is None:
            return self._tune_alone(*args, grid=grid, warmup=warmup, **kwargs)
        if plan.launched:
            return self._launch(plan, args, kwargs, grid, warmup)
        try:
            result = self._launch(plan, args, kwargs, grid, warmup)
        except Exception as error:
            if plan.hit.how == "default":
                raise
            # If this raises too, the fault is in the arguments, and the table stays in use.
            other = self._plan_default(args, kwargs, grid)
            if other is None:
                result = self._tune_alone(*args, grid=grid, warmup=warmup, **kwargs)
            else:
                result = self._launch(other, args, kwargs, grid, warmup)
            self._plans[memo] = other
            self._warn(("refused", plan.hit.table), f"{plan.text} fails to launch ({error!r})")
            return result
        self._mark_launched(memo, plan, warmup)
        return result

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> list[Any]:
        """Compile without launching: the config of a hit, or all configs after a miss."""
        _, plan = self._find_plan(args, kwargs, grid)
        if plan is None:
            with _MISS:
                return self._compile(*args, grid=grid, **kwargs)
        return [self.fn.warmup(*args, grid=grid, **kwargs, **plan.config)]

    def hit(self, *args: Any, **kwargs: Any) -> Hit | None:
        """The hit of a launch with these arguments; None where the launch would tune."""
        _, plan = self._find_plan(args, kwargs)
        return plan.hit if plan else None

    def _tune_alone(self, *args: Any, **kwargs: Any) -> Any:
        with _MISS:
            agree(self, lambda: self._sources)
            return self._tune(*args, **kwargs)

    def _launch(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, warmup: bool
    ) -> Any:
        self.best_config = plan.best
        if plan.pre_hook is not None:
            plan.pre_hook({**self._name_passed(args, kwargs), **plan.best.all_kwargs()})
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **plan.config)

    def _launch_compiled(
        self, memo: Any, plan: Plan | None, args: Any, kwargs: Any, grid: Any, warmup: bool
    ) -> Any:
        """Launch a plan or, where it is not compiled, the next best one that is."""

        def list_plans() -> Iterator[Plan]:
            if plan is not None:
                yield plan
                self._warn(("compile", memo), f"{plan.text} is not compiled")
            own, named = self._own_configs(args, kwargs, grid), self._name_passed(args, kwargs)
            yield from plan_substitutes(own, self.arg_names, plan.hit if plan else None, named)

        result, found = launch_first(
            list_plans(), lambda each: self._launch(each, args, kwargs, grid, warmup)
        )
        if memo:
            self._plans[memo] = found
        return result

    def _mark_launched(self, memo: Any, plan: Plan, warmup: bool) -> None:
        """Let later launches with this memo skip the checks, after the first success."""
        if warmup:
            return
        self._plans[memo] = plan.after_launch()
        # `launch` above computes memos of length one inline.
        if plan.pre_hook is None and len(memo) == 1:
            self._ready[memo[0]] = plan.config, plan.best

    # -- tracing -------------------------------------------------------------------------------
    def plan_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Any:
        """The plan of a launch that torch traces into a graph, as `watch_traces` says."""
        _, plan = self._find_plan(args, kwargs, grid)
        return plan and (plan, self.fn, plan.config)

    def end_traced(self, plan: Plan | None, problem: str) -> None:
        """Say why such a launch is as torch makes it."""
        if problem:
            self._warn(("traced", problem), problem)

    def traced_tables(self) -> Sequence[Table]:
        """The table in use."""
        table = self._find().table
        return [] if table is None else [table]

    # -- what to launch ------------------------------------------------------------------------
    def _find_plan(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any = None
    ) -> tuple[tuple[Any, ...], Plan | None]:
        """The memo of a launch and its plan; no plan where the arguments make no workload."""
        try:
            memo = self.arguments.memo(args, kwargs)
            if memo in self._plans:
                return memo, self._plans[memo]
            with _MISS:
                plan = self._plan(args, kwargs, grid)
            # `_plan` may have added the table's dims to the memo.
            memo = self.arguments.memo(args, kwargs)
        except Exception as error:  # from dims, key_map or a pruner, or for a value without a hash
            self._warn("workload", f"its arguments make no workload ({error!r})")
            return (), None
        if len(self._plans) >= MAX_CACHED:
            self._plans.clear()
            self._ready.clear()
        self._plans[memo] = plan
        return memo, plan

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Plan | None:
        plan = self._plan_from_table(args, kwargs, grid)
        return self._plan_default(args, kwargs, grid) if plan is None else plan

    def _plan_default(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any
    ) -> Plan | None:
        """The plan of a launch that misses and must not tune; None where it tunes."""
        if choose_miss(self.miss) == "tune":
            return None
        own = self._own_configs(args, kwargs, grid)
        return plan_default(own, self.arg_names, self._name_passed(args, kwargs))

    def _own_configs(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> OwnConfigs:
        prune = bound_prune(self.early_config_prune, self.arg_names, args, kwargs, grid)
        return OwnConfigs(self.configs, prune)

    def _plan_from_table(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any
    ) -> Plan | None:
        found = self._find()
        if found.problem:
            self._warn("table", found.problem, found.table)
        if found.table is None:
            return None
        if self.arguments.learn(found.table):
            self._plans.clear()
            self._ready.clear()
        hit, reason = self.arguments.find(found.table, args, kwargs)
        if hit is None:
            self._warn("miss", reason)
            return None
        own = self._own_configs(args, kwargs, grid)
        plan, problem = plan_for(own, self.arg_names, hit, self._name_passed(args, kwargs))
        if plan is None:
            self._warn(("refused", hit.table), f"table {hit.table} {problem}")
        return plan

    def _find(self) -> FoundTable:
        own_folder = Path(self.base_fn.__code__.co_filename).parent / "tables"
        paths = search_path(self.table, [own_folder])
        return find_table(self.kernel, paths, current_device(), self._sources, self.stale)

    def _name_passed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.arg_names, args, strict=False)), **kwargs}

    def _warn(self, condition: Any, text: str, using: Any = None) -> None:
        tunes = choose_miss(self.miss) == "tune"
        outcome = "tuning as triton.autotune does" if tunes else "launching the default config"
        if using is not None:
            outcome = f"using {using.path}"
        warn_once((self._token, condition), f"kernel {self.kernel}: {text}; {outcome}")

    @property
    def src(self) -> str:
        """The kernel's text from `def` on."""
        return source_text(self.fn)

    @cached_property
    def _sources(self) -> frozenset[str]:
        return accepted_hashes(self.fn)
