"""The sizes for which a table's config is valid, as spans that the runtime reads.

A config that is right for one size may be wrong for another, not only slow. The kernel's declared
space decides (`BoundSpace.why_invalid`): here its answers become data, at most one span a dim. A
lookup under the rule `sizes` uses an entry where all of its spans hold the workload.

Notation: k is the entry's workload, n a size of one dim with the other dims as in k, v(n) whether
the config is valid there.

1. The multiple m of a dim is the least power of two that divides k for which v holds at k - m or
   k + m.
2. From k, v is asked at a few sizes of every octave, odd and even, both ways, until it fails or the
   dim ends; the bound is then bisected.
3. Together the spans must hold too: v is asked at their corners and at sizes between, in all dims
   at once. While a sample fails, the ends on its side of k move halfway to k, in octaves, in the
   dims that it fails by: the others are left out one by one for as long as it fails.

Steps 2 and 3 are samples: a declaration whose v fails at isolated sizes inside a span, which are
neither small numbers from k nor at an end, is not seen. `tests/tables` asks every integer.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TypeAlias

from results_db.stored_records import TaskInfo, TrialRecord
from search_spaces.dims import MAX_SIZE
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Device, Status, Value, Workload, config_key
from tuner.runtime import Entry, Rule, Span
from tuner.runtime._captured_calls import find_octaves

Valid: TypeAlias = Callable[[Mapping[str, int]], bool]

#: Sizes asked in every octave, and in all dims at once.
_PER_OCTAVE, _TOGETHER = 1, 32
#: The largest multiple that is tried.
_MULTIPLE = 4096


def rule_of(entries: Iterable[Entry]) -> Rule:
    """The rule of a table of these entries: `exact` where none has sizes."""
    return Rule("sizes") if any(entry.sizes for entry in entries) else Rule()


def renew_sizes(kernel: Kernel | None, device: Device, entry: Entry, old: Entry) -> Entry:
    """An entry with the sizes of today's declaration, in the place of an old one in its table.

    It serves the part of a range that the old one served, as far as its config is known to be
    right there: without a declaration, that is so where the old one's config is kept.
    """
    sizes = valid_sizes(kernel, device, entry.key, entry.config)
    declared = kernel is not None and kernel.declares(entry.config)
    if not declared and entry.config == old.config:
        sizes = dict(old.sizes)
    serves = {name: part for name, part in old.serves.items() if name in sizes}
    return replace(entry, sizes=sizes, serves=serves)


def valid_sizes(
    kernel: Kernel | None, device: Device, key: Mapping[str, Value], config: Config
) -> dict[str, Span]:
    """The spans of an entry, by dim; none where no declaration speaks of the config.

    key, config: the entry's. A dim that has a single valid size has no span.
    """
    if kernel is None or not kernel.declares(config):
        return {}
    workload = Workload.from_mapping(key)
    dims = [name for name in key if _is_size(workload.get(name))]

    def valid(sizes: Mapping[str, int]) -> bool:
        try:
            near = workload.with_dims(**sizes)
            kernel.check_workload(near)
            return kernel.space(near).bind(near, device).why_invalid(config) is None
        except WorkloadError:
            return False
        except Exception:  # user code may raise anything; then validity is not shown
            return False

    if not valid({}):
        return {}
    spans = {}
    for name in dims:
        span = _find_span(partial(_alone, valid, name), workload.size(name))
        if span.low < span.high:
            spans[name] = span
    return _fit_together(valid, workload, spans)


def _alone(valid: Valid, name: str, size: int) -> bool:
    return valid({name: size})


def _is_size(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _find_span(valid: Callable[[int], bool], center: int) -> Span:
    """The valid sizes around one, of steps 1 and 2."""
    multiple = 1
    while multiple <= _MULTIPLE and center % multiple == 0:
        beside = (center - multiple, center + multiple)
        if any(1 <= size <= MAX_SIZE and valid(size) for size in beside):
            low = _find_bound(valid, center, multiple, -1)
            return Span(low, _find_bound(valid, center, multiple, 1), multiple)
        multiple *= 2
    return Span(center, center)


def _find_bound(valid: Callable[[int], bool], center: int, multiple: int, sign: int) -> int:
    """The last valid size from the center, downwards or upwards."""
    last = center // multiple
    for count in _list_probes(last, MAX_SIZE // multiple, sign):
        if not valid(count * multiple):
            return _bisect(valid, last, count, multiple) * multiple
        last = count
    return last * multiple


def _list_probes(start: int, most: int, sign: int) -> Iterator[int]:
    """Counts from the start to 1 or to the most, nearest first: small steps, then octaves."""
    counts = {start + sign * step for step in range(1, 5)}
    size = float(start)
    while 1 < size < most:
        size *= 2.0 ** (sign / _PER_OCTAVE)
        counts |= {int(size), int(size) | 1}
    counts |= {1, 2, 3, most}
    beyond = {count for count in counts if 1 <= count <= most and (count - start) * sign > 0}
    return iter(sorted(beyond, reverse=sign < 0))


def _bisect(valid: Callable[[int], bool], good: int, bad: int, multiple: int) -> int:
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if valid(middle * multiple) else (good, middle)
    return good


# -- all dims at once ------------------------------------------------------------------------------
def _fit_together(valid: Valid, workload: Workload, spans: dict[str, Span]) -> dict[str, Span]:
    """The spans, smaller where not all of their sizes are valid together: step 3."""
    while len(spans) > 1:
        wrong = next((sizes for sizes in _list_samples(spans) if not valid(sizes)), None)
        if wrong is None:
            break
        failing = _find_failing(valid, workload, wrong)
        smaller = {
            name: _cut(span, workload.size(name), failing.get(name, workload.size(name)))
            for name, span in spans.items()
        }
        spans = {name: span for name, span in smaller.items() if span.low < span.high}
    return spans


def _find_failing(valid: Valid, workload: Workload, wrong: Mapping[str, int]) -> dict[str, int]:
    """Those sizes of a sample by which it fails, with all others as in the workload."""
    failing = {name: size for name, size in wrong.items() if size != workload.size(name)}
    for name in wrong:
        rest = {other: size for other, size in failing.items() if other != name}
        if not valid(rest):
            failing = rest
    return failing


def _list_samples(spans: Mapping[str, Span]) -> Iterator[dict[str, int]]:
    """The corners of the spans, and sizes between."""
    for ends in itertools.product(*((span.low, span.high) for span in spans.values())):
        yield dict(zip(spans, ends, strict=True))
    draw = random.Random(0)
    for _ in range(_TOGETHER):
        yield {name: _draw(draw, span) for name, span in spans.items()}


def _draw(draw: random.Random, span: Span) -> int:
    size = span.low * (span.high / span.low) ** draw.random()
    return max(span.low, int(size) // span.multiple * span.multiple)


def _cut(span: Span, center: int, wrong: int) -> Span:
    """The span with the end on the side of a wrong size halfway towards the center, in octaves."""
    end = span.low if wrong < center else span.high
    moved = int((end * center) ** 0.5) // span.multiple * span.multiple
    if wrong < center:
        return replace(span, low=moved if moved > span.low else center)
    if wrong > center:
        return replace(span, high=moved if center < moved < span.high else center)
    return span


# -- the sizes between which the config of a captured call was verified ----------------------------
# No declaration says for which other sizes a config of a captured call is right. Where the config
# passed the gate at further calls of the run, it is taken to be right between their sizes: at every
# launch whose integer arguments lie between those of two calls. The calls are put in a chain,
# nearest first, in which of two one has all the larger integers, so that no mixture of both is
# implied.
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
        (key, {config_key(t.config) for t in trials(number) if t.status is Status.CORRECT})
        for number, key in ((task.task_id, entry.key) for task, entry in entries)
    ]
    found = []
    for _, entry in entries:
        own = config_key(entry.config)
        keys = [key for key, configs in correct if own in configs]
        sizes = _find_spans(entry.key, keys, fixed)
        found.append(replace(entry, sizes={**sizes, **entry.sizes}))
    return found


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
