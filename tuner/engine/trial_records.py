"""The `TrialRecord` of a trial, made from the answers of workers. No other module makes one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from results_db.stored_records import Source, TrialRecord
from search_spaces.records import Status
from tuner.engine.task_spec import Aim, TaskSpec
from tuner.engine.trial_table import Trial
from workers.job_records import Artifact, Failure, Measurement, StaticFacts, Timing

#: Fields of a build, of a time, and of the checks of bits.
_BUILT = ("facts", "binary_hash", "build_s")
_TIMED = ("method", "cache", "incumbent", "median_us", "log_ratio")
_CHECKED = ("deterministic", "row_bits")


def of_failed_build(spec: TaskSpec, trial: Trial, failure: Failure) -> TrialRecord:
    """A variant that could not be built."""
    return _record(
        spec,
        trial,
        failure.status,
        source=_source(spec),
        **_take(failure, "message", "detail", *_BUILT),
    )


def of_build(spec: TaskSpec, trial: Trial, artifact: Artifact) -> TrialRecord:
    """A variant that was only built: there is neither a device nor an interpreter to run it."""
    return _record(spec, trial, Status.CORRECT, source=Source.BUILT, **_take(artifact, *_BUILT))


def of_duplicate_binary(
    spec: TaskSpec, trial: Trial, artifact: Artifact, first: TrialRecord
) -> TrialRecord:
    """A variant with the binary of another trial. It takes that trial's result."""
    return _record(
        spec,
        trial,
        first.status,
        source=Source.BINARY,
        copied_from=first.attempt_id,
        **_take(first, "message", "detail", *_TIMED, *_CHECKED, "error", "verified_by"),
        **_take(artifact, *_BUILT),
    )


def of_known(spec: TaskSpec, trial: Trial, known: TrialRecord) -> TrialRecord:
    """The result that an earlier run has for this config. It costs this run nothing."""
    return replace(
        known,
        attempt_id=f"{spec.task_id}:{trial.number}:reused",
        number=trial.number,
        source=Source.REUSED,
        copied_from=known.attempt_id,
        strategy=trial.strategy,
        build_s=0.0,
        device_s=0.0,
        timing_s=0.0,
    )


def of_failed_job(spec: TaskSpec, trial: Trial, worker: str, failure: Failure) -> TrialRecord:
    """A variant alone in a job that failed as a whole: the device process crashed or hung."""
    return _record(
        spec,
        trial,
        failure.status,
        source=_source(spec),
        worker=worker,
        **_take(failure, "message", "detail"),
        **_take(trial.artifact, *_BUILT),
    )


def of_measurement(
    spec: TaskSpec,
    trial: Trial,
    worker: str,
    measurement: Measurement,
    *,
    index: int = 0,
    incumbent: Trial | None = None,
) -> TrialRecord:
    """A candidate's outcome with its share of the device time.

    index: the candidate's place in the measurement. incumbent: what it was compared with; its known
    time calibrates the candidate's.
    """
    outcome = measurement.outcomes[index]
    candidates = len(measurement.outcomes) - (incumbent is not None) or 1
    common: dict[str, Any] = {
        "source": _source(spec),
        "worker": worker,
        "method": measurement.method,
        "cache": measurement.cache,
        "compiled": measurement.compiled if index == 0 else 0,
        "device_s": measurement.device_s / candidates,
        "timing_s": measurement.timing_s / candidates,
        "clocks": dict(measurement.clocks),
        **_take(trial.artifact, *_BUILT),
    }
    if isinstance(outcome, Failure):
        return _record(spec, trial, outcome.status, **_take(outcome, "message", "detail"), **common)
    verified = measurement.device.kind
    if measurement.method == "interpreter":
        verified = "interpreter" if outcome.error >= 0 else ""
    return _record(
        spec,
        trial,
        Status.CORRECT,
        error=outcome.error if outcome.error >= 0 else None,
        verified_by=verified,
        message=outcome.note,
        **_take(outcome, *_CHECKED, "samples_us"),
        **common,
        **_ratio(incumbent, outcome, measurement),
    )


def of_comparison(
    spec: TaskSpec, trials: Sequence[Trial], worker: str, measurement: Measurement, index: int
) -> TrialRecord:
    """A given config's outcome among the others; its ratio is to the first one that was timed."""
    record = of_measurement(spec, trials[index], worker, measurement, index=index)
    outcome = measurement.outcomes[index]
    if not isinstance(outcome, Timing) or not outcome.samples_us:
        return record
    timed = (
        trial
        for trial, each in zip(trials, measurement.outcomes, strict=True)
        if isinstance(each, Timing) and each.samples_us
    )
    return replace(record, incumbent=next(timed).key, log_ratio=outcome.log_ratio)


def was_reached(spec: TaskSpec, outcome: Timing | Failure, kept: TrialRecord | None) -> bool:
    """Whether a device measured this candidate before the job ended early.

    kept: the candidate's known time, with which it is only verified.
    """
    if isinstance(outcome, Failure) or spec.compile_only or spec.aim is Aim.VERIFY:
        return True
    return outcome.error >= 0 if kept is not None else bool(outcome.samples_us)


def with_time(record: TrialRecord, kept: TrialRecord | None) -> TrialRecord:
    """A verified trial with the time that an earlier run measured for the same binary, if any."""
    if kept is None or record.status is not Status.CORRECT:
        return record
    return replace(
        record,
        source=Source.VERIFIED,
        copied_from=kept.attempt_id,
        **_take(kept, *_TIMED, "samples_us", "incumbent_samples_us"),
    )


def _ratio(incumbent: Trial | None, outcome: Timing, measurement: Measurement) -> dict[str, Any]:
    """The time in us: the incumbent's time times the paired ratio, without incumbent the median."""
    if not outcome.samples_us:
        return {}
    paired = measurement.outcomes[-1]
    if incumbent is None or incumbent.score is None or not isinstance(paired, Timing):
        return {"median_us": outcome.median_us}
    return {
        "median_us": math.exp(incumbent.score + outcome.log_ratio.value),
        "incumbent": incumbent.key,
        "log_ratio": outcome.log_ratio,
        "incumbent_samples_us": paired.samples_us[: len(outcome.samples_us)],
    }


def _take(given: object, *names: str) -> dict[str, Any]:
    """Fields of a trial, which an answer has under the same names; none where there is none."""
    return {} if given is None else {name: getattr(given, name) for name in names}


def _source(spec: TaskSpec) -> Source:
    return Source.BUILT if spec.compile_only else Source.MEASURED


def _record(
    spec: TaskSpec,
    trial: Trial,
    status: Status,
    *,
    facts: StaticFacts | None = None,
    **fields: Any,
) -> TrialRecord:
    if facts is not None:
        fields |= _take(facts, "registers", "spill_bytes", "shared_bytes", "binary_bytes")
    return TrialRecord(
        attempt_id=f"{spec.task_id}:{trial.number}:{trial.attempt}",
        number=trial.number,
        config=trial.config,
        status=status,
        strategy=trial.strategy,
        **fields,
    )
