"""A decorator in the place of `@triton.autotune`: a tabled config is launched at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from ._arguments import Arguments, Dims, KeyMap
from ._device import current_device, several_kinds
from ._plan import Plan, plan_for
from ._search import MAX_REMEMBERED, Found, PathLike, Stale, find, search_path
from ._source import accepted_hashes, base_function, source_text
from ._table import Hit
from ._warn import warn_once

Prune: TypeAlias = Callable[..., Sequence[Any]]

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
    dims: Dims | None = None,
    key_map: KeyMap | None = None,
    **options: Any,
) -> Callable[[Any], Autotuned]:
    """Decorate a Triton kernel as `@triton.autotune` does, with a table in front of the tuning.

    configs, key, more and options are `triton.autotune`'s. table: a file, or a folder of tables; by
    default those of the environment variable TUNER_TABLES, then `tables/` beside the kernel's
    module. kernel: its name in tables, by default the function's. stale: `fallback` or `use`, for
    a table of another Triton or of other source code.

    The workload looked up has the dims of the table: each is the argument of that name, passed or
    left to its default, whether `key` names it or not; `dtype` is that of the first parameter that
    holds a tensor (`float16`). dims: for a dim that is no argument, the name of the argument it is,
    or a function of all arguments by name. key_map: a function of all arguments by name that makes
    the whole workload instead. Functions are called at every launch. Raises ValueError for a
    `stale` or `dims` that cannot be.
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
            dims=dims,
            key_map=key_map,
            **given,
        )

    return decorate


def _tracing() -> bool:
    """Whether PyTorch makes a graph of what is launched, as of `torch.library.wrap_triton`."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxies is not None and proxies.get_proxy_mode() is not None


@lru_cache
def _joined(cls: type[Autotuned]) -> type[Autotuned]:
    """A class as one of Triton's as well, made when a kernel is decorated and Triton is loaded.

    Taken from where it lives, since `triton.autotune` may be ours.
    """
    from triton.runtime.autotuner import Autotuner

    own = {"_init": Autotuner.__init__, "_tune": Autotuner.run, "_compile": Autotuner.warmup}
    return type(cls.__name__, (cls, Autotuner), {"__module__": cls.__module__, **own})


class Autotuned:
    """A kernel launched as `kernel[grid](*args)`; use `autotune` to make one.

    A hit runs `fn` with the tabled config, as Triton does once it has tuned: `Config.pre_hook` is
    called, `reset_to_zero` and `restore_value` only matter to a benchmark, of which there is none.
    A miss is `triton.autotune` with the same arguments.

    Every instance is also a `triton.runtime.autotuner.Autotuner`. `best_config` is the config of
    the latest launch, whether of a table or tuned. `cache`, `configs_timings` and `bench_time` are
    about what was tuned here: empty, empty and 0.0 until a miss.
    """

    _init: Callable[..., None]
    _tune: Callable[..., Any]
    _compile: Callable[..., list[Any]]
    arg_names: list[str]
    configs: Sequence[Any]
    keys: Sequence[str]
    cache: dict[Any, Any]
    best_config: Any

    def __new__(cls, *args: Any, **options: Any) -> Autotuned:
        return super().__new__(cls if hasattr(cls, "_tune") else _joined(cls))  # type: ignore[arg-type]

    def __init__(
        self,
        fn: Any,
        configs: Sequence[Any],
        key: Sequence[str],
        *,
        table: PathLike | None = None,
        kernel: str | None = None,
        stale: Stale = "fallback",
        dims: Dims | None = None,
        key_map: KeyMap | None = None,
        **options: Any,
    ) -> None:
        if stale not in ("fallback", "use"):
            raise ValueError(f'stale is {stale!r}; write "fallback" or "use"')
        given = {name: value for name, value in options.items() if value is not None}
        needed = {"reset_to_zero": None, "restore_value": None}
        self._init(fn, fn.arg_names, configs, key, **{**needed, **given})
        self.fn = fn
        self.table = table
        self.base_fn = base_function(fn)
        self.kernel = kernel or self.base_fn.__name__
        self.stale = stale
        self.configs_timings: dict[Any, Any] = {}
        self.bench_time = 0.0
        self.__name__ = self.base_fn.__name__
        self.__doc__ = self.base_fn.__doc__
        self.__module__ = self.base_fn.__module__
        self.arguments = Arguments(self.arg_names, self.base_fn, key, dims, key_map)
        self._ready: dict[Any, tuple[dict[str, Any], Any]] = {}
        self._plans: dict[Any, Plan | None] = {}
        self._token = object()

    # -- launching -----------------------------------------------------------------------------
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        ready, arguments, run = self._ready, self.arguments, self.fn.run

        def launch(*args: Any, **kwargs: Any) -> Any:
            try:
                if len(args) >= arguments.reach:
                    found = ready.get((arguments.pick(args), args[arguments.first].dtype))
                else:
                    found = ready.get(arguments.formed(args, kwargs))
            except (LookupError, AttributeError, TypeError):
                found = None
            if found is None:
                return self.run(*args, grid=grid, warmup=False, **kwargs)
            config, self.best_config = found
            return run(*args, grid=grid, warmup=False, **kwargs, **config)

        return launch

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch (or, with warmup, only compile) as Triton's KernelInterface does."""
        memo, plan = self._planned(args, kwargs)
        if plan is None:
            return self._tune(*args, grid=grid, warmup=warmup, **kwargs)
        if plan.proven:
            return self._launch(plan, args, kwargs, grid, warmup)
        try:
            result = self._launch(plan, args, kwargs, grid, warmup)
        except Exception as error:
            # Should this raise as well, the arguments are to blame, and the table stays in use.
            result = self._tune(*args, grid=grid, warmup=warmup, **kwargs)
            self._plans[memo] = None
            self._say(("refused", plan.hit.table), f"{plan.text} does not launch ({error!r})")
            return result
        self._prove(memo, plan, warmup)
        return result

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> list[Any]:
        """Compile without launching: the tabled config, or all configs when there is none."""
        _, plan = self._planned(args, kwargs)
        if plan is None:
            return self._compile(*args, grid=grid, **kwargs)
        return [self.fn.warmup(*args, grid=grid, **kwargs, **plan.config)]

    def hit(self, *args: Any, **kwargs: Any) -> Hit | None:
        """What a launch with these arguments takes from a table; None when it would tune."""
        _, plan = self._planned(args, kwargs)
        return plan.hit if plan else None

    def _launch(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, warmup: bool
    ) -> Any:
        self.best_config = plan.best
        if plan.pre_hook is not None:
            plan.pre_hook({**self._passed(args, kwargs), **plan.config})
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **plan.config)

    def _prove(self, memo: Any, plan: Plan, warmup: bool) -> None:
        """After a first launch that worked, later ones with the same key may take the short way."""
        if warmup:
            return
        self._plans[memo] = plan.trusted()
        # A memo of two is one that `launch` above can make by itself.
        if plan.pre_hook is None and len(memo) == 2:
            self._ready[memo] = plan.config, plan.best

    # -- tracing -------------------------------------------------------------------------------
    @property
    def early_config_prune(self) -> Prune | None:
        """The library's own pruning; while PyTorch traces a launch, with the table in front."""
        return self._traced_prune if _tracing() else self.own_prune

    @early_config_prune.setter
    def early_config_prune(self, prune: Prune | None) -> None:
        self.own_prune = prune

    def _traced_prune(
        self, configs: Sequence[Any], passed: Mapping[str, Any], **kwargs: Any
    ) -> Sequence[Any]:
        """The table's config alone, if it was measured for this very workload."""
        _, plan = self._planned((), {**passed, **kwargs})
        if plan is not None and plan.hit.how == "exact" and plan.pre_hook is None:
            return [plan.best]
        return configs if self.own_prune is None else self.own_prune(configs, passed, **kwargs)

    # -- what to launch ------------------------------------------------------------------------
    def _planned(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Plan | None]:
        """What a launch is remembered by, and its plan; none where there is no workload."""
        try:
            memo = self._memo(args, kwargs)
            if memo in self._plans:
                return memo, self._plans[memo]
            plan = self._plan(args, kwargs)
            # The table's dims may be among what a launch is remembered by from now on.
            memo = self._memo(args, kwargs)
        except Exception as error:  # of dims, key_map or a pruner, or a value that has no hash
            self._say("workload", f"its workload cannot be made of its arguments ({error!r})")
            return (), None
        if len(self._plans) >= MAX_REMEMBERED:
            self._plans.clear()
            self._ready.clear()
        self._plans[memo] = plan
        return memo, plan

    def _memo(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        memo = self.arguments.memo(args, kwargs)
        return (*memo, current_device()) if self._several else memo

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
        found = self._find()
        if found.problem:
            self._say("table", found.problem, found.table)
        if found.table is None:
            return None
        if self.arguments.learn(found.table):
            self._plans.clear()
            self._ready.clear()
        hit, reason = self.arguments.find(found.table, args, kwargs)
        if hit is None:
            self._say("miss", reason)
            return None
        plan, problem = plan_for(self, hit, self._passed(args, kwargs), kwargs)
        if plan is None:
            self._say(("refused", hit.table), f"table {hit.table} {problem}")
        return plan

    def _find(self) -> Found:
        beside = Path(self.base_fn.__code__.co_filename).parent / "tables"
        paths = search_path(self.table, [beside])
        return find(self.kernel, paths, current_device(), self._sources, self.stale)

    def _passed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.arg_names, args, strict=False)), **kwargs}

    def _say(self, condition: Any, text: str, using: Any = None) -> None:
        now = f"using {using.path}" if using is not None else "tuning as triton.autotune does"
        warn_once((self._token, condition), f"kernel {self.kernel}: {text}; {now}")

    @property
    def src(self) -> str:
        """The kernel's text from `def` on."""
        return source_text(self.fn)

    @cached_property
    def _several(self) -> bool:
        return several_kinds()

    @cached_property
    def _sources(self) -> frozenset[str]:
        return accepted_hashes(self.fn)
