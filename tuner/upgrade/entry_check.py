"""Check entries of tables: build the configs that matter, measure them where a binary changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from search_spaces.declaration import guarded_calls
from search_spaces.errors import FindingError, TunerError
from search_spaces.records import Config, Workload, config_key
from tuner.base.statistics import median_interval
from tuner.bench import (
    BenchTarget,
    LocalSession,
    Pass,
    ProgressCallback,
    SideBySide,
    Variant,
    default_of,
    group_by_pool,
)
from tuner.runtime import Entry
from tuner.settings.sections import Settings
from tuner.upgrade.entry_outcome import EntryOutcome, Result, judge
from tuner.upgrade.evidence import Evidence, evidence_of
from tuner.upgrade.tables_here import TableHere
from workers import backend_kinds
from workers.job_records import Artifact, Failure

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
    on_progress: ProgressCallback,
) -> Iterator[EntryOutcome]:
    """The outcome of every entry, table by table.

    Each entry is one interleaved pass, as in `tuner bench`, of its winner, its runners-up and the
    default config. An entry is built only, and stays as it is, where the database has the binaries
    of all of them, none has changed, and neither device nor driver has.
    """
    done, total = 0, sum(len(item.table.entries) for item in tables)
    for (runner, paths), shared in group_by_pool(tables, attrgetter("target")).items():
        with LocalSession(settings, runner, paths, on_progress) as session:
            for item in shared:
                known = evidence_of(settings.database.url, item.table)
                for at, entry in enumerate(item.table.entries):
                    on_progress(f"checking {item.table.kernel}", done, total)
                    yield _EntryCheck(settings, options, session, item, entry, known.get(at)).run()
                    done += 1


@dataclass(frozen=True, slots=True)
class _EntryCheck:
    """The check of one entry."""

    settings: Settings
    options: CheckOptions
    session: LocalSession
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

    def run(self) -> EntryOutcome:
        outcome = self.outcome
        try:
            guarded_calls.check(self.target.kernel, outcome.workload)
            reason = self.target.space(outcome.workload).why_invalid(self.entry.config)
            variants = self._variants(outcome.workload)
        except TunerError as error:
            return replace(outcome, note=error.message)
        if reason is not None:
            return replace(outcome, result=Result.NO_LONGER_BUILDS, note=f"not valid: {reason}")
        check = SideBySide(self.settings, self.target, self.session, outcome.workload, variants)
        builds = check.build()
        built, unchanged = builds.variants, self._unchanged(builds.variants)
        try:
            only_built = unchanged or self.options.build_only
            measured = check.make_unmeasured(builds) if only_built else check.measure(builds)
        except FindingError as error:
            return replace(outcome, note=error.message, built=len(built))
        outcome = replace(outcome, built=len(built), measurement=measured)
        artifact = next((item for item in built if isinstance(item, Artifact)), None)
        if artifact is not None:
            timed = any(row.samples_us for row in measured.rows)
            tools = measured.toolchain if timed else artifact.toolchain
            outcome = replace(outcome, toolchain=tools)
        if unchanged:
            return replace(outcome, result=Result.SAME, note="its binaries have not changed")
        return self._judge_pass(outcome, measured, built)

    def _judge_pass(
        self, outcome: EntryOutcome, measured: Pass, built: Sequence[Artifact | Failure]
    ) -> EntryOutcome:
        if self.options.build_only and isinstance(built[0], Artifact):
            return self._only_built(outcome, built)
        judgement = judge(measured.rows, self.entry.median_us, self.options.margin)
        winner, better = measured.rows[0], judgement.better
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
            measured=sum(bool(row.samples_us) for row in measured.rows),
            device_s=measured.device_s,
        )

    def _only_built(
        self, outcome: EntryOutcome, built: Sequence[Artifact | Failure]
    ) -> EntryOutcome:
        known = self.evidence.binaries if self.evidence else {}
        pairs = [
            (known.get(config_key(item.config), ""), item.binary_hash)
            for item in built
            if isinstance(item, Artifact)
        ]
        if any(was and was != now for was, now in pairs):
            return replace(outcome, result=Result.CHANGED, note="a binary has changed")
        missing = any(not was for was, _ in pairs)
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

    def _unchanged(self, built: Sequence[Artifact | Failure]) -> bool:
        """Whether all binaries are those of the stored search, and what runs them is the same."""
        known, kernel = self.evidence, self.target.kernel
        device = self.target.device_of(self.session)
        if known is None or self.here.table.device.fingerprint != device.fingerprint:
            return False
        if self.here.table.launch_hash != kernel.launch_hash():
            return False
        for result in built:
            if not isinstance(result, Artifact):
                return False
            if known.binaries.get(config_key(result.config)) != result.binary_hash:
                return False
            was, now = known.toolchain, result.toolchain
            # Variants for processors call torch's own operators, which no binary of theirs covers.
            calls_torch = not backend_kinds.spec_of_stored(self.here.table.device.kind).accelerator
            if was.driver != now.driver or (calls_torch and was.torch != now.torch):
                return False
        return True
