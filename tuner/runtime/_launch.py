"""A decorator in the place of `@triton.autotune`: a tabled config is launched at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from ._device import current_device, several_kinds
from ._plan import Plan, plan_for
from ._search import (
    MAX_REMEMBERED,
    Found,
    PathLike,
    Stale,
    find,
    find_in,
    miss_text,
    search_path,
)
from ._source import accepted_hashes, base_function, source_text
from ._table import Hit
from ._warn import warn_once

KeyMap = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def autotune(
    configs: Sequence[Any],
    key: Sequence[str],
    *,
    table: PathLike | None = None,
    kernel: str | None = None,
    stale: Stale = "fallback",
    key_map: KeyMap | None = None,
    **options: Any,
) -> Callable[[Any], Autotuned]:
    """Decorate a Triton kernel as `@triton.autotune` does, with a table in front of the tuning.

    configs, key and options are `triton.autotune`'s. table: a file, or a folder of tables; by
    default those of the environment variable TUNER_TABLES, then `tables/` beside the kernel's
    module. kernel: its name in tables, by default the function's. stale: `fallback` or `use`, for
    a table of another Triton or of other source code.

    The workload looked up is the arguments named in `key`, plus `dtype`, that of the first tensor
    argument (`float16`). key_map makes another of all arguments by name; it is called once per
    distinct values of `key` and of that dtype, so it must depend on nothing else.
    """

    def decorate(fn: Any) -> Autotuned:
        return Autotuned(
            fn, configs, key, table=table, kernel=kernel, stale=stale, key_map=key_map, **options
        )

    return decorate


class Autotuned:
    """A kernel launched as `kernel[grid](*args)`; use `autotune` to make one.

    A hit runs `fn` with the tabled config, as Triton does once it has tuned: `Config.pre_hook` is
    called, `reset_to_zero` and `restore_value` only matter to a benchmark, of which there is none.
    A miss is `triton.autotune` with the same arguments. Attributes this class lacks are the
    Autotuner's.
    """

    def __init__(
        self,
        fn: Any,
        configs: Sequence[Any],
        key: Sequence[str],
        *,
        table: PathLike | None = None,
        kernel: str | None = None,
        stale: Stale = "fallback",
        key_map: KeyMap | None = None,
        **options: Any,
    ) -> None:
        if stale not in ("fallback", "use"):
            raise ValueError(f'stale is {stale!r}; write "fallback" or "use"')
        self.fn = fn
        self.configs = list(configs)
        self.keys = list(key)
        self.arg_names: list[str] = list(fn.arg_names)
        self.options = {name: value for name, value in options.items() if value is not None}
        self.table = table
        self.base_fn = base_function(fn)
        self.kernel = kernel or self.base_fn.__name__
        self.stale = stale
        self.key_map = key_map
        self.__name__ = self.base_fn.__name__
        self.__doc__ = self.base_fn.__doc__
        self.__module__ = self.base_fn.__module__
        self._ready: dict[Any, dict[str, Any]] = {}
        self._plans: dict[Any, Plan | None] = {}
        self._sizes, self._tensor = self._positions(), -1
        self._token = object()

    # -- launching -----------------------------------------------------------------------------
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        ready, sizes, run = self._ready, self._sizes, self.fn.run

        def launch(*args: Any, **kwargs: Any) -> Any:
            try:
                config = ready.get((sizes(args), args[self._tensor].dtype))
            except (LookupError, AttributeError, TypeError):
                config = None
            if config is None:
                return self.run(*args, grid=grid, warmup=False, **kwargs)
            return run(*args, grid=grid, warmup=False, **kwargs, **config)

        return launch

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch (or, with warmup, only compile) as Triton's KernelInterface does."""
        memo = self._memo(args, kwargs)
        plan = self._planned(memo, args, kwargs)
        if plan is None:
            return self._tuner.run(*args, grid=grid, warmup=warmup, **kwargs)
        if plan.proven:
            return self._launch(plan, args, kwargs, grid, warmup)
        try:
            result = self._launch(plan, args, kwargs, grid, warmup)
        except Exception as error:
            # Should this raise as well, the arguments are to blame, and the table stays in use.
            result = self._tuner.run(*args, grid=grid, warmup=warmup, **kwargs)
            self._plans[memo] = None
            self._say(("refused", plan.hit.table), f"{plan.text} does not launch ({error!r})")
            return result
        self._prove(memo, plan, args, warmup)
        return result

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> list[Any]:
        """Compile without launching: the tabled config, or all configs when there is none."""
        plan = self._planned(self._memo(args, kwargs), args, kwargs)
        if plan is None:
            compiled: list[Any] = self._tuner.warmup(*args, grid=grid, **kwargs)
            return compiled
        return [self.fn.warmup(*args, grid=grid, **kwargs, **plan.config)]

    def hit(self, *args: Any, **kwargs: Any) -> Hit | None:
        """What a launch with these arguments takes from a table; None when it would tune."""
        plan = self._planned(self._memo(args, kwargs), args, kwargs)
        return plan.hit if plan else None

    def _launch(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, warmup: bool
    ) -> Any:
        if plan.pre_hook is not None:
            plan.pre_hook({**self._named(args, kwargs), **plan.config})
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **plan.config)

    def _prove(self, memo: Any, plan: Plan, args: tuple[Any, ...], warmup: bool) -> None:
        """After a first launch that worked, later ones with the same key may take the short way."""
        if warmup:
            return
        self._plans[memo] = plan.trusted()
        # A memo of two is one that `launch` above can make by itself.
        if plan.pre_hook is None and len(memo) == 2:
            self._ready[memo] = plan.config

    # -- what to launch ------------------------------------------------------------------------
    def _planned(self, memo: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
        if memo is None:
            return None
        try:
            return self._plans[memo]
        except KeyError:
            plan = self._plan(args, kwargs)
        if len(self._plans) >= MAX_REMEMBERED:
            self._plans.clear()
            self._ready.clear()
        self._plans[memo] = plan
        return plan

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
        named = self._named(args, kwargs)
        found = self._find()
        if found.problem:
            self._say("table", found.problem, found.table)
        if found.table is None:
            return None
        key = self._key(named)
        hit = find_in(found.table, key)
        if hit is None:
            self._say("miss", miss_text(found.table, key))
            return None
        plan, problem = plan_for(self, hit, named, kwargs)
        if plan is None:
            self._say(("refused", hit.table), f"table {hit.table} {problem}")
        return plan

    def _find(self) -> Found:
        beside = Path(self.base_fn.__code__.co_filename).parent / "tables"
        paths = search_path(self.table, [beside])
        return find(self.kernel, paths, current_device(), self._sources, self.stale)

    def _key(self, named: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.key_map is not None:
            return self.key_map(named)
        key = {name: named[name] for name in self.keys}
        for value in named.values():
            if hasattr(value, "dtype"):
                key["dtype"] = dtype_text(value.dtype)
                break
        return key

    def _memo(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """What a plan is remembered under: key values and dtype, and the card where they differ."""
        if self._tensor < 0:
            tensors = (i for i, value in enumerate(args) if hasattr(value, "dtype"))
            self._tensor = next(tensors, len(args))
        try:
            dtype = args[self._tensor].dtype
            sizes = self._sizes(args)
        except (LookupError, AttributeError):
            named = self._named(args, kwargs)
            if any(name not in named for name in self.keys):
                return None
            dtype = next((v.dtype for v in named.values() if hasattr(v, "dtype")), None)
            memo: tuple[Any, ...] = (tuple(named[name] for name in self.keys), dtype, "named")
        else:
            memo = (sizes, dtype)
        if self._several:
            memo = (*memo, current_device())
        try:
            hash(memo)
        except TypeError:
            return None
        return memo

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.arg_names, args, strict=False)), **kwargs}

    def _positions(self) -> Callable[[tuple[Any, ...]], Any]:
        places = [self.arg_names.index(name) for name in self.keys if name in self.arg_names]
        return itemgetter(*places) if places else lambda args: None

    def _say(self, condition: Any, text: str, using: Any = None) -> None:
        now = f"using {using.path}" if using is not None else "tuning as triton.autotune does"
        warn_once((self._token, condition), f"kernel {self.kernel}: {text}; {now}")

    # -- Triton's own --------------------------------------------------------------------------
    @property
    def src(self) -> str:
        """The kernel's text, as `search_spaces.Kernel.source_hash` reads it."""
        return source_text(self.fn)

    @cached_property
    def _tuner(self) -> Any:
        import triton

        return triton.autotune(configs=self.configs, key=self.keys, **self.options)(self.fn)

    @cached_property
    def _several(self) -> bool:
        return several_kinds()

    @cached_property
    def _sources(self) -> frozenset[str]:
        return accepted_hashes(self.fn)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "fn" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._tuner, name)


def dtype_text(dtype: Any) -> str:
    """`float16` of `torch.float16`."""
    return str(dtype).rpartition(".")[2]
