"""One kernel of a library that is launched from tables, with nothing in its source changed.

The kernel's object gets a subclass of its own class, in which `kernel[grid]` asks the tables first.
All who have imported the object launch through it. What lies under the object's decorators is not
changed, and neither is a decorator around the object elsewhere: both launch as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._applied_plan import AppliedPlan
from ._applied_tables import AppliedTables
from ._compile_mode import never_compiles
from ._decorators import Decorated
from ._lookup import MAX_CACHED
from ._plan import choose_miss, launch_first
from ._ranks import agree
from ._table import Table
from ._traced_launch import STATE, SUBSTITUTES, watch_traces
from ._warn import warn_once
from .device_code import accepted_hashes

#: Stands for the plan of a memo that was not seen yet; None is the plan of a known miss.
_UNSEEN: Any = object()


class AppliedKernel:
    """A kernel, its tables and the counts of its launches.

    name: as tables write it. parts: the kernel under its decorators. It launches as the library
    wrote it until `use` gives it tables.
    """

    def __init__(self, name: str, parts: Decorated) -> None:
        self.name, self.mark = name, f"{name}@{id(self)}"
        self.parts = parts
        #: Launches from a table, and others. Threads may lose some counts.
        self.hits = self.misses = 0
        self.current = AppliedTables(parts, (), self._say)
        #: The part whose `run` launches a plan without further work, and the autotuner or None.
        self.launched, self.tuner = parts.launched, parts.tuner
        self._plain_class: Any = type(parts.top)

    def use(self, tables: Sequence[Table]) -> None:
        """Launch from these tables from now on; from none, as the library wrote it."""
        self.current = AppliedTables(self.parts, tables, self._say)
        top = self.parts.top
        if tables and type(top) is self._plain_class:
            setattr(top, STATE, self)
            # Dynamo knows jitted functions and autotuners, and looks into heuristics.
            is_traced = top is not self.launched and top is not self.tuner
            top.__class__ = _launching(self._plain_class, is_traced)
            watch_traces(self.mark, self)
        elif not tables and type(top) is not self._plain_class:
            # The attribute stays: another thread may be about to read it.
            top.__class__ = self._plain_class

    def _own(self, grid: Any) -> Callable[..., Any]:
        """What `kernel[grid]` is without tables; ranks of a process group tune alike."""
        if self.tuner is not None:
            agree(self.tuner, lambda: accepted_hashes(self.parts.jitted))
        found: Callable[..., Any] = self._plain_class.__getitem__(self.parts.top, grid)
        return found

    def launch_plan(
        self, plan: AppliedPlan | None, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any
    ) -> Any:
        """Launch with a plan that has worked before; without one, as the library does."""
        if never_compiles():
            result, plan = self._launch_compiled(plan, args, kwargs, grid)
            self._count(plan)
            return result
        if plan is None:
            self.misses += 1
            return self._own(grid)(*args, **kwargs)
        self._count(plan)
        return plan.launch(self.parts, args, kwargs, grid)

    def _launch_compiled(
        self, plan: AppliedPlan | None, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any
    ) -> tuple[Any, AppliedPlan | None]:
        """Launch a plan or, where it is not compiled, the next best that is; the result and it."""

        def launch(each: AppliedPlan | None) -> Any:
            if each is None:
                return self._own(grid)(*args, **kwargs)
            return each.launch(self.parts, args, kwargs, grid)

        return launch_first(self.current.list_compiled(plan, args, kwargs, grid), launch)

    def _count(self, plan: AppliedPlan | None) -> None:
        if plan is None or plan.hit.how == "default":
            self.misses += 1
        else:
            self.hits += 1

    def first_launch(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Any:
        """Launch arguments for the first time, or of another form than the latest."""
        current = self.current
        try:
            memo = current.memos.maker(args, kwargs, grid)(args, kwargs, grid)
            plan = current.ready.get(memo, _UNSEEN)
            is_known = plan is not _UNSEEN
            if not is_known:
                plan = current.plan(args, kwargs, grid)
        except Exception as error:  # from heuristics or pruners, or for a value without a hash
            self._say("workload", f"its arguments make no key ({error!r})")
            self.misses += 1
            return self._own(grid)(*args, **kwargs)
        if len(current.ready) >= MAX_CACHED:
            current.ready.clear()
        result, plan = self._try(plan, is_known, args, kwargs, grid)
        self._count(plan)
        current.ready[memo] = plan
        return result

    def _try(
        self,
        plan: AppliedPlan | None,
        is_known: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grid: Any,
    ) -> tuple[Any, AppliedPlan | None]:
        """Launch with a plan, else as the library does; the result, and the plan that works."""
        if never_compiles():
            return self._launch_compiled(plan, args, kwargs, grid)
        if plan is None:
            return self._own(grid)(*args, **kwargs), None
        try:
            return plan.launch(self.parts, args, kwargs, grid), plan
        except Exception as error:
            if is_known or plan.hit.how == "default":
                raise
            # If the next launch raises too, the fault is in the arguments: the table stays in use.
            other = self.current.plan_default(args, kwargs, grid)
            if other is None:
                result = self._own(grid)(*args, **kwargs)
            else:
                result = other.launch(self.parts, args, kwargs, grid)
            self._say(("refused", plan.hit.table), f"{plan.text} fails to launch ({error!r})")
            return result, other

    def plan_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Any:
        """The plan of a launch that torch traces into a graph, as `watch_traces` says."""
        plan = self.current.plan(args, kwargs, grid)
        return plan and (plan, self.launched, plan.bind_constants(self.parts, args, kwargs))

    def end_traced(self, plan: AppliedPlan | None, problem: str) -> None:
        """Count such a launch like any other."""
        if problem:
            self._say(("traced", problem), problem)
        self._count(None if problem else plan)

    def traced_tables(self) -> Sequence[Table]:
        """The tables in use."""
        return self.current.tables

    def _say(self, condition: Any, text: str) -> None:
        tunes = self.tuner is None or choose_miss() == "tune"
        outcome = "launching as the library does" if tunes else "launching the default config"
        warn_once((STATE, self.name, condition), f"kernel {self.name}: {text}; {outcome}")


def state_of(kernel: Any) -> AppliedKernel | None:
    """The state of a kernel that is, or was, launched from tables."""
    found = getattr(kernel, "__dict__", {}).get(STATE)
    return found if isinstance(found, AppliedKernel) else None


_classes: dict[type, type] = {}


def _launching(plain: type, is_traced: bool) -> type:
    """A subclass of a kernel's class that asks tables first. Its name stays: Triton compares it.

    is_traced: whether Dynamo traces `kernel[grid]`, for a class that it does not know.
    """
    if plain not in _classes:
        index = _traced_index if is_traced else _launcher
        members = {"__getitem__": index, "__module__": plain.__module__}
        _classes[plain] = type(plain.__name__, (plain,), members)
    return _classes[plain]


def _launcher(kernel: Any, grid: Any) -> Callable[..., Any]:
    """What `kernel[grid]` is. This adds to every launch, so it is written for speed."""
    state: AppliedKernel = kernel._tuner_applied
    is_function = callable(grid)

    def launch(*args: Any, **kwargs: Any) -> Any:
        current = state.current
        try:
            plan = current.ready[current.memos.latest[is_function](args, kwargs, grid)]
        except (LookupError, AttributeError, TypeError):
            return state.first_launch(args, kwargs, grid)
        if plan is None or not plan.plain:
            return state.launch_plan(plan, args, kwargs, grid)
        state.hits += 1
        if state.tuner is not None:
            state.tuner.best_config = plan.best
        kwargs |= plan.config
        return state.launched.run(*args, grid=grid, warmup=False, **kwargs)

    return launch


def _traced_index(kernel: Any, grid: Any) -> Callable[..., Any]:
    return _launcher(kernel, grid)


def _mark_launches(kernel: Any, grid: Any) -> Callable[..., Any]:
    """`kernel[grid]` as Triton has it, which tells the kernel below of the tables."""
    mark = {STATE: kernel._tuner_applied.mark}
    return lambda *args, **kwargs: kernel.run(*args, grid=grid, warmup=False, **kwargs, **mark)


SUBSTITUTES[_launcher] = _mark_launches
