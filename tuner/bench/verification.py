"""`verify`: whether variants are right, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces.records import Config, Status, Workload
from tuner.bench.named_configs import Variant
from tuner.bench.session import LocalSession, Tell, silent
from tuner.bench.target import BenchTarget
from tuner.campaign import environment
from tuner.settings.models import Settings
from workers.records import Artifact, BuildJob, Failure, MeasureJob, Mode, Timing


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of one variant. checked_by: `device`, `interpreter`, or nothing where it did
    not get that far. error: ||out - ref|| / ||ref||, the worst; odd: the size it was checked on
    besides."""

    variant: str
    config: Config
    workload: Workload
    status: Status
    message: str = ""
    checked_by: str = ""
    odd: Workload | None = None
    error: float | None = None


def points(
    subject: BenchTarget, workload: Workload, count: int | None = None, seed: int = 0
) -> tuple[Variant, ...]:
    """Every config of the space, or `count` of them drawn at random."""
    space = subject.space(workload)
    space.require_feasible()
    if count is None:
        return tuple(Variant("", config) for config in space.enumerate())
    return tuple(Variant("", config) for config in space.sample(random.Random(seed), count))


def verify(
    settings: Settings,
    subject: BenchTarget,
    chosen: Mapping[Workload, Sequence[Variant]],
    *,
    tell: Tell = silent,
) -> Iterator[Checked]:
    """Build the variants of each workload and check their results, one by one, odd size included.

    Where no such device is here they are compiled for it and run by Triton's interpreter, on the
    odd size alone. Comes in the order the builds end; a variant that is wrong is a value.
    """
    total = sum(map(len, chosen.values()))
    done = 0
    with LocalSession(settings, subject, tell) as bed:
        for workload, variants in chosen.items():
            check = _Check(settings, subject, bed, workload)
            for checked in check.all(variants):
                done += 1
                tell("verifying", done, total)
                yield checked


def _passed(checked: Checked) -> bool:
    return checked.status is Status.CORRECT


@dataclass(frozen=True, slots=True)
class _Check:
    settings: Settings
    subject: BenchTarget
    bed: LocalSession
    workload: Workload

    def all(self, variants: Sequence[Variant]) -> Iterator[Checked]:
        small = self.subject.odd(self.workload)
        # A GPU's runner and the interpreter look at the odd size themselves.
        apart = small is not None and self.subject.runner not in ("cuda", "hip", "interpreter")
        right: list[Checked] = []
        for _, checked in self._round(variants, self.workload):
            if apart and _passed(checked):
                right.append(checked)
            else:
                yield replace(
                    checked, odd=small if checked.checked_by and _passed(checked) else None
                )
        if small is None or not right:
            return
        space = self.subject.space(small)
        again = {id(item.config): item for item in right}
        fit = [Variant(item.variant, item.config) for item in right if space.feasible(item.config)]
        for variant, odd in self._round(fit, small):
            checked = again.pop(id(variant.config))
            errors = [error for error in (checked.error, odd.error) if error is not None]
            message = f"at {small.key}: {odd.message}" if odd.message else ""
            error = max(errors, default=None)
            yield replace(odd, workload=self.workload, odd=small, error=error, message=message)
        yield from again.values()

    def _round(
        self, variants: Sequence[Variant], workload: Workload
    ) -> Iterator[tuple[Variant, Checked]]:
        by_id = {f"{at}": variant for at, variant in enumerate(variants)}
        jobs = (self._build_job(job_id, v, workload) for job_id, v in by_id.items())
        for job, built in self.bed.built(jobs):
            variant = by_id[job.job_id]
            yield variant, self._checked(variant, workload, job.job_id, built)

    def _build_job(self, job_id: str, variant: Variant, workload: Workload) -> BuildJob:
        subject = self.subject
        here = subject.runner not in ("simulated", "interpreter")
        device = self.bed.worker.device if here else subject.device
        timeout_s = self.settings.pool.build_timeout
        return BuildJob(job_id, subject.ref, workload, variant.config, device, timeout_s)

    def _checked(
        self, variant: Variant, workload: Workload, job_id: str, built: Artifact | Failure
    ) -> Checked:
        found = Checked(variant.name, variant.config, workload, Status.CORRECT)
        if isinstance(built, Failure):
            return replace(found, status=built.status, message=built.message)
        limit_s = self.settings.pool.measure_timeout
        job = MeasureJob(
            job_id=f"verify {job_id}",
            kernel=self.subject.ref,
            workload=workload,
            candidates=(built,),
            mode=Mode.VERIFY,
            protocol=environment.protocol(self.settings.measure),
            calibration=self.bed.worker.calibration,
            timeout_s=limit_s,
            candidate_timeout_s=limit_s,
        )
        result = self.bed.measured(job)
        by = "interpreter" if self.subject.runner == "interpreter" else "device"
        outcome = result if isinstance(result, Failure) else result.outcomes[0]
        if isinstance(outcome, Timing):
            error = outcome.error if outcome.error >= 0 else None
            unchecked = by == "interpreter" and error is None
            return replace(
                found, checked_by="" if unchecked else by, error=error, message=outcome.note
            )
        return replace(found, status=outcome.status, message=outcome.message, checked_by=by)
