"""A replacement for `@triton.autotune` that launches the config of a table without tuning."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from ._arguments import Arguments, Dims, KeyMap
from ._decorators import Decorated
from ._device import current_device
from ._entry import Hit
from ._launches import Launches, Plans, bind_grid
from ._plan import Call, Given, Miss, choose_miss
from ._ranks import agree
from ._table import Table
from ._table_files import FoundTable, PathLike, Stale, find_table, search_path
from ._traced_launch import watch_traces
from .device_code import accepted_hashes, base_function, source_text

Prune: TypeAlias = Callable[..., Sequence[Any]]

#: Held while a miss is tuned: Triton's Autotuner keeps the arguments of the launch
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

    named: dict[str, Any] = {
        "table": table,
        "kernel": kernel,
        "stale": stale,
        "miss": miss,
        "dims": dims,
    }
    return partial(Autotuned, configs=configs, key=key, key_map=key_map, **named, **given)


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
        parts = Decorated(top=self, jitted=fn, tuner=self, outer=(), inner=frozenset())
        outcome = "tuning as triton.autotune does"
        self._tuner_launches = Launches(self.kernel, parts, self._tune_alone, outcome, miss)
        self._tuner_launches.use(_FoundPlans(self))
        watch_traces(f"{self.__module__}.{self.kernel}@{id(self)}", self._tuner_launches)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return bind_grid(self._tuner_launches, grid)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch (or, with warmup, only compile) as Triton's KernelInterface does."""
        if warmup:
            return self._tuner_launches.launch((args, kwargs, grid, warmup))
        return bind_grid(self._tuner_launches, grid)(*args, **kwargs)

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> list[Any]:
        """Compile without launching: the config of a hit, or all configs after a miss."""
        _, plan, _ = self._tuner_launches.plans.find((args, kwargs, grid, True))
        if plan is None:
            with _MISS:
                return self._compile(*args, grid=grid, **kwargs)
        return [self.fn.warmup(*args, grid=grid, **kwargs, **plan.config)]

    def hit(self, *args: Any, **kwargs: Any) -> Hit | None:
        """The hit of a launch with these arguments; None where the launch would tune."""
        _, plan, _ = self._tuner_launches.plans.find((args, kwargs, None, True))
        return plan.hit if plan else None

    def _tune_alone(self, given: Given) -> Any:
        args, kwargs, grid, warmup = given
        with _MISS:
            agree(self, lambda: self._sources)
            return self._tune(*args, grid=grid, warmup=warmup, **kwargs)

    @property
    def src(self) -> str:
        """The kernel's text from `def` on."""
        return source_text(self.fn)

    @cached_property
    def _sources(self) -> frozenset[str]:
        return accepted_hashes(self.fn)


class _FoundPlans(Plans):
    """Plans from the table that is found for a decorated kernel."""

    def __init__(self, kernel: Autotuned) -> None:
        super().__init__(kernel._tuner_launches, kernel.arguments, kernel.arguments.memos)
        self._kernel = kernel

    @property
    def tables(self) -> Sequence[Table]:
        table = self._find().table
        return [] if table is None else [table]

    def compute(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        return self.arguments.compute(args, kwargs)

    def find_hits(self, call: Call) -> tuple[Sequence[Hit], str]:
        found = self._find()
        if found.problem:
            self.say("table", found.problem, f"using {found.table.path}" if found.table else "")
        if found.table is None:
            return [], ""
        self.arguments.learn(found.table)
        hit, reason = self.arguments.find(found.table, call.args, call.keywords)
        return ([], reason) if hit is None else ([hit], "")

    def _find(self) -> FoundTable:
        kernel = self._kernel
        own_folder = Path(kernel.base_fn.__code__.co_filename).parent / "tables"
        paths = search_path(kernel.table, [own_folder])
        return find_table(kernel.kernel, paths, current_device(), kernel._sources, kernel.stale)
