"""One task's search: what is known of its configs, their ranking, and what is asked next.

The search holds state only. The engine calls it in the order of events.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from results_db.stored_records import TrialRecord
from search_spaces.records import Config, Status, config_key
from tuner.engine import trial_records
from tuner.engine.asker import Asker
from tuner.engine.ranking import Ranking
from tuner.engine.task_spec import Aim, TaskSpec
from tuner.engine.trial_table import Trial, TrialState, TrialTable
from tuner.engine.warm_start import nearest_winners

#: Local memory per thread above which a variant is measured after all others.
HEAVY_SPILL_BYTES = 256
#: How many of the best trials are built at the check size before the winner is known.
_EARLY_CHECKS = 3
#: Half of the 95 % interval of a difference of two normal values, over the deviation that a share
#: `_SHARE` of single ones does not exceed.
_SHARE, _DIFFERENCE = 0.8, 1.96 * math.sqrt(2) / 1.2816
#: Samples of one trial whose deviations count, and all from which the noise of a search is known.
_FEWEST_BESIDE, _FEWEST_SAMPLES = 3, 6


class Search:
    """The parts of a search, which results reach together."""

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        #: A config whose loss is wanted: it takes part in the race wherever it ranks.
        self.served: Config | None = None
        self.trials = TrialTable()
        self.ranking = Ranking(spec)
        self.asker = Asker(spec, self.trials, self.ranking)
        self._known = {config_key(r.config): r for r in spec.known if spec.may_reuse(r)}
        self._noise_of, self._noise = 0, 0.0
        for record in spec.finished:
            self._learn(self.trials.restore(self._refuse_other_bits(record)))

    def finish(self, trial: Trial, record: TrialRecord) -> None:
        """Take the result of a trial: rank it and pass it to the strategy."""
        self.trials.finish(trial, record)
        self._learn(trial)

    def _learn(self, trial: Trial) -> None:
        unneeded = self.ranking.add(trial)
        if unneeded is not None:
            self.trials.release(unneeded)
        self.asker.learn(trial)

    def drop_incumbent(self) -> None:
        """Rank the incumbent no more: it cannot be built or measured."""
        if self.incumbent is not None:
            self.trials.forget_time(self.incumbent)
        self.ranking.drop_incumbent()

    def known_result(self, trial: Trial) -> TrialRecord | None:
        """The result of an earlier run for this config, as a record of this trial."""
        known = self._known.get(trial.key)
        if known is None or (known.must_spill and self.spec.was_asked_for(trial.strategy)):
            return None
        return self._refuse_other_bits(trial_records.of_known(self.spec, trial, known))

    def _refuse_other_bits(self, record: TrialRecord) -> TrialRecord:
        """A result as the gate would give it, now that the bits of rows are chosen."""
        rows, bits = self.spec.rows, record.row_bits
        refused = "" if rows is None or bits is None else rows.why_refused(bits)
        if not refused:
            return record
        return replace(record, status=Status.CORRECTNESS, message=refused, median_us=None)

    def kept_time(self, trial: Trial) -> TrialRecord | None:
        """The time another revision has of this trial's binary. The trial is only verified then."""
        if trial.artifact is None or self.spec.compile_only:
            return None
        return self.spec.timed.get(trial.artifact.binary_hash)

    def noise(self) -> float:
        """By how much two times of one config differ, ln(ratio), in 95 of 100 passes.

        Incumbents are timed again beside every candidate, and the first trial alone: of each of
        these, the deviations of ln(time) from their median, all together by the deviation that four
        of five do not exceed. 0 where there are too few. It is read again when a tenth more trials
        are known.
        """
        count = len(self.trials)
        if count >= 1.1 * self._noise_of:
            self._noise_of, self._noise = count, _measure_noise(self.trials.values())
        return self._noise

    @property
    def incumbent(self) -> Trial | None:
        """The fastest correct trial so far."""
        return self.ranking.incumbent

    # -- what to measure and to check next -----------------------------------------------------
    def order_ready(self) -> list[Trial]:
        """The trials to measure next, in the order asked.

        Those wait whose jobs were lost, and those that spill heavily.

        Spilling a little sometimes pays. On an H200 144 of 968 matmul configs spill, all of them
        512 bytes per thread or more; the best of these takes 3.6 times the incumbent's time.
        """

        def rank(trial: Trial) -> tuple[int, bool, int]:
            spilled = trial.artifact.facts.spill_bytes if trial.artifact is not None else 0
            return trial.attempt, spilled > HEAVY_SPILL_BYTES, trial.number

        return sorted(self.trials.in_state(TrialState.READY), key=rank)

    def to_rebuild(self) -> list[Trial]:
        """The incumbent, if screenings wait for its artifact, which a resumed run has not."""
        best, waiting = self.incumbent, self.trials.count(TrialState.READY)
        needed = waiting and best is not None and best.artifact is None
        return [best] if best and needed and not self.spec.compile_only else []

    def without_check(self, trials: Sequence[Trial]) -> list[Trial]:
        """The first of these trials that still have to be built at the check size."""
        first = trials[:_EARLY_CHECKS] if self.spec.check_size is not None else []
        return [trial for trial in first if trial.check_artifact is None]

    def list_given(self) -> list[Trial]:
        """The given configs that a device can have now: one to verify, or all to compare them."""
        ready = sorted(self.trials.in_state(TrialState.READY), key=lambda each: each.number)
        checked = [trial for trial in ready if self.is_check_ready(trial)]
        if self.spec.aim is Aim.VERIFY:
            return checked[:1]
        every = len(self.trials) == len(self.spec.given)
        return checked if every and len(checked) == self.trials.open else []

    def is_check_ready(self, trial: Trial) -> bool:
        """Whether a given config is built at the check size as far as the aim of the task needs it:
        of a comparison the first config, of a verification each that is valid there."""
        spec = self.spec
        needed = spec.check_size is not None and (
            trial.number == 0 if spec.aim is Aim.COMPARE else trial.key not in spec.unchecked
        )
        return not needed or trial.check_artifact is not None

    def checks_to_build(self) -> list[Trial]:
        """Trials to build at the check size: while the last results are awaited, or as given."""
        if self.spec.aim is not Aim.SEARCH:
            waiting = self.trials.in_state(TrialState.READY)
            return [trial for trial in waiting if not self.is_check_ready(trial)]
        awaiting = self.asker.waiting_for_results and self.trials.open
        return self.without_check(self.ranking.trials()) if awaiting else []


def winners_near(opening: TaskSpec, searches: Iterable[Search]) -> list[Config]:
    """Incumbents of finished searches of the same kernel and device, nearest workload first.

    Those of sizes that were held out do not count.
    """
    winners = [
        (search.spec.workload, search.incumbent.config)
        for search in sorted(searches, key=lambda search: search.spec.task_id)
        if opening.same_kernel_and_device(search.spec)
        and not (search.spec.place and search.spec.place.held_out)
        and search.asker.exhausted
        and search.incumbent is not None
    ]
    return nearest_winners(opening.workload, winners, opening.space)


def _measure_noise(trials: Iterable[Trial]) -> float:
    records = [trial.record for trial in trials if trial.record is not None]
    times = [record.incumbent_samples_us or record.samples_us for record in records]
    logs = [[math.log(us) for us in each] for each in times if len(each) >= _FEWEST_BESIDE]
    off = sorted(abs(one - median(each)) for each in logs for one in each)
    return _DIFFERENCE * off[int(_SHARE * len(off))] if len(off) >= _FEWEST_SAMPLES else 0.0
