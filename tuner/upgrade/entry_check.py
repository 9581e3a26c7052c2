"""Check entries of tables: build the configs that matter, measure them where a binary changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces.declaration import guarded_calls
from search_spaces.errors import TunerError
from search_spaces.records import Config, Device, Workload, config_key
from tuner.base.statistics import median_interval
from tuner.compare import (
    BenchTarget,
    Evaluated,
    GivenTask,
    Variant,
    default_of,
    evaluate,
    make_pass,
)
from tuner.engine import Aim
from tuner.progress import ProgressCallback
from tuner.runtime import Entry
from tuner.settings.sections import Settings
from tuner.upgrade.entry_outcome import EntryOutcome, Result, judge
from tuner.upgrade.evidence import Evidence, evidence_of
from tuner.upgrade.tables_here import TableHere
from workers import backend_kinds
from workers.job_records import Artifact

#: The number of further configs that are checked, after the winner and the default.
RUNNERS_UP = 3
#: Relative difference between times of different passes from which they count as different.
MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How entries are checked."""

    runners_up: int = RUNNERS_UP
    margin: float = MARGIN
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
        judgement = judge(rows, self.entry.median_us, self.options.margin)
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
