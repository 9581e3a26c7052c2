"""`tune`: search for the best config of a kernel, for one workload or for several."""

# Annotations are objects here: `help` shows those of the keywords.
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from results_db.stored_records import RunStatus
from search_spaces import registry, source_changes
from search_spaces.declaration import guarded_calls
from search_spaces.errors import KernelError, SpaceError, TunerError, WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.records import Value, Workload
from search_spaces.size_range import Range
from tuner import runtime
from tuner.api.databases import CallDatabase
from tuner.api.range_result import RangeResult, range_result
from tuner.api.result import TuneResult
from tuner.progress import Progress, ProgressCallback
from tuner.traces import record
from tuner.views.progress_display import show_progress

if TYPE_CHECKING:
    from tuner.campaign import RunOptions, RunOutcome
    from tuner.capturing import CapturedKernel
    from tuner.settings.sections import Settings
    from workers.job_records import PoolSpec
    from workers.roles import Pool

Dims: TypeAlias = Workload | Mapping[str, Value]
#: A workload of which some sizes are ranges.
RangeDims: TypeAlias = Mapping[str, Value | Range]
Budget: TypeAlias = int | str | Mapping[str, Any]
#: Sizes of an argument of captured calls, by its name.
ArgumentRanges: TypeAlias = Mapping[str, Range | tuple[int, int]]
#: Makes the pool that a run starts and closes; None: one of the pool's kind.
CreatePool: TypeAlias = "Callable[[PoolSpec], Pool] | None"
#: Mistakes that may concern one workload only.
_OF_ONE_WORKLOAD = (WorkloadError, SpaceError, KernelError)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Keywords of `tune` that shape its campaign; the docstring of `tune` says what each means."""

    budget: Budget
    strategy: str
    seed: int
    fresh: bool
    target: str | None
    settings: Mapping[str, Any] | None
    on_progress: ProgressCallback | None
    progress: bool | None
    pool: str
    numerics: str


def tune(
    kernel: "str | Kernel | CapturedKernel",
    workload: "Dims | RangeDims | Sequence[Dims] | None" = None,
    *,
    budget: Budget = 100,
    strategy: str = "bayes",
    seed: int = 0,
    fresh: bool = False,
    ranges: ArgumentRanges | None = None,
    numerics: str = "any",
    target: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_progress: ProgressCallback | None = None,
    progress: bool | None = None,
    pool: str = "local",
    database: str | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> Any:
    """Tune a kernel for one workload, or for several as one campaign.

    One workload gives a `TuneResult` with the winner, its tie set and all trials. A sequence of
    workloads gives a list with one `TuneResult` per workload, in order; a workload that cannot be
    tuned has a result whose note says why. A workload with a `tuner.Range` in the place of a size
    gives one `RangeResult`: the fewest configs that serve the range, from sizes that the farm
    chooses.

    kernel: a registered name, `module:object`, `file.py:object`, or a `Kernel` that another process
    can import. For captured calls, `calls["name"]` or what their `declare` returns, leave out the
    workload: the calls are the workloads, and one gives a result, several a list. ranges: of them,
    such as `{"n_rows": (1, 65536)}`: the sizes of one argument, and they give a `RangeResult`.

    numerics: `deterministic` refuses what gives other bits when it is repeated; `batch_invariant`
    needs a range, and gives each row the same bits at all of its sizes.

    budget: per workload, trials, `"auto"`, or a mapping of `trials`, `gain`, `max_trials`,
    `device`, `search` (seconds or `"30m"`); in a mapping, `wall` is the wall-clock time of the
    whole call. strategy: its name; seed: of its random choices. fresh: measure again what the
    database has. target: `cpu`, `cuda`, `cuda:90`...; by default the kernel's own kind. settings:
    more of config.yaml, such as `{"measure": {"final_pairs": 40}}`. on_progress: called several
    times a second. progress: whether to show it; by default on a terminal and in a notebook, with
    True also elsewhere, as lines on stderr. pool: the kind of pool in which workers run. database:
    a SQLAlchemy URL; by default a temporary one, which is removed with the last result that refers
    to it. trace: a file for what every process did when, for ui.perfetto.dev.

    Of the ranks of a process group, the first that calls tunes, and all get its result.

    Raises `TunerError` for whatever the caller can correct.
    """
    kernel, workload = add_workload(kernel, workload, ranges)
    options = CallOptions(
        budget, strategy, seed, fresh, target, settings, on_progress, progress, pool, numerics
    )
    call = TuneCall(kernel, workloads_of(workload), options)
    with record(None if trace is None else Path(trace), "tuner.tune", option="trace"):
        results = call.run_once(CallDatabase(database))
    return result_of(results, workload)


def result_of(
    results: list[TuneResult] | RangeResult, workload: Dims | RangeDims | Sequence[Dims]
) -> TuneResult | RangeResult | list[TuneResult]:
    """What a call returns: one result for one workload, a list for several, or that of a range."""
    if isinstance(results, RangeResult):
        return results
    return results[0] if isinstance(workload, Workload | Mapping) else results


def add_workload(
    kernel: "str | Kernel | CapturedKernel",
    workload: Dims | RangeDims | Sequence[Dims] | None,
    ranges: ArgumentRanges | None,
) -> tuple[str | Kernel, Dims | RangeDims | Sequence[Dims]]:
    """A kernel and what to tune it for; the workloads of captured calls are the calls."""
    if not isinstance(kernel, str | Kernel):
        if not hasattr(kernel, "declare"):
            raise TunerError(
                f"{kernel!r:.60} is no kernel", 'pass "file.py:object", a name, or an instance'
            )
        if workload is not None:
            raise TunerError(
                "captured calls have their own workloads",
                'leave out the workload, or take calls["k"][0]',
            )
        kernel = kernel.declare(ranges=ranges)
    elif ranges is not None:
        raise TunerError(
            "ranges= is for captured calls",
            'put tuner.Range(1, 8192) into the workload, or take calls["k"].declare(ranges=...)',
        )
    if workload is not None:
        return kernel, workload
    from tuner.capturing.call_kernel import CallKernel

    if not isinstance(kernel, CallKernel):
        raise TunerError(
            "there is no workload to tune", 'pass a mapping of dims, such as {"n": 1024}'
        )
    found = kernel.workloads()
    if kernel.ranges:
        return kernel, {**found[0].as_dict(), **kernel.ranges}
    return kernel, found[0] if len(found) == 1 else found


def workloads_of(workload: Dims | RangeDims | Sequence[Dims]) -> tuple[Workload, ...]:
    """The workloads of the argument; raises `TunerError` for an empty sequence and other types."""
    listed = [workload] if isinstance(workload, Workload | Mapping | str) else list(workload)
    hint = 'pass a mapping of dims, such as {"n": 1024}, or a list of them'
    if not listed:
        raise TunerError("there is no workload to tune", hint)
    for each in listed:
        if not isinstance(each, Workload | Mapping):
            raise TunerError(f"{each!r} is no workload", hint)
    found = tuple(
        each if isinstance(each, Workload) else Workload.from_mapping(each)  # type: ignore[arg-type]
        for each in listed
    )
    if len(found) > 1 and any(map(ranges_of, found)):
        raise TunerError("a range cannot be tuned in a list of workloads", "call tune for each")
    return found


def ranges_of(workload: Workload) -> dict[str, Range]:
    """The dims of a workload that are ranges."""
    dims: Iterable[tuple[str, object]] = workload.dims
    return {name: value for name, value in dims if isinstance(value, Range)}


@dataclass(frozen=True, slots=True)
class TuneCall:
    """The arguments of one call of `tune`."""

    kernel: str | Kernel
    workloads: tuple[Workload, ...]
    options: CallOptions
    #: When the call began, by `time.monotonic`.
    started_s: float = field(default_factory=time.monotonic, compare=False)

    def run_once(self, database: CallDatabase) -> list[TuneResult] | RangeResult:
        """The results of `run`, of which one rank of a process group makes those of all."""
        ranks = runtime.find_ranks()
        if ranks is None:
            return self.run(database)
        kernel = self.kernel if isinstance(self.kernel, str) else self.kernel.name
        name = f"tune {kernel} {self.workloads}"
        try:
            return ranks.make_once(name, lambda: self.run(database))
        except runtime.Silent:
            raise TunerError(
                f"the rank that tunes {kernel} gives no sign of life",
                "look at its log, or wait longer: TUNER_RANKS_TIMEOUT_S",
            ) from None

    def run(
        self, database: CallDatabase, create_pool: CreatePool = None
    ) -> list[TuneResult] | RangeResult:
        """Tune all workloads as one campaign; one result per workload, in order."""
        if create_pool is not None or self.options.pool != "local":
            return self._run_with_progress(database, create_pool)
        from tuner.campaign import early_start

        self.load_workers()
        try:
            return self._run_with_progress(database, None)
        finally:
            # No pool takes them where an argument is refused, or where every result is known.
            early_start.end()

    def _run_with_progress(
        self, database: CallDatabase, create_pool: CreatePool
    ) -> list[TuneResult] | RangeResult:
        with show_progress(self.options.progress) as show:
            on_progress = _both(show, self.options.on_progress)
            call = replace(self, options=replace(self.options, on_progress=on_progress))
            return call._run(database, create_pool)

    def _run(
        self, database: CallDatabase, create_pool: CreatePool
    ) -> list[TuneResult] | RangeResult:
        from tuner.api.stored_results import failed_result

        kernel = self.reload().kernel
        assert isinstance(kernel, Kernel)
        if ranges_of(self.workloads[0]):
            return self._tune_range(kernel, database, create_pool)
        if len(self.workloads) == 1:
            return self._campaign(kernel, database, create_pool)
        found, errors = self._several(kernel, database, create_pool)
        if not found:
            raise next(iter(errors.values()))
        return [
            found[each]
            if each in found
            else failed_result(kernel.name, each, f"{errors[each].message}")
            for each in self.workloads
        ]

    def _tune_range(
        self, kernel: Kernel, database: CallDatabase, create_pool: CreatePool
    ) -> RangeResult:
        results = self._campaign(kernel, database, create_pool)
        return range_result(database, results[0].run_id or 0, kernel, results)

    def load_workers(self, *, kept: bool = False) -> None:
        """Begin to load the workers' libraries before this process loads its own.

        kept: the workers will serve other kernels, which may need torch for their builds.
        """
        from tuner.campaign import early_start

        if self.options.pool != "local":
            return
        known = self.kernel if isinstance(self.kernel, Kernel) else None
        kinds = registry.kinds_by_name(f"{self.kernel}") if known is None else known.kinds
        target = self.options.target
        spec = self.kernel if isinstance(self.kernel, str) else self.kernel.spec
        free = registry.compiles_without_torch(spec) and not kept
        early_start.begin([(kinds, [target] if target else [])], torch_free=free)

    def reload(self) -> Self:
        """The same call with the kernel as its files are now.

        Raises `KernelError` for a `Kernel` object that is older than its files.
        """
        return replace(self, kernel=source_changes.current(self.kernel))

    def _several(
        self, kernel: Kernel, database: CallDatabase, create_pool: CreatePool
    ) -> tuple[dict[Workload, TuneResult], dict[Workload, TunerError]]:
        """The results of a campaign over all workloads that the declaration accepts.

        A mistake in the declaration may concern one workload and end the campaign. Then the
        workloads that have one are left out.
        """
        _refuse_other_values(self.workloads)
        errors = _find_refused(self.workloads, lambda each: guarded_calls.check(kernel, each))
        kept = [each for each in dict.fromkeys(self.workloads) if each not in errors]
        groups = [[guarded_calls.order_dims(kernel, each) for each in kept]]
        found: dict[Workload, TuneResult] = {}
        while groups:
            group = groups.pop(0)
            if not group:
                continue
            call = replace(self, workloads=tuple(group))
            try:
                results = call._campaign(kernel, database, create_pool)
                found |= zip(group, results, strict=True)
            except _OF_ONE_WORKLOAD as error:
                more = _find_refused(
                    group, lambda each: self._check_declaration(kernel, each, database)
                )
                if more:
                    groups.append([each for each in group if each not in more])
                elif len(group) > 1:  # a mistake that shows on the device only
                    groups += [[each] for each in group]
                else:
                    more = {group[0]: error}
                errors |= more
        return found, errors

    def _check_declaration(
        self, kernel: Kernel, workload: Workload, database: CallDatabase
    ) -> None:
        """Check the declaration for one workload, as a campaign does before it starts workers."""
        from tuner.campaign import pool_spec_of

        settings, options = replace(self, workloads=(workload,))._arguments(kernel, database)
        pool_spec_of(settings, "tune", options=options)

    def _campaign(
        self, kernel: Kernel, database: CallDatabase, create_pool: CreatePool
    ) -> list[TuneResult]:
        from tuner.api.stored_results import stored_results
        from tuner.campaign import run_campaign

        settings, options = self._arguments(kernel, database)
        outcome = run_campaign(
            settings,
            "tune",
            options=options,
            on_progress=self.options.on_progress,
            create_pool=create_pool,
        )
        is_range = bool(ranges_of(self.workloads[0]))
        return stored_results(
            database,
            outcome.run_id,
            None if is_range else self.workloads,
            kernel,
            summary=outcome.summary,
            note=_note(outcome),
            stage_s=self._stages(outcome),
        )

    def _stages(self, outcome: "RunOutcome") -> dict[int, dict[str, float]]:
        """Seconds by task and stage, with those of the whole call before and after."""
        start_s, end_s = outcome.began_s - self.started_s, time.monotonic() - outcome.ended_s
        return {
            task: {"start": start_s, **found, "end": end_s}
            for task, found in outcome.stage_s.items()
        }

    def _arguments(self, kernel: Kernel, database: CallDatabase) -> "tuple[Settings, RunOptions]":
        """The settings and options of the campaign."""
        from tuner.campaign import RunOptions
        from tuner.settings import validate

        settings = validate(self._settings(kernel, database.url), lambda _: "tune()")
        options = RunOptions(
            fresh=self.options.fresh,
            report=False,
            export=False,
            base=Path.cwd(),
            started_s=self.started_s,
        )
        return settings, options

    def _settings(self, kernel: Kernel, url: str) -> dict[str, Any]:
        """The settings of config.yaml with one campaign, `tune`."""
        from tuner.settings.sections import split_limits

        workloads: list[dict[str, Value]] = []
        ranges = ranges_of(self.workloads[0])
        for each in self.workloads:  # perhaps with values that are refused and cannot be hashed
            listed = {name: value for name, value in each.dims if name not in ranges}
            if listed not in workloads:
                workloads.append(listed)
        given = self.options
        target, settings = given.target, given.settings or {}
        numerics = {} if given.numerics == "any" else {"numerics": given.numerics}
        campaign = {
            "tasks": [
                {"kernel": registry.spec_of(kernel), "workloads": workloads, "ranges": ranges}
            ],
            "targets": [target] if target else list(kernel.kinds),
            **split_limits(given.budget),
            "strategy": {"name": given.strategy, "seed": given.seed},
        }
        return {
            **settings,
            "pool": {"kind": given.pool, **settings.get("pool", {})},
            "measure": {**settings.get("measure", {}), **numerics},
            "database": {**settings.get("database", {}), "url": url},
            "campaigns": {"tune": campaign},
        }


def _both(
    first: ProgressCallback | None, second: ProgressCallback | None
) -> ProgressCallback | None:
    if first is None or second is None:
        return first or second

    def call(progress: Progress) -> None:
        first(progress)
        second(progress)

    return call


def _find_refused(
    workloads: Sequence[Workload], check: Callable[[Workload], None]
) -> dict[Workload, TunerError]:
    """The workloads for which a check raises, each with its error."""
    errors: dict[Workload, TunerError] = {}
    for each in workloads:
        try:
            check(each)
        except TunerError as error:
            errors[each] = error
    return errors


def _refuse_other_values(workloads: Sequence[Workload]) -> None:
    """Raise `WorkloadError` for a dim that is neither a number nor text, a boolean or None."""
    for each in workloads:
        for name, value in each.dims:
            if not isinstance(value, bool | int | float | str | None):
                raise WorkloadError(
                    f"{name}={value!r}: expected a number, text, a boolean or None",
                    "see the kernel's workloads with `tuner spaces show`",
                )


def _note(outcome: "RunOutcome") -> str:
    """Why tasks of a run may be without an outcome; empty for a finished run."""
    if outcome.fault is not None:
        return f"{outcome.fault.reason}; {outcome.fault.remedy}"
    return outcome.summary if outcome.status != RunStatus.FINISHED else ""
