"""Check entries of tables: build the configs that matter, measure them where a binary changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from search_spaces.declaration import guarded_calls
from search_spaces.errors import TunerError
from search_spaces.records import Config, Device, Status, Toolchain, Workload, config_key
from tuner.base.log_ratio import Verdict
from tuner.base.statistics import median_interval
from tuner.compare.bench_rows import BenchRow, Pass, make_pass
from tuner.compare.given_tasks import Evaluated, GivenTask, evaluate
from tuner.compare.named_configs import Variant, default_of
from tuner.compare.tables_here import Evidence, TableHere, evidence_of
from tuner.compare.targets import BenchTarget
from tuner.engine import Aim
from tuner.progress import ProgressCallback
from tuner.runtime import Entry
from tuner.settings.sections import Settings
from workers import backend_kinds
from workers.job_records import Artifact

# -- what became of the winner of an entry, from one interleaved pass with its rivals --------------
_NOT_BUILT = (Status.CONSTRAINTS, Status.COMPILE)


class Result(StrEnum):
    """What became of a winner."""

    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    FLIPPED = "flipped"
    NO_LONGER_BUILDS = "no longer builds"
    WRONG = "wrong"
    FAILS = "fails"
    #: The kernel no longer takes the workload, or the pass failed as a whole.
    NOT_CHECKED = "not checked"
    #: On request, nothing was measured: a binary has changed, or the stored ones are unknown.
    CHANGED = "changed"
    BUILDS = "builds"


#: Results after which another config must be found.
LOST = (Result.FLIPPED, Result.NO_LONGER_BUILDS, Result.WRONG, Result.FAILS)
#: Results that a check exits with 1 for.
FINDINGS = (*LOST, Result.SLOWER, Result.NOT_CHECKED)


@dataclass(frozen=True, slots=True)
class EntryOutcome:
    """The check of one entry. Times and ratios are None where they are unknown."""

    path: Path
    kernel: str
    workload: Workload
    #: Name of the device.
    device: str
    #: The entry as it is in the table.
    entry: Entry
    result: Result
    note: str = ""
    #: The winner's median time in this check, with its 95 % interval.
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    #: The config that is faster than the winner, or the fastest of those that still work.
    better: Config | None = None
    #: The winner's time over that config's.
    gain: float | None = None
    #: Numbers of configs that were built and measured.
    built: int = 0
    measured: int = 0
    #: Seconds for which the device was occupied.
    device_s: float = 0.0
    #: Trials that the entry's search measured, and the seconds for which they held the device.
    search_trials: int | None = None
    search_device_s: float | None = None
    #: The toolchain of this check; None where nothing was built.
    toolchain: Toolchain | None = None
    #: The pass; None where nothing was built.
    measurement: Pass | None = field(default=None, repr=False)

    @property
    def lost(self) -> bool:
        """Whether another config must be found."""
        return self.result in LOST

    @property
    def finding(self) -> bool:
        """Whether a check of this entry exits with 1."""
        return self.result in FINDINGS

    @property
    def change(self) -> float | None:
        """The winner's time now over its time in the table."""
        stored = self.entry.median_us
        return None if not stored or self.median_us is None else self.median_us / stored


@dataclass(frozen=True, slots=True)
class Judgement:
    """The part of an outcome that a pass decides."""

    result: Result
    note: str = ""
    better: BenchRow | None = None


def judge(rows: Sequence[BenchRow], stored_us: float | None) -> Judgement:
    """What became of the winner, the first row.

    The winner has flipped if another config is faster by the verdict of `tuner.base.statistics`:
    by more than a tie, with an interval that excludes equal times. `faster` and `slower` compare
    the 95 % interval of the winner's median with the stored time, with `MARGIN` on either side,
    because the two were measured at different times.
    """
    winner, rivals = rows[0], rows[1:]
    right = [row for row in rivals if row.status is Status.CORRECT and row.median_us]
    others = "; ".join(
        f"{row.variant}: {row.status}" for row in rivals if row.status is not Status.CORRECT
    )
    if winner.status is not Status.CORRECT or winner.median_us is None:
        fastest = min(right, key=lambda row: row.median_us or 0.0, default=None)
        note = "; ".join(filter(None, [winner.message, others]))
        return Judgement(_fault(winner), note, fastest)
    ahead = [
        (row.log_ratio.value, at, row)
        for at, row in enumerate(right)
        if row.verdict == Verdict.FASTER and row.log_ratio
    ]
    if ahead:
        return Judgement(Result.FLIPPED, others, min(ahead)[-1])
    return Judgement(_against_stored(winner, stored_us), others)


def _fault(winner: BenchRow) -> Result:
    if winner.status in _NOT_BUILT:
        return Result.NO_LONGER_BUILDS
    return Result.WRONG if winner.status is Status.CORRECTNESS else Result.FAILS


def _against_stored(winner: BenchRow, stored_us: float | None) -> Result:
    interval = median_interval(winner.samples_us)
    if not stored_us or interval is None:
        return Result.SAME
    low_us, high_us = interval
    if low_us > stored_us * (1 + MARGIN):
        return Result.SLOWER
    return Result.FASTER if high_us < stored_us * (1 - MARGIN) else Result.SAME


# -- check entries of tables -----------------------------------------------------------------------
#: The number of further configs that are checked, after the winner and the default.
RUNNERS_UP = 3
#: Relative difference between times of different passes from which they count as different.
MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How entries are checked."""

    runners_up: int = RUNNERS_UP
    #: Build only; needs no device.
    build_only: bool = False


def check_entries(
    settings: Settings,
    tables: Sequence[TableHere],
    options: CheckOptions,
    on_progress: ProgressCallback | None,
) -> list[EntryOutcome]:
    """The outcome of every entry, table by table.

    Each entry is a comparison, as in `tuner bench`, of its winner, its runners-up and the default
    config. An entry is built only, and stays as it is, where the database has the binaries of all
    of them, none has changed, and neither device nor driver has.
    """
    checks = []
    for item in tables:
        known = evidence_of(settings.database.url, item.table)
        checks += [
            _EntryCheck(settings, options, item, entry, known.get(at))
            for at, entry in enumerate(item.table.entries)
        ]
    prepared = [check.prepare() for check in checks]
    given = [each for each in prepared if isinstance(each, GivenTask)]
    found = iter(
        evaluate(
            settings,
            given,
            Aim.COMPARE,
            build_only=options.build_only,
            on_progress=on_progress,
        )
    )
    return [
        check.judge(next(found)) if isinstance(each, GivenTask) else each
        for check, each in zip(checks, prepared, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _EntryCheck:
    """The check of one entry."""

    settings: Settings
    options: CheckOptions
    here: TableHere
    entry: Entry
    evidence: Evidence | None

    @property
    def target(self) -> BenchTarget:
        return self.here.target

    @property
    def outcome(self) -> EntryOutcome:
        """The outcome without its result."""
        known = self.evidence
        return EntryOutcome(
            path=self.here.path,
            kernel=self.target.kernel.name,
            workload=Workload.from_mapping(self.entry.key),
            device=self.target.device.name,
            entry=self.entry,
            result=Result.NOT_CHECKED,
            search_trials=known.trials if known else None,
            search_device_s=known.device_s if known else None,
        )

    def prepare(self) -> GivenTask | EntryOutcome:
        """The comparison to make; the outcome where the kernel refuses the entry."""
        outcome = self.outcome
        try:
            guarded_calls.check(self.target.kernel, outcome.workload)
            reason = self.target.space(outcome.workload).why_invalid(self.entry.config)
            variants = self._variants(outcome.workload)
        except TunerError as error:
            return replace(outcome, note=error.message)
        if reason is not None:
            return replace(outcome, result=Result.NO_LONGER_BUILDS, note=f"not valid: {reason}")

        def is_settled(device: Device, built: Sequence[Artifact]) -> bool:
            return len(built) == len(variants) and self._is_unchanged(device, built)

        return GivenTask(self.target, outcome.workload, variants, is_settled=is_settled)

    def judge(self, found: Evaluated) -> EntryOutcome:
        """The outcome, from what became of the comparison."""
        measured = make_pass(self.settings, found)
        built = {key: each.binary_hash for key, each in found.trials.items() if each.binary_hash}
        tools = found.task.key.toolchain if built else None
        outcome = replace(self.outcome, built=len(built), measurement=measured, toolchain=tools)
        rows, timed = measured.rows, any(row.samples_us for row in measured.rows)
        if self.options.build_only and config_key(self.entry.config) in built:
            return self._only_built(outcome, built)
        if not timed and all(row.message == "not timed" for row in rows):
            return replace(outcome, result=Result.SAME, note="its binaries have not changed")
        if not timed and len(built) > 1 and len({row.message for row in rows}) == 1:
            return replace(outcome, note=f"the pass failed as a whole: {rows[0].message}")
        judgement = judge(rows, self.entry.median_us)
        winner, better = rows[0], judgement.better
        faster = better.log_ratio if better else None
        low_us, high_us = median_interval(winner.samples_us) or (None, None)
        return replace(
            outcome,
            result=judgement.result,
            note=judgement.note,
            median_us=winner.median_us,
            low_us=low_us,
            high_us=high_us,
            better=better.config if better else None,
            gain=(-faster).ratio if faster and winner.median_us else None,
            measured=sum(bool(row.samples_us) for row in rows),
            device_s=measured.device_s,
        )

    def _only_built(self, outcome: EntryOutcome, built: Mapping[str, str]) -> EntryOutcome:
        """built: digests of binaries by config key."""
        known = self.evidence.binaries if self.evidence else {}
        if any(known.get(key) not in (None, "", now) for key, now in built.items()):
            return replace(outcome, result=Result.CHANGED, note="a binary has changed")
        missing = any(not known.get(key) for key in built)
        note = "the database does not have all its binaries" if missing else ""
        return replace(outcome, result=Result.BUILDS, note=note)

    def _variants(self, workload: Workload) -> tuple[Variant, ...]:
        """The winner, its runners-up and the default config, without duplicates."""
        space = self.target.space(workload)
        found = {config_key(self.entry.config): Variant("winner", dict(self.entry.config))}
        default = default_of(self.target, workload)
        default_key = config_key(default.config) if default else ""
        listed: tuple[Config, ...] = self.evidence.runners_up if self.evidence else ()
        for config in (*listed, *self.entry.tie_set):
            rivals = len(found)
            known = config_key(config) in (*found, default_key)
            if rivals <= self.options.runners_up and not known and space.feasible(config):
                found[config_key(config)] = Variant(f"runner-up {rivals}", dict(config))
        if default is not None:
            same = found.get(default_key)
            name = "winner, default" if same else "default"
            found[default_key] = Variant(name, default.config)
        return tuple(found.values())

    def _is_unchanged(self, device: Device, built: Sequence[Artifact]) -> bool:
        """Whether all binaries are those of the stored search, and what runs them is the same."""
        known, kernel = self.evidence, self.target.kernel
        if known is None or self.here.table.device.fingerprint != device.fingerprint:
            return False
        if self.here.table.launch_hash != kernel.launch_hash():
            return False
        # Variants for processors call torch's own operators, which no binary of theirs covers.
        calls_torch = not backend_kinds.spec_of_stored(self.here.table.device.kind).accelerator
        was = known.toolchain
        return all(
            known.binaries.get(config_key(each.config)) == each.binary_hash
            and was.driver == each.toolchain.driver
            and not (calls_torch and was.torch != each.toolchain.torch)
            for each in built
        )
