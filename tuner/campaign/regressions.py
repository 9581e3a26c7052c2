"""Raise regressions from histories, decide them by a new pass of both configs, notify once."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, TypeAlias

from results_db.promotion_records import QuarantineRecord, RegressionRecord, RegressionState
from results_db.run_comparison import BESIDE_DEFAULT, TaskComparison
from results_db.task_history import History, is_suspect, list_histories
from tuner.base.inert_text import inert
from tuner.base.log_ratio import Verdict
from tuner.campaign.quarantine import describe_quarantine

if TYPE_CHECKING:
    from results_db import Store

#: Measures both configs of comparisons in one pass where it can, as `tuner.compare.remeasure`.
Remeasure: TypeAlias = Callable[[Sequence[TaskComparison]], Sequence[TaskComparison]]
#: Seconds that a webhook has to answer.
TIMEOUT_S = 5.0
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


def decide_candidates(
    store: Store, remeasure: Remeasure, *, again: bool = True
) -> list[RegressionRecord]:
    """Measure the configs before and behind each candidate in one pass, and store what it says.

    Of the same code and config, the pass has to show half of the step beside the default config. A
    candidate that cannot be measured here stays one, with the reason. again: also candidates
    for which that was tried before. Returns those that are confirmed now.
    """
    away = store.quarantines()
    candidates = [each for each in store.regressions() if each.state is RegressionState.CANDIDATE]
    waiting, pairs = [], []
    for each in candidates:
        pair = store.task(each.former_task_id), store.task(each.task_id)
        if any(is_suspect(task, away) for task in pair):
            reason = "confirmed on a card that was in quarantine"
            store.decide_regression(each.id, RegressionState.REFUTED, reason, each.log_ratio)
        elif again or not each.reason:
            waiting.append(each)
            pairs.append(pair)
    asked = [TaskComparison(old, new, Verdict.UNDECIDED) for old, new in pairs]
    for each, found in zip(waiting, remeasure(asked) if asked else (), strict=True):
        ratio = found.log_ratio
        if found.remeasured_us is None or ratio is None:
            state, reason = RegressionState.CANDIDATE, f"not decided: {found.why}"
        else:
            same = found.why == BESIDE_DEFAULT
            least = each.log_ratio.value / 2 if same and each.log_ratio else 0.0
            slower = ratio.low > 0 and ratio.value > least
            state = RegressionState.CONFIRMED if slower else RegressionState.REFUTED
            beside = "beside the default config" if same else "in one pass with the config before"
            reason = f"{'' if slower else 'not '}slower {beside}"
        store.decide_regression(each.id, state, reason, ratio)
    asked_for = {each.id for each in waiting}
    return [each for each in store.regressions() if each.id in asked_for and each.is_open]


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
