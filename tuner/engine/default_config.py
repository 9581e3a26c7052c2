"""The config that a task's winner is compared with: what its users run today.

That is the kernel's default. Where the default fails, it is what `triton.autotune` would choose:
the fastest correct one of the kernel's listed configs, as far as they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from results_db.stored_records import SelectionRecord
from search_spaces.records import Config, Status
from tuner.engine.task_spec import TaskSpec
from tuner.engine.trial import Trial
from tuner.engine.trial_table import TrialTable

#: Part of every message about a default that fails; `default_failed` looks for it.
_FAILS = "config fails "


def default_of(
    spec: TaskSpec, trials: TrialTable, finalists: Sequence[Trial] | None = None
) -> Trial | None:
    """The trial of the default config or, once that has failed, the fastest correct listed one.

    finalists: fastest first; if given, the first listed one of them is taken. The failed trial is
    returned where no listed config is correct.
    """
    own = trials.of(spec.default)
    if own is None or not _failed(own):
        return own
    listed = [trials.of(config) for config in spec.listed]
    correct = [trial for trial in listed if trial is not None and trial.score is not None]
    if finalists is not None:
        numbers = {trial.number for trial in correct}
        return next((trial for trial in finalists if trial.number in numbers), own)
    return min(
        correct, key=lambda trial: (spec.dropped_early(trial.record), trial.score), default=own
    )


def next_listed(spec: TaskSpec, trials: TrialTable) -> Config | None:
    """The listed config to ask next: the default has failed and no listed config is correct yet.

    None where no listed config has to be asked.
    """
    own = trials.of(spec.default)
    if own is None or not _failed(own):
        return None
    untried = None
    for config in spec.listed:
        trial = trials.of(config)
        if trial is None:
            untried = untried or config
        elif not _failed(trial):
            return None
    return untried


def failed_default_note(spec: TaskSpec, trials: TrialTable, default: Trial | None) -> str:
    """The sentence of a selection's reason about a default that fails; empty if it does not."""
    own = trials.of(spec.default)
    if own is None or own.record is None or not _failed(own):
        return ""
    why = own.record.message.splitlines()[0] if own.record.message else ""
    failed = f"{own.record.status}: {why}" if why else f"{own.record.status}"
    if default is None or default is own:
        return f"there is no default to compare with, for the default {_FAILS}({failed:.160})"
    return (
        f"the first listed {_FAILS}({failed:.160}), so the default is the fastest correct "
        "listed one, as triton.autotune would choose"
    )


def default_failed(selection: SelectionRecord) -> bool:
    """Whether a selection's reason holds a `failed_default_note`."""
    return _FAILS in selection.reason


def _failed(trial: Trial) -> bool:
    return trial.record is not None and trial.record.status is not Status.CORRECT
