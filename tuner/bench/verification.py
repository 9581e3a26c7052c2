"""`verify`: check the results of variants without timing them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from results_db.stored_records import describe_state
from search_spaces.bound import BoundSpace
from search_spaces.declaration import guarded_calls
from search_spaces.records import Config, Status, Workload, config_key
from tuner.bench.local_session import LocalSession, ProgressCallback, no_progress
from tuner.bench.named_configs import Variant
from tuner.bench.targets import BenchTarget, group_by_pool
from tuner.settings.sections import Settings
from workers import backend_kinds
from workers.backend_kinds import BackendSpec
from workers.job_records import Artifact, Failure, Mode, Timing
from workers.measured_task import MeasuredTask

#: Draws for each config that is wanted of other workloads.
_DRAWS = 40


@dataclass(frozen=True, slots=True)
class VariantSelection:
    """The variants of one kernel that are to be checked, by workload."""

    target: BenchTarget
    variants: Mapping[Workload, Sequence[Variant]]

    @property
    def count(self) -> int:
        """The number of variants."""
        return sum(map(len, self.variants.values()))


@dataclass(frozen=True, slots=True)
class CheckedVariant:
    """The check of one variant."""

    target: BenchTarget
    #: The config's name on the command line; empty for one that was enumerated or drawn.
    variant: str
    config: Config
    workload: Workload
    status: Status
    message: str = ""
    #: `device` or `interpreter`; empty where the variant was not run.
    checked_by: str = ""
    #: The check size on which the variant was correct as well, if any.
    check_size: Workload | None = None
    #: ||out - reference|| / ||reference||, the largest over all seeds and sizes.
    error: float | None = None

    @property
    def state(self) -> str:
        """Its status, or `NOT_CHECKED` where the variant was not run."""
        return describe_state(self.status, self.checked_by, None)


def space_variants(
    target: BenchTarget, workload: Workload, count: int | None = None, seed: int = 0
) -> tuple[Variant, ...]:
    """All configs of the space, or `count` of them drawn at random."""
    space = target.space(workload)
    space.require_feasible()
    if count is None:
        return tuple(Variant("", config) for config in space.enumerate())
    return tuple(Variant("", config) for config in space.sample(random.Random(seed), count))


def elsewhere_variants(
    target: BenchTarget,
    workload: Workload,
    count: int,
    seed: int = 0,
    spaces: dict[Workload, BoundSpace] | None = None,
) -> tuple[Variant, ...]:
    """Up to `count` configs that a table may give the workload though a search would not try them.

    They are drawn from the spaces of the kernel's other workloads whose dims differ in sizes alone,
    and are valid on the workload and its check size, but not points of its space. spaces: those of
    the listed workloads, kept between calls, since a draw may enumerate one.
    """
    rng = random.Random(seed)
    others = [item for item in guarded_calls.workloads(target.kernel) if _is_near(item, workload)]
    size = target.check_size(workload)
    here = [target.space(item) for item in (workload, size) if item is not None]
    sources = {} if spaces is None else spaces
    found: dict[str, Variant] = {}
    for other in rng.choices(others, k=_DRAWS * count) if others else ():
        if other not in sources:
            sources[other] = target.space(other)
        for config in sources[other].sample(rng):
            valid = all(space.why_invalid(config) is None for space in here)
            if valid and not here[0].feasible(config):
                found[config_key(config)] = Variant(f"of {other.key}", config)
        if len(found) == count:
            break
    return tuple(found.values())


def _is_near(other: Workload, workload: Workload) -> bool:
    """Whether two workloads differ, and in dims alone that are integers in both."""
    if other == workload or set(other) != set(workload):
        return False
    differing = [name for name in workload if other[name] != workload[name]]
    return all(type(item[name]) is int for name in differing for item in (other, workload))


def verify(
    settings: Settings,
    selections: Sequence[VariantSelection],
    *,
    on_progress: ProgressCallback = no_progress,
) -> Iterator[CheckedVariant]:
    """Build the variants of each workload and check their results, also on the check size.

    Where this machine has no such device, variants are compiled for it and run by Triton's
    interpreter, on the check size alone. Kernels with the same kind of runner share a pool. Yields
    the checks of a workload in the order in which builds end. A wrong variant is a value, not an
    exception.
    """
    total = sum(selection.count for selection in selections)
    done = 0
    for (runner, paths), shared in group_by_pool(selections, attrgetter("target")).items():
        with LocalSession(settings, runner, paths, on_progress) as session:
            for target, workload, variants in _tasks(shared):
                for checked in check_variants(settings, target, session, workload, variants):
                    done += 1
                    on_progress("verifying", done, total)
                    yield checked


def check_variants(
    settings: Settings,
    target: BenchTarget,
    session: LocalSession,
    workload: Workload,
    variants: Sequence[Variant],
) -> Iterator[CheckedVariant]:
    """`verify` for variants of one workload, in a session that others share."""
    return _Verifier(settings, target, session, workload).all(variants)


def _tasks(
    selections: Iterable[VariantSelection],
) -> Iterator[tuple[BenchTarget, Workload, Sequence[Variant]]]:
    for selection in selections:
        for workload, variants in selection.variants.items():
            yield selection.target, workload, variants


def _passed(checked: CheckedVariant) -> bool:
    return checked.status is Status.CORRECT


@dataclass(frozen=True, slots=True)
class _Verifier:
    """Checks variants of one workload."""

    settings: Settings
    target: BenchTarget
    session: LocalSession
    workload: Workload

    @property
    def backend(self) -> BackendSpec:
        """The kind of the runner."""
        return backend_kinds.spec(self.target.runner)

    def all(self, variants: Sequence[Variant]) -> Iterator[CheckedVariant]:
        """Check the variants on the workload, then those that pass on the check size."""
        size = self.target.check_size(self.workload)
        # Some runners verify the check size in the same job.
        separate = size is not None and not self.backend.checks_size
        passed: list[CheckedVariant] = []
        for _, checked in self._round(variants, self.workload):
            if separate and _passed(checked):
                passed.append(checked)
            else:
                included = checked.checked_by and _passed(checked)
                yield replace(checked, check_size=size if included else None)
        if size is not None and passed:
            yield from self._on_check_size(passed, size)

    def _on_check_size(
        self, passed: Sequence[CheckedVariant], size: Workload
    ) -> Iterator[CheckedVariant]:
        """Check variants again that passed; those invalid at the check size stay as they are."""
        space = self.target.space(size)
        by_config = {id(item.config): item for item in passed}
        again = [
            Variant(item.variant, item.config)
            for item in passed
            if space.why_invalid(item.config) is None
        ]
        for variant, second in self._round(again, size):
            first = by_config.pop(id(variant.config))
            errors = [error for error in (first.error, second.error) if error is not None]
            yield replace(
                second,
                workload=self.workload,
                check_size=size,
                error=max(errors, default=None),
                message=f"at {size.key}: {second.message}" if second.message else "",
            )
        yield from by_config.values()

    def _round(
        self, variants: Sequence[Variant], workload: Workload
    ) -> Iterator[tuple[Variant, CheckedVariant]]:
        by_id = {f"{at}": variant for at, variant in enumerate(variants)}
        task = self.target.measured_task(self.settings, self.session, workload)
        jobs = (task.make_build_job(job_id, v.config) for job_id, v in by_id.items())
        for job, built in self.session.build(jobs):
            variant = by_id[job.job_id]
            yield variant, self._check(variant, task, job.job_id, built)

    def _check(
        self, variant: Variant, task: MeasuredTask, job_id: str, built: Artifact | Failure
    ) -> CheckedVariant:
        checked = CheckedVariant(
            self.target, variant.name, variant.config, task.workload, Status.CORRECT
        )
        if isinstance(built, Failure):
            return replace(checked, status=built.status, message=built.message)
        job = task.make_measure_job(f"verify {job_id}", Mode.VERIFY, (built,))
        result = self.session.measure(job)
        by = "device" if self.backend.timed else self.backend.kind
        outcome = result if isinstance(result, Failure) else result.outcomes[0]
        if isinstance(outcome, Timing):
            error = outcome.error if outcome.error >= 0 else None
            unchecked = not self.backend.timed and error is None
            return replace(
                checked, checked_by="" if unchecked else by, error=error, message=outcome.note
            )
        return replace(checked, status=outcome.status, message=outcome.message, checked_by=by)
