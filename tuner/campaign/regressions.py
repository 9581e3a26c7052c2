"""Raise regressions from histories, decide them by a new pass of both configs, notify once."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http.client import HTTPException
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from results_db.promotion_records import QuarantineRecord, RegressionRecord, RegressionState
from results_db.run_comparison import BESIDE_DEFAULT, TaskComparison
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from results_db.task_history import History, RunResult, is_suspect, list_histories
from search_spaces.records import config_key
from tuner.base.inert_text import inert
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.campaign.quarantine import describe_quarantine

if TYPE_CHECKING:
    from results_db import Store

#: Measures both configs of comparisons in one pass where it can, as `tuner.compare.remeasure`.
Remeasure: TypeAlias = Callable[[Sequence[TaskComparison]], Sequence[TaskComparison]]
#: Seconds that a webhook has to answer.
TIMEOUT_S = 5.0
#: Passes that must say the same; how long what was refuted is looked at again, and the least
#: ln(time) by which it persists.
_VOTES, _LOOKED_AT, _PERSISTING = 2, timedelta(days=14), 0.015
#: Longest text.
_MOST = 2000
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def raise_candidates(store: Store, kernels: Iterable[str] | None = None) -> None:
    """Store the steps to a higher level, of these or all kernels, that are not stored yet."""
    latest: dict[tuple[str, str, str], int] = {}
    for known in store.regressions():
        key = store.task(known.task_id).key
        series = key.kernel, key.workload.key, key.device.name
        latest[series] = max(latest.get(series, 0), known.found_run_id)
    away = store.quarantines()
    for kernel in store.list_kernels() if kernels is None else kernels:
        for history in list_histories(store.list_kernel_tasks(kernel), away):
            series = history.kernel, history.workload, history.device
            _raise_steps(store, history, latest.get(series, 0))


def _raise_steps(store: Store, history: History, after_run: int) -> None:
    """Store the steps that begin after a run: an earlier one is one that is stored."""
    for before, result, shown in history.list_steps():
        step = result.step
        if step is not None and step.change.value > 0 and result.run.run_id > after_run:
            store.raise_regression(
                result.task.task_id, before.task.task_id, shown.run.run_id, step.change
            )


@dataclass(slots=True)
class _Question:
    """A step that passes are to decide."""

    record: RegressionRecord
    #: What to measure, before it and behind it.
    pair: tuple[TaskInfo, TaskInfo]
    #: ln(time of the last result before it / the usual one), and the size of the step (ln).
    last: float
    size: float
    #: What each pass said, `True` for slower.
    votes: list[bool] = field(default_factory=list)
    decided: bool = False


def decide_candidates(
    store: Store, remeasure: Remeasure, *, again: bool = True
) -> list[RegressionRecord]:
    """Measure the configs before and behind each candidate side by side, and store what it says.

    Two of at most three passes decide, since one may be an outlier. Of the same code and config, a
    pass has to show half of the step beside the default config. A candidate that cannot be measured
    here stays one, with the reason; what was refuted is measured again while later runs show it.
    again: also candidates for which that was tried before. Returns those that are confirmed now.
    """
    away = store.quarantines()
    questions = []
    for each in store.regressions():
        refuted = each.state is RegressionState.REFUTED
        over = refuted and store.now() - each.found_at > _LOOKED_AT
        if each.state is RegressionState.CONFIRMED or over:
            continue
        former, task = store.task(each.former_task_id), store.task(each.task_id)
        if not refuted and any(is_suspect(one, away) for one in (former, task)):
            reason = "confirmed on a card that was in quarantine"
            store.decide_regression(each.id, RegressionState.REFUTED, reason, each.log_ratio)
        elif refuted or again or not each.reason:
            before, behind = _find_sides(store, each, away)
            if refuted and not _persists(each, before, behind):
                continue
            # Where a search had chosen otherwise, and the config before ships again, that counts.
            newest = behind[-1].task if behind else task
            pair = former, newest if _key_shipped(newest) == _key_shipped(former) else task
            usual, size = _find_level(before), each.log_ratio.value if each.log_ratio else 0.0
            if refuted:  # its ratio is that of a pass
                size = usual - _find_level(behind)
            questions.append(_Question(each, pair, usual - _find_level(before[-1:]), size))
    while asked := [each for each in questions if not each.decided]:
        pairs = [TaskComparison(*each.pair, Verdict.UNDECIDED) for each in asked]
        for question, found in zip(asked, remeasure(pairs), strict=True):
            _decide(store, question, found)
    numbers = {each.record.id for each in questions}
    return [each for each in store.regressions() if each.id in numbers and each.is_open]


def _decide(store: Store, question: _Question, found: TaskComparison) -> None:
    """Count what a pass says, and store what two of them do."""
    record, ratio = question.record, found.log_ratio
    if found.remeasured_us is None or ratio is None:
        question.decided = True
        returned = question.pair[1].task_id != record.task_id
        state = RegressionState.REFUTED if returned else record.state
        store.decide_regression(record.id, state, f"not decided: {found.why}", record.log_ratio)
        return
    same = found.why == BESIDE_DEFAULT
    if same:
        ratio -= LogRatio(*[-question.last] * 3)
    slower = ratio.low > 0 and ratio.value > (question.size / 2 if same else 0.0)
    question.votes.append(slower)
    if question.votes.count(slower) == _VOTES:
        question.decided = True
        state = RegressionState.CONFIRMED if slower else RegressionState.REFUTED
        beside = "beside the default config" if same else "in one pass with the config before"
        reason = f"{'' if slower else 'not '}slower {beside}"
        store.decide_regression(record.id, state, reason, ratio)


def _find_sides(
    store: Store, found: RegressionRecord, away: Sequence[QuarantineRecord]
) -> tuple[list[RunResult], list[RunResult]]:
    """The results before and behind a step that count, between the breaks around it."""
    kernel = store.task(found.task_id).key.kernel
    for history in list_histories(store.list_kernel_tasks(kernel), away):
        shipped = history.list_measured()
        numbers = [each.task.task_id for each in shipped]
        if found.task_id in numbers:
            at = numbers.index(found.task_id)
            breaks = [n for n, each in enumerate(shipped) if each.breaks]
            begin = max((n for n in breaks if n <= at), default=0)
            end = min((n for n in breaks if n > at), default=len(shipped))
            return shipped[begin:at], shipped[at:end]
    return [], []


def _persists(
    found: RegressionRecord, before: Sequence[RunResult], behind: Sequence[RunResult]
) -> bool:
    """Whether a run since the decision shows a step, as those since it began do."""
    if not before or not behind or found.decided_at is None:
        return False
    sizes = [_find_level(before) - _find_level(side) for side in (behind, behind[-1:])]
    return behind[-1].run.started_at > found.decided_at and min(sizes) > _PERSISTING


def _find_level(results: Sequence[RunResult]) -> float:
    """The median of ln(default time / time) over results."""
    ships = [each.ships for each in results]
    return median([each.log_ratio.value for each in ships if each and each.log_ratio] or [0.0])


def _key_shipped(task: TaskInfo) -> str:
    return config_key(select_shipped(task.selection).config) if task.selection else ""


def notify(store: Store, webhook: str) -> Iterator[str]:
    """Tell a webhook of each open regression and quarantine once; yields one line for each failure.

    What could not be sent is sent by a later call.
    """
    cards = [each for each in store.quarantines() if each.is_open]
    steps = [each for each in store.regressions() if each.is_open]
    notices: list[tuple[RegressionRecord | QuarantineRecord, str, str]] = [
        *((each, "quarantine", describe_quarantine(each)) for each in reversed(cards)),
        *((each, "regression", describe(store, each)) for each in reversed(steps)),
    ]
    for about, name, text in notices:
        if about.notified_at is not None or not store.claim_notice(about):
            continue
        if failure := post_text(webhook, text):
            store.return_notice(about)
            yield f"notify.webhook was not told of {name} {about.id}: {failure}"


def describe(store: Store, regression: RegressionRecord) -> str:
    """A regression in one line."""
    task = store.task(regression.task_id)
    ratio = regression.log_ratio
    size = f"{ratio.ratio - 1:.1%} " if ratio else ""
    names = (f"{text:.200}" for text in (task.key.kernel, task.key.workload.key))
    return (
        f"tuner: {' '.join(names)} on {task.key.device.name:.200} is {size}slower since run "
        f"{task.run_id} (regression {regression.id}, {regression.state})"
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An address that points elsewhere is a failure: the text is for this one."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post_text(url: str | None, *lines: str) -> str:
    """Send a text; returns why it failed in one line, without the address, or empty text.

    Characters that Slack or a terminal would interpret are escaped, and the end of a long text is
    left out.
    """
    if url is None:
        return "it is not set"
    text = "\n".join(map(inert, lines))[:_MOST]
    escaped = "".join(_ENTITIES.get(character, character) for character in text)
    request = urllib.request.Request(
        url, json.dumps({"text": escaped}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"it answered {error.code}"
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        return inert(f"{reason}")
