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


def of_failed_build(spec: TaskSpec, trial: Trial, failure: Failure) -> TrialRecord:
    """A variant that could not be built."""
    return _record(
        spec,
        trial,
        failure.status,
        source=_source(spec),
        message=failure.message,
        detail=failure.detail,
        build_s=failure.build_s,
        facts=failure.facts,
        binary_hash=failure.binary_hash,
    )


def of_build(spec: TaskSpec, trial: Trial, artifact: Artifact) -> TrialRecord:
    """A variant that was only built: there is neither a device nor an interpreter to run it."""
    return _record(spec, trial, Status.CORRECT, source=Source.BUILT, **_make_build_fields(artifact))


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
        message=first.message,
        detail=first.detail,
        **_time_of(first),
        error=first.error,
        verified_by=first.verified_by,
        deterministic=first.deterministic,
        row_bits=first.row_bits,
        **_make_build_fields(artifact),
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
    built = _make_build_fields(trial.artifact) if trial.artifact else {}
    return _record(
        spec,
        trial,
        failure.status,
        source=_source(spec),
        worker=worker,
        message=failure.message,
        detail=failure.detail,
        **built,
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
    built = _make_build_fields(trial.artifact) if trial.artifact else {}
    common: dict[str, Any] = {
        "source": _source(spec),
        "worker": worker,
        "method": measurement.method,
        "cache": measurement.cache,
        "compiled": measurement.compiled if index == 0 else 0,
        "device_s": measurement.device_s / candidates,
        "timing_s": measurement.timing_s / candidates,
        "clocks": dict(measurement.clocks),
        **built,
    }
    if isinstance(outcome, Failure):
        return _record(
            spec, trial, outcome.status, message=outcome.message, detail=outcome.detail, **common
        )
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
        deterministic=outcome.deterministic,
        row_bits=outcome.row_bits,
        samples_us=outcome.samples_us,
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
        **_time_of(kept),
        samples_us=kept.samples_us,
        incumbent_samples_us=kept.incumbent_samples_us,
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


def _time_of(record: TrialRecord) -> dict[str, Any]:
    names = ("method", "cache", "incumbent", "median_us", "log_ratio")
    return {name: getattr(record, name) for name in names}


def _source(spec: TaskSpec) -> Source:
    return Source.BUILT if spec.compile_only else Source.MEASURED


def _make_build_fields(artifact: Artifact) -> dict[str, Any]:
    return {
        "facts": artifact.facts,
        "binary_hash": artifact.binary_hash,
        "build_s": artifact.build_s,
    }


def _record(
    spec: TaskSpec,
    trial: Trial,
    status: Status,
    *,
    facts: StaticFacts | None = None,
    **fields: Any,
) -> TrialRecord:
    if facts is not None:
        fields |= {
            "registers": facts.registers,
            "spill_bytes": facts.spill_bytes,
            "shared_bytes": facts.shared_bytes,
            "binary_bytes": facts.binary_bytes,
        }
    return TrialRecord(
        attempt_id=f"{spec.task_id}:{trial.number}:{trial.attempt}",
        number=trial.number,
        config=trial.config,
        status=status,
        strategy=trial.strategy,
        **fields,
    )
