"""The sizes between which the config of a captured call was verified.

No declaration says for which other sizes a config of a captured call is right. Where the config
passed the gate at further calls of the run, it is taken to be right between their sizes: at every
launch whose integer arguments lie between those of two calls. The calls are put in a chain, nearest
first, in which of two one has all the larger integers, so that no mixture of both is implied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from results_db.stored_records import TaskInfo, TrialRecord
from search_spaces.kernel import Kernel
from search_spaces.records import Status, Value, config_key
from tuner.runtime import Entry, Span
from tuner.runtime._captured_calls import find_octaves


def add_verified(
    kernel: Kernel | None,
    entries: Sequence[tuple[TaskInfo, Entry]],
    trials: Callable[[int], Sequence[TrialRecord]],
) -> list[Entry]:
    """The entries, those of captured calls with the sizes for which their configs were verified.

    entries: of one kernel and device, with their tasks. trials: those of a task.
    """
    fixed = getattr(kernel, "compiled_in", None)
    if fixed is None:  # not captured
        return [entry for _, entry in entries]
    correct = [
        (entry.key, {config_key(t.config) for t in trials(task.task_id) if _is_correct(t)})
        for task, entry in entries
    ]
    found = []
    for _, entry in entries:
        own = config_key(entry.config)
        keys = [key for key, configs in correct if own in configs]
        sizes = _find_spans(entry.key, keys, fixed)
        found.append(replace(entry, sizes={**sizes, **entry.sizes}))
    return found


def _is_correct(trial: TrialRecord) -> bool:
    return trial.status is Status.CORRECT


def _find_spans(
    key: Mapping[str, Value], others: Sequence[Mapping[str, Value]], fixed: frozenset[str]
) -> dict[str, Span]:
    """The integers of a chain of calls through a key, as spans; none where it is alone."""
    far = [(find_octaves(key, other, fixed), other) for other in others if other != key]
    chain = [key]
    for _, other in sorted((pair for pair in far if pair[0] < math.inf), key=itemgetter(0)):
        if all(_are_ordered(other, each) for each in chain):
            chain.append(other)
    spans = {}
    for name in _list_integers(key):
        values = [int(each[name] or 0) for each in chain]
        if min(values) < max(values):
            spans[name] = Span(min(values), max(values))
    return spans


def _are_ordered(one: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
    """Whether one key has none of the larger integers, or the other has none."""
    pairs = [(int(one[name] or 0), int(other[name] or 0)) for name in _list_integers(one)]
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def _list_integers(key: Mapping[str, Value]) -> Iterator[str]:
    return (name for name, value in key.items() if type(value) is int)
