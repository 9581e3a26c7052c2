"""The config that a task's winner is compared with: what its users run today.

That is the kernel's default or, where this one fails, what `triton.autotune` would choose: the
fastest correct one of the kernel's own listed configs, as far as they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from search_spaces.records import Config, Status, config_key

if TYPE_CHECKING:
    from results_db.records import SelectionRecord
    from tuner.engine.search import Search
    from tuner.engine.trial import Trial

#: In every remark.
_FAILS = "config fails "


def default_of(search: Search, finalists: Sequence[Trial] | None = None) -> Trial | None:
    """The trial of the default config or, once that failed, the fastest correct listed one.

    finalists: once there are any, the first listed one of them is taken, fastest first. The failed
    one is returned where no listed config is right.
    """
    own = search.trials.get(config_key(search.spec.default))
    if own is None or not _failed(own):
        return own
    listed = [search.trials.get(config_key(config)) for config in search.spec.listed]
    right = [trial for trial in listed if trial is not None and trial.score is not None]
    if finalists is not None:
        numbers = {trial.number for trial in right}
        return next((trial for trial in finalists if trial.number in numbers), own)
    return min(right, key=lambda trial: (search.hopeless(trial), trial.score), default=own)


def next_listed(search: Search) -> Config | None:
    """The listed config to ask next where the default failed and none of the listed is right yet;
    None where nothing is to be asked for that."""
    own = search.trials.get(config_key(search.spec.default))
    if own is None or not _failed(own):
        return None
    untried = None
    for config in search.spec.listed:
        trial = search.trials.get(config_key(config))
        if trial is None:
            untried = untried or config
        elif not _failed(trial):
            return None
    return untried


def remark(search: Search, default: Trial | None) -> str:
    """What a selection says about its default where the kernel's own fails; else nothing."""
    own = search.trials.get(config_key(search.spec.default))
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
    """Whether a selection's reason holds a `remark`."""
    return _FAILS in selection.reason


def _failed(trial: Trial) -> bool:
    return trial.record is not None and trial.record.status is not Status.CORRECT
