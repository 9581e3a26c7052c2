"""Launch a kernel from tables, else as without them: what decorated and applied kernels share.

`Launches` makes the launches of one kernel, `Plans` chooses and keeps what is launched. What
differs is data: where tables come from, what identifies a launch, and the launch without tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ._arguments import Arguments
from ._compile_mode import NotCompiled, never_compiles, without_compiler
from ._decorators import Decorated
from ._entry import Hit
from ._lookup import MAX_CACHED
from ._memo import MakeMemo, Memos
from ._plan import Call, Given, Miss, Plan, choose_miss, plan_default, plan_hit, plan_substitutes
from ._table import Table
from ._warn import warn_once

#: A plan, None for the launch without tables; its config, None unless `plain`; that config as a
#: `triton.Config`; the autotuner whose `best_config` it becomes; and whether launches are counted.
_Ready: TypeAlias = tuple[Plan | None, dict[str, Any] | None, Any, Any, bool]


class Plans:
    """The plans of one kernel's launches, from some tables; a subclass finds what these have.

    A change of the tables makes a new object, so that a launch in another thread never mixes the
    caches of both.
    """

    #: Whether launches are counted.
    counts = False
    #: The tables that do not fit this process, each with the reason; known after a launch.
    unused: Sequence[tuple[Table, str]] = ()

    def __init__(self, launches: Launches, arguments: Arguments, memos: Memos) -> None:
        self.parts, self.say, self.miss = launches.parts, launches.say, launches.miss
        self.arguments, self.memos = arguments, memos
        #: By memo, after the first launch.
        self.ready: dict[Any, _Ready] = {}

    @property
    def tables(self) -> Sequence[Table]:
        """The tables in use."""
        raise NotImplementedError

    def find_hits(self, call: Call) -> tuple[Sequence[Hit], str]:
        """The hits of a launch in the order to try them; and the reason for a miss."""
        raise NotImplementedError

    def compute(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """What belongs to the memo of a launch besides what `memos` reads from its arguments."""
        return ()

    def find_known(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> _Ready | None:
        """What is ready for a launch in another form than the latest; None where nothing is."""
        try:
            return self.ready[self._memo(self.memos.recall(args, kwargs, grid), args, kwargs, grid)]
        except Exception:  # `find` says what is wrong
            return None

    def find(self, given: Given) -> tuple[Any, Plan | None, bool]:
        """The memo of a launch, None where its arguments make no workload; its plan; and whether it
        was launched before."""
        launch = given[:3]
        try:
            memo = self._memo(self.memos.maker(*launch), *launch)
            if memo in self.ready:
                return memo, self.ready[memo][0], True
            plan = self.plan(given)
            # A table may have added its dims to the memo.
            return self._memo(self.memos.maker(*launch), *launch), plan, False
        except Exception as error:  # from functions of users, or for a value without a hash
            self.say("workload", f"its arguments make no workload ({error!r})")
            return None, None, False

    def _memo(
        self, make: MakeMemo, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any
    ) -> Any:
        memo, more = make(args, kwargs, grid), self.compute(args, kwargs)
        return (memo, *more) if more else memo

    def keep(self, memo: Any, plan: Plan | None) -> None:
        """Launch from a plan whenever a launch has this memo."""
        if len(self.ready) >= MAX_CACHED:
            self.ready.clear()
        if plan is None or not plan.plain or (self.counts and not plan.is_hit):
            self.ready[memo] = plan, None, None, None, self.counts
        else:
            self.ready[memo] = plan, plan.config, plan.best, self.parts.tuner, self.counts

    def plan(self, given: Given) -> Plan | None:
        """The plan of a launch; None, with a reason said, where it is made as without tables."""
        call = Call(self.parts, self.arguments, given)
        hits, reason = self.find_hits(call)
        for hit in hits:
            plan, problem = plan_hit(call, hit)
            if plan is not None:
                return plan
            if problem:
                reason = ""
                self.say(("refused", hit.table), f"table {hit.table} {problem}")
        if reason:
            self.say("miss", reason)
        return self.plan_default(given)

    def plan_default(self, given: Given) -> Plan | None:
        """The plan of a launch that misses and must not tune; None where it may."""
        return (
            None
            if choose_miss(self.miss) == "tune"
            else plan_default(Call(self.parts, self.arguments, given))
        )

    def list_compiled(self, plan: Plan | None, given: Given) -> Iterator[Plan | None]:
        """A plan and what may be launched where it is not compiled, which is said."""
        if plan is not None:
            yield plan
            self.say(("compile", str(plan.config)), f"{plan.text} is not compiled")
        yield from plan_substitutes(
            Call(self.parts, self.arguments, given), plan.hit if plan else None
        )


class Launches:
    """The launches of one kernel, and their counts.

    name: as tables write it. parts: the kernel under its decorators. own: the launch without
    tables. outcome: what that does, in words. miss: what a launch without an entry does. topic:
    what warnings are of; each comes once per topic, by default per object.
    """

    plans: Plans

    def __init__(
        self,
        name: str,
        parts: Decorated,
        own: Callable[[Given], Any],
        outcome: str,
        miss: Miss | None = None,
        topic: Any = None,
    ) -> None:
        self.name, self.parts, self.miss = name, parts, miss
        self._own, self._outcome = own, outcome
        self._topic = topic or object()
        #: Launches from a table, and others. Threads may lose some counts.
        self.hits = self.misses = 0
        #: The part whose `run` launches a plan without further work, and the autotuner or None.
        self.launched, self.tuner = parts.launched, parts.tuner

    def use(self, plans: Plans) -> None:
        """Launch with these plans from now on."""
        self.plans, self.hot = plans, (plans.ready, plans.memos.latest)

    def launch(self, given: Given) -> Any:
        """Launch arguments that may be new."""
        plans = self.plans
        memo, plan, is_known = plans.find(given)
        if is_known:
            return self.launch_known(plan, given)
        launch = self._launch_compiled if never_compiles() else self._try
        result, plan = launch(plans, plan, given)
        if memo is not None and not given[3]:
            plans.keep(memo, plan)
        return result

    def launch_known(self, plan: Plan | None, given: Given) -> Any:
        """Launch a plan that has worked before; without one, as without tables."""
        if never_compiles():
            return self._launch_compiled(self.plans, plan, given)[0]
        if plan is None:
            self.misses += 1
            return self._own(given)
        self._count(plan)
        return plan.launch(self.parts, given)

    def _launch(self, plan: Plan | None, given: Given) -> Any:
        return self._own(given) if plan is None else plan.launch(self.parts, given)

    def _try(self, plans: Plans, plan: Plan | None, given: Given) -> tuple[Any, Plan | None]:
        """Launch with a plan, else as a miss; the result, and the plan that works."""
        try:
            result = self._launch(plan, given)
        except Exception as error:
            if plan is None or not plan.is_hit:
                raise
            # If the next launch raises too, the fault is in the arguments: the table stays in use.
            refused, plan = plan, plans.plan_default(given)
            result = self._launch(plan, given)
            text = f"{refused.text} fails to launch ({error!r})"
            self.say(("refused", refused.hit.table), text)
        self._count(plan)
        return result, plan

    def _launch_compiled(
        self, plans: Plans, plan: Plan | None, given: Given
    ) -> tuple[Any, Plan | None]:
        """Launch a plan or, where it is not compiled, the next best that is; the result and it.
        Raises NotCompiled where none is."""
        first: NotCompiled | None = None
        for each in plans.list_compiled(plan, given):
            try:
                with without_compiler():
                    result = self._launch(each, given)
            except NotCompiled as error:
                first = first or error
            else:
                self._count(each)
                return result, each
        raise first or NotCompiled("no config can be launched, and TUNER_COMPILE=never")

    def _count(self, plan: Plan | None) -> None:
        if plan is not None and plan.is_hit:
            self.hits += 1
        else:
            self.misses += 1

    def say(self, condition: Any, text: str, outcome: str = "") -> None:
        """Warn once of a condition; outcome: what is done about it."""
        tunes = self.tuner is None or choose_miss(self.miss) == "tune"
        outcome = outcome or (self._outcome if tunes else "launching the default config")
        warn_once((self._topic, condition), f"kernel {self.name}: {text}; {outcome}")

    # -- tracing -------------------------------------------------------------------------------
    def plan_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Any:
        """The plan of a launch that torch traces into a graph, as `watch_traces` says."""
        plan = self.plans.plan((args, kwargs, grid, False))
        return plan and (plan, self.launched, plan.bind_constants(self.parts, args, kwargs))

    def end_traced(self, plan: Plan | None, problem: str) -> None:
        """Count such a launch like any other."""
        if problem:
            self.say(("traced", problem), problem)
        self._count(None if problem else plan)

    def traced_tables(self) -> Sequence[Table]:
        """The tables in use."""
        return self.plans.tables


def bind_grid(state: Launches, grid: Any) -> Callable[..., Any]:
    """What `kernel[grid]` is. This adds to every launch, so it is written for speed."""

    def launch(*args: Any, **kwargs: Any) -> Any:
        ready, latest = state.hot
        try:
            found = ready[latest[type(grid)](args, kwargs, grid)]
        except (LookupError, AttributeError, TypeError):
            known = state.plans.find_known(args, kwargs, grid)
            if known is None:
                return state.launch((args, kwargs, grid, False))
            found = known
        plan, config, best, tuner, counts = found
        if config is None:
            return state.launch_known(plan, (args, kwargs, grid, False))
        if counts:
            state.hits += 1
        if tuner is not None:
            tuner.best_config = best
        if kwargs:
            kwargs |= config
            return state.launched.run(*args, grid=grid, warmup=False, **kwargs)
        return state.launched.run(*args, grid=grid, warmup=False, **config)

    return launch
