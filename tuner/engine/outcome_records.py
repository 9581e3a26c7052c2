"""The stored records of a race and a confirmation: finalists, baselines and the selection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from results_db.stored_records import BaselineRecord, FinalRecord, SelectionRecord, Source
from search_spaces.records import Status, config_key
from tuner.base.log_ratio import EQUAL, Verdict
from tuner.base.statistics import TieSet
from tuner.engine.search import Search
from tuner.engine.trial_table import Trial
from workers.job_records import Failure, Measurement, Mode, Timing


def selection(
    tie: Sequence[Trial],
    winner: Timing,
    outcomes: Mapping[int, Timing | Failure],
    measurement: Measurement,
    others: Sequence[Trial],
    default: Trial | None,
    reason: str,
    final_pairs: int,
) -> SelectionRecord:
    """The confirmed winner, which is the first of `tie`, compared with the default.

    outcomes: what the confirmation measured, by trial number. others: the other finalists, fastest
    first. reason: why it was chosen; of an undecided verdict, the record also says why that is so.
    final_pairs: the protocol's.
    """
    against = outcomes.get(default.number) if default is not None else None
    is_default = default is tie[0]
    timed = winner if is_default else against if isinstance(against, Timing) else None
    ratio = EQUAL if is_default else timed.log_ratio if timed else None
    found = (-ratio).verdict() if ratio else Verdict.UNDECIDED
    if found is Verdict.UNDECIDED and timed and timed.samples_us:
        reason = f"{reason}; {_why_undecided(timed, final_pairs)}"
    return SelectionRecord(
        winner=tie[0].config,
        tie_set=tuple(t.config for t in tie),
        verdict=found,
        reason=reason,
        runner_up=others[0].config if others else None,
        default=default.config if default is not None else None,
        median_us=winner.median_us,
        default_us=timed.median_us if timed else None,
        log_ratio=ratio,
        samples_us=winner.samples_us,
        compiled=measurement.compiled,
        clocks=dict(measurement.clocks),
    )


def comparison(
    given: Sequence[Trial], measurement: Measurement, default: Trial | None, final_pairs: int
) -> SelectionRecord:
    """The first of the given configs that was timed, as the winner, and those that tie with it.

    final_pairs: the protocol's.
    """
    outcomes = dict(zip((each.number for each in given), measurement.outcomes, strict=True))
    timed = {
        number: each
        for number, each in outcomes.items()
        if isinstance(each, Timing) and each.samples_us
    }
    if not timed:
        config, why = given[0].config, "no given config was timed"
        return SelectionRecord(config, (config,), Verdict.UNDECIDED, why)
    winner, *others = (each for each in given if each.number in timed)
    equal = Verdict.SAME, Verdict.UNDECIDED
    ties = [each for each in others if timed[each.number].log_ratio.verdict() in equal]
    return selection(
        [winner, *ties],
        timed[winner.number],
        outcomes,
        measurement,
        others,
        default if default is not None and default.number in outcomes else None,
        "the first of the given configs",
        final_pairs,
    )


def race_records(
    trials: Mapping[str, Trial], measurement: Measurement, result: TieSet
) -> list[FinalRecord]:
    """One record for each finalist of a race. Ratios are against the race's winner."""
    named = list(zip(trials.items(), measurement.outcomes, strict=True))
    longest = max(len(o.samples_us) for _, o in named if isinstance(o, Timing))
    records = []
    for (name, trial), outcome in named:
        record = _make_final_record(Mode.RACE, trial, outcome, measurement)
        if (ratio := result.ratios.get(name)) is not None:
            dropped = len(record.samples_us) < longest
            record = replace(record, log_ratio=ratio, dropped=dropped)
        records.append(record)
    return records


def confirm_records(candidates: Sequence[Trial], measurement: Measurement) -> list[FinalRecord]:
    """One record for each candidate of a confirmation. Ratios are against the winner."""
    return [
        _make_final_record(Mode.CONFIRM, trial, outcome, measurement)
        for trial, outcome in zip(candidates, measurement.outcomes, strict=True)
    ]


def _make_final_record(
    stage: Mode, trial: Trial, outcome: Timing | Failure, measurement: Measurement
) -> FinalRecord:
    if isinstance(outcome, Failure):
        return FinalRecord(stage, trial.config, outcome.status, message=outcome.message)
    if not outcome.samples_us:
        return FinalRecord(stage, trial.config, Status.RUNTIME, message="was not timed")
    return FinalRecord(
        stage=stage,
        config=trial.config,
        median_us=outcome.median_us,
        log_ratio=outcome.log_ratio,
        samples_us=outcome.samples_us,
        method=measurement.method,
        cache=measurement.cache,
    )


def settled_outcome(
    search: Search,
) -> tuple[SelectionRecord, Sequence[BaselineRecord], Sequence[FinalRecord]] | None:
    """The outcome of an earlier task that is valid for this one too, or None.

    It is valid when all results of this search were taken over from earlier runs.
    """
    settled = search.spec.settled
    if settled is None or settled.selection is None:
        return None
    records = [trial.record for trial in search.trials.values()]
    nothing_new = all(record is not None and record.source == Source.REUSED for record in records)
    known = config_key(settled.selection.winner) in search.trials
    if not nothing_new or not known:
        return None
    return settled.selection, settled.baselines, settled.finals


def _why_undecided(default: Timing, final_pairs: int) -> str:
    """How far the default config may be off, and what ended the confirmation.

    Without a time budget, an undecided ratio has a multiple of `final_pairs` passes.
    """
    most = max(abs(default.log_ratio.low), abs(default.log_ratio.high))
    within = f" within {math.expm1(most):.1%}" if math.isfinite(most) else ""
    passes = len(default.samples_us)
    ended = ", which its time budget ended" if passes % final_pairs else ""
    return f"undecided: equal to the default config{within} after {passes} passes{ended}"


def baselines(measurement: Measurement) -> list[BaselineRecord]:
    """One record for each baseline of a confirmation, in the order of their names."""
    records = []
    for name, outcome in sorted(measurement.baselines.items()):
        if isinstance(outcome, Failure):
            records.append(BaselineRecord(name, outcome.status, message=outcome.message))
            continue
        records.append(
            BaselineRecord(
                name,
                Status.CORRECT,
                median_us=outcome.median_us,
                log_ratio=outcome.log_ratio,
                error=outcome.error if outcome.error >= 0 else None,
                samples_us=outcome.samples_us,
            )
        )
    return records
