"""From what workers return to what the database keeps: one place that builds `TrialRecord`s."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from results_db.records import TrialRecord
from search_spaces.records import Status, config_key
from tuner.engine.trial import TaskSpec, Trial
from workers.records import Artifact, Failure, Measurement, StaticFacts, Timing


def of_failed_build(spec: TaskSpec, trial: Trial, failure: Failure) -> TrialRecord:
    return _record(
        spec,
        trial,
        failure.status,
        source="built" if spec.compile_only else "measured",
        message=failure.message,
        detail=failure.detail,
        build_s=failure.build_s,
        facts=failure.facts,
        binary_hash=failure.binary_hash,
    )


def of_build(spec: TaskSpec, trial: Trial, artifact: Artifact) -> TrialRecord:
    """A variant that was built and nothing more: no device and no interpreter to run it."""
    return _record(spec, trial, Status.CORRECT, source="built", **_built(artifact))


def of_twin(spec: TaskSpec, trial: Trial, artifact: Artifact, twin: TrialRecord) -> TrialRecord:
    """The result of another trial whose binary is the same machine code."""
    return _record(
        spec,
        trial,
        twin.status,
        source="binary",
        copied_from=twin.attempt_id,
        message=twin.message,
        detail=twin.detail,
        method=twin.method,
        cache=twin.cache,
        incumbent=twin.incumbent,
        median_us=twin.median_us,
        log_ratio=twin.log_ratio,
        log_ratio_low=twin.log_ratio_low,
        log_ratio_high=twin.log_ratio_high,
        error=twin.error,
        verified_by=twin.verified_by,
        deterministic=twin.deterministic,
        **_built(artifact),
    )


def of_failed_job(spec: TaskSpec, trial: Trial, worker: str, failure: Failure) -> TrialRecord:
    """The whole job failed: the device process crashed or hung on this variant."""
    built = _built(trial.artifact) if trial.artifact else {}
    source = "built" if spec.compile_only else "measured"
    return _record(
        spec,
        trial,
        failure.status,
        source=source,
        worker=worker,
        message=failure.message,
        detail=failure.detail,
        **built,
    )


def of_measurement(
    spec: TaskSpec, trial: Trial, worker: str, measurement: Measurement, index: int = 0
) -> TrialRecord:
    """A candidate's outcome, at that place of the measurement, with its share of the device time.

    A time is calibrated by the incumbent it was paired with.
    """
    outcome = measurement.outcomes[index]
    candidates = len(measurement.outcomes) - (trial.screened_against is not None) or 1
    built = _built(trial.artifact) if trial.artifact else {}
    common: dict[str, Any] = {
        "source": "built" if spec.compile_only else "measured",
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
        samples_us=outcome.samples_us,
        **common,
        **_ratio(trial, outcome, measurement),
    )


def was_reached(spec: TaskSpec, outcome: Timing | Failure, kept: TrialRecord | None) -> bool:
    """Whether a device came to a candidate before it was lost. kept: its time, if that is known."""
    if isinstance(outcome, Failure) or spec.compile_only:
        return True
    return outcome.error >= 0 if kept is not None else bool(outcome.samples_us)


def with_time(record: TrialRecord, kept: TrialRecord | None) -> TrialRecord:
    """A verified trial with the time that an earlier run took of the same binary, if it did."""
    if kept is None or record.status is not Status.CORRECT:
        return record
    return replace(
        record,
        source="verified",
        copied_from=kept.attempt_id,
        method=kept.method,
        cache=kept.cache,
        incumbent=kept.incumbent,
        median_us=kept.median_us,
        log_ratio=kept.log_ratio,
        log_ratio_low=kept.log_ratio_low,
        log_ratio_high=kept.log_ratio_high,
        samples_us=kept.samples_us,
        incumbent_samples_us=kept.incumbent_samples_us,
    )


def _ratio(trial: Trial, outcome: Timing, measurement: Measurement) -> dict[str, Any]:
    """median_us: the incumbent's calibrated time times the paired ratio, else the time itself."""
    if not outcome.samples_us:
        return {}
    screened_against, incumbent = trial.screened_against, measurement.outcomes[-1]
    if (
        screened_against is None
        or screened_against.score is None
        or not isinstance(incumbent, Timing)
    ):
        return {"median_us": outcome.median_us}
    return {
        "median_us": math.exp(screened_against.score + outcome.log_ratio),
        "incumbent": config_key(screened_against.config),
        "log_ratio": outcome.log_ratio,
        "log_ratio_low": finite(outcome.log_ratio_low),
        "log_ratio_high": finite(outcome.log_ratio_high),
        "incumbent_samples_us": incumbent.samples_us[: len(outcome.samples_us)],
    }


def finite(value: float) -> float | None:
    """None for an interval's end that is not known; databases and JSON have no infinity."""
    return value if math.isfinite(value) else None


def _built(artifact: Artifact) -> dict[str, Any]:
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
