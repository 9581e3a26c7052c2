"""`verify`: check the results of variants without timing them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from results_db.stored_records import describe_state
from search_spaces.bound import BoundSpace
from search_spaces.declaration import guarded_calls
from search_spaces.records import Config, Status, Workload, config_key
from tuner.compare.given_tasks import Evaluated, GivenTask, evaluate
from tuner.compare.named_configs import Variant
from tuner.compare.targets import BenchTarget
from tuner.engine import Aim
from tuner.progress import ProgressCallback
from tuner.settings.sections import Settings
from workers import backend_kinds

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
    on_progress: ProgressCallback | None = None,
) -> list[CheckedVariant]:
    """Build the variants of each workload and check their results, also on the check size.

    Where this machine has no such device, variants are compiled for it and run by Triton's
    interpreter, on the check size alone. The checks come in the order of the selections. A wrong
    variant is a value, not an exception.
    """
    given = [
        GivenTask(selection.target, workload, variants)
        for selection in selections
        for workload, variants in selection.variants.items()
        if variants
    ]
    found = evaluate(settings, given, Aim.VERIFY, on_progress=on_progress)
    return [checked for each in found for checked in _list_checks(each)]


def _list_checks(found: Evaluated) -> Iterator[CheckedVariant]:
    given, target = found.given, found.given.target
    backend = backend_kinds.spec(target.runner)
    size = target.check_size(given.workload)
    small = None if size is None or backend.checks_size else target.space(size)
    for variant in given.variants:
        record = found.record_of(variant)
        correct = record.status is Status.CORRECT
        ran = record.verified_by or (record.status is Status.CORRECTNESS)
        valid = small is None or small.why_invalid(variant.config) is None
        yield CheckedVariant(
            target,
            variant.name,
            variant.config,
            given.workload,
            record.status,
            message=record.message,
            checked_by=("device" if backend.timed else backend.kind) if ran else "",
            check_size=size if correct and ran and valid else None,
            error=record.error,
        )
