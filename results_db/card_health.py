"""Which cards measure otherwise than before: their drift from run to run, and their faults.

Two series show a drift. Each worker copies memory when it starts: the rate is compared with that of
earlier runs of the card. And confirmations time baselines, which no search changes. Notation: x is
ln(time) of a baseline, k what was timed, c a card, n a run. Cards of one model differ by a percent
or more for good, so that a card is compared with itself:

    x(k, c, n) = work(k) + level(c) + drift(c, n),

where work and level are medians over earlier runs, found in turns (a median polish, Tukey 1977),
and the drift is the median over the confirmations of the run whose work is known. What all cards of
a run have in common, such as a warm night, is taken off where there are enough of them. Runs in
which a card was odd count neither for its level nor for the work.

A card goes into quarantine if its mean drift of two runs in a row is surely beyond `_LEAST`; at
once for a drift that is surely beyond `_FAR`, for passes in which times scatter, for errors of its
memory, and for voided passes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import TypeAlias

from results_db.promotion_records import CardTime

#: Drifts, as ln of a ratio, that matter, and that need no second run.
_LEAST, _FAR = 0.008, 0.05
#: Standard errors that are sure: of two runs, and of one, which then has no part in what is usual.
_SURE, _ODD = 5.0, 3.5
#: The least share of the mean of two runs that each of them has.
_ALIKE = 1 / 3
#: Baselines of less time in us vary by 2 % and more between sessions that nothing distinguishes.
_SHORT_US = 20.0
#: The least deviation of a confirmation and of a card's night: baselines of `_SHORT_US` and more
#: on two H200s (`benchmarks/card_nights.py`); and of the rate of copies.
_OF_TIME, _OF_CARD, _OF_COPY = 0.01, 0.002, 0.003
#: The fewest confirmations by which a run is judged, and cards that show what they have in common.
_FEWEST_TIMES, _FEWEST_CARDS = 3, 5
#: In how many earlier runs a card, and what was timed, must have been.
_FEWEST_EARLIER = 3
#: The most turns of the median polish, and the change of all levels at which it ends.
_TURNS, _SETTLED = 8, 1e-4
#: The deviation of what one pass has timed that is too much.
_NOISY = 0.02
#: The share of voided confirmations above which a card has a fault, and the fewest of them.
_VOIDED, _FEWEST_VOIDED = 0.2, 3
#: The median of standard normal deviations.
_NORMAL = 1.4826
_Rates: TypeAlias = Mapping[str, Sequence[float]]
#: What was timed, the card, the run, ln(time).
_Log: TypeAlias = tuple[tuple[Hashable, ...], str, int, float]


@dataclass(frozen=True, slots=True)
class Drift:
    """ln(time / time before) of a card in a run."""

    value: float
    error: float
    #: What was compared, in words.
    by: str
    #: By how much what one pass has timed scatters, against earlier runs; 0 where unknown.
    apart: float = 0.0

    def __str__(self) -> str:
        word = "slower" if self.value > 0 else "faster"
        return f"{math.expm1(abs(self.value)):.1%} {word} than in its earlier runs ({self.by})"


@dataclass(frozen=True, slots=True)
class CardRun:
    """One card in one run."""

    run_id: int
    card: str
    #: The name of its model.
    device: str
    #: By series, `copies` or `times`, where enough can be compared.
    drifts: Mapping[str, Drift]
    #: The share of confirmations that throttling voided.
    voided: float
    #: Why it has to go at once; empty where it has not.
    fault: str = ""

    @property
    def is_odd(self) -> bool:
        """Whether this run says nothing of what is usual."""
        found = self.drifts.values()
        far = any(abs(each.value) > max(_LEAST, _ODD * each.error) for each in found)
        return self.fault != "" or far


@dataclass(frozen=True, slots=True)
class Finding:
    """A card that has to go into quarantine."""

    card: str
    device: str
    reason: str
    #: The first run in which it was off, and the last one.
    runs: tuple[int, int]


def list_card_runs(
    times: Iterable[CardTime], admitted: Mapping[str, datetime] | None = None
) -> list[CardRun]:
    """All cards in all runs, oldest run first.

    admitted: when cards were admitted again; what was before does not count.
    """
    by_run: dict[int, list[CardTime]] = defaultdict(list)
    for each in times:
        after = (admitted or {}).get(each.card)
        if after is None or (each.confirmed_at and each.confirmed_at > after):
            by_run[each.run_id].append(each)
    found: list[CardRun] = []
    earlier: list[_Log] = []
    rates: dict[str, list[float]] = defaultdict(list)
    for run_id in sorted(by_run):
        judged = _judge_run(by_run[run_id], earlier, rates)
        found += judged
        sound = {each.card for each in judged if not each.is_odd}
        usual = [each for each in by_run[run_id] if each.card in sound]
        logs = [(e.what, e.card, run_id, math.log(e.us)) for e in usual if e.us >= _SHORT_US]
        earlier += logs
        for card, own in _group(usual).items():
            if rate := _find_rate(own):
                rates[card].append(rate)
    return found


def find_outliers(runs: Sequence[CardRun], run_id: int) -> list[Finding]:
    """The cards that have to go after a run."""
    by_card: dict[str, list[CardRun]] = defaultdict(list)
    for each in runs:
        if each.run_id <= run_id:
            by_card[each.card].append(each)
    found = []
    for *former, now in by_card.values():
        first, reason = run_id, now.fault
        if not reason and former:
            first, reason = former[-1].run_id, _describe_drift(former[-1], now)
        if reason and now.run_id == run_id:
            found.append(Finding(now.card, now.device, reason, (first, run_id)))
    return found


def _describe_drift(before: CardRun, now: CardRun) -> str:
    """Why two runs in a row are too far from what is usual; empty where they are not."""
    for name in before.drifts.keys() & now.drifts.keys():
        old, new = before.drifts[name], now.drifts[name]
        both = Drift(
            (old.value + new.value) / 2, math.hypot(old.error, new.error) / 2, f"{name} of two runs"
        )
        # One night that is far off is not two.
        alike = min(old.value / both.value, new.value / both.value) if both.value else 0.0
        if abs(both.value) > max(_LEAST, _SURE * both.error) and alike > _ALIKE:
            return f"{both}"
    return ""


def _group(times: Iterable[CardTime]) -> dict[str, list[CardTime]]:
    found: dict[str, list[CardTime]] = defaultdict(list)
    for each in times:
        found[each.card].append(each)
    return found


def _judge_run(times: Sequence[CardTime], earlier: Sequence[_Log], rates: _Rates) -> list[CardRun]:
    by_card, known = _group(times), _Usual(earlier)
    by_times = {card: found for card, own in by_card.items() if (found := known.find_drift(own))}
    apart = _find_spread(rates.values())
    by_copies = {
        card: found
        for card, own in by_card.items()
        if (found := _find_copy_drift(_find_rate(own), rates.get(card, ()), apart))
    }
    series = {"copies": _without_common(by_copies), "times": _without_common(by_times)}
    return [
        _describe(own, {name: each[card] for name, each in series.items() if card in each})
        for card, own in sorted(by_card.items())
    ]


def _without_common(drifts: Mapping[str, Drift]) -> dict[str, Drift]:
    """Drifts without what all cards have in common."""
    if len(drifts) < _FEWEST_CARDS:
        return dict(drifts)
    common = median(each.value for each in drifts.values())
    return {card: replace(e, value=e.value - common) for card, e in drifts.items()}


def _describe(own: Sequence[CardTime], drifts: Mapping[str, Drift]) -> CardRun:
    first = own[0]
    clocks = {each.what[:-1]: each.clocks for each in own}.values()
    throttled = sum("throttled" in each for each in clocks)
    errors = max(float(each.get("memory_errors", 0)) for each in clocks)
    fault = ""
    if errors:
        fault = f"{errors:.0f} errors of its memory were not corrected"
    elif throttled >= _FEWEST_VOIDED and throttled > _VOIDED * len(clocks):
        fault = f"throttling voided {throttled} of {len(clocks)} confirmations"
    for each in drifts.values():
        if not fault and each.apart > _NOISY:
            fault = f"times of one pass scatter by {each.apart:.1%}"
        if not fault and abs(each.value) - _SURE * each.error > _FAR:
            fault = f"{each}"
    voided = throttled / len(clocks)
    return CardRun(first.run_id, first.card, first.device, drifts, voided, fault)


def _find_rate(own: Sequence[CardTime]) -> float | None:
    """ln(rate of copies) of a card in a run; None where it was not measured."""
    found = [math.log(float(e.clocks["copy_tb_s"])) for e in own if e.clocks.get("copy_tb_s")]
    return median(found) if found else None


def _find_spread(rates: Iterable[Sequence[float]]) -> float:
    """The usual deviation of a card's rate from run to run: one card has too few runs to say."""
    known = [each for each in rates if len(each) >= _FEWEST_EARLIER]
    spreads = [_NORMAL * median(abs(one - median(each)) for one in each) for each in known]
    return max(_OF_COPY, median(spreads) if spreads else 0.0)


def _find_copy_drift(rate: float | None, earlier: Sequence[float], apart: float) -> Drift | None:
    if rate is None or len(earlier) < _FEWEST_EARLIER:
        return None
    error = apart * math.sqrt(1 + 1.57 / len(earlier))
    return Drift(median(earlier) - rate, error, "copies")


class _Usual:
    """What earlier runs say of the work of everything timed, and of the level of each card."""

    def __init__(self, logs: Sequence[_Log]) -> None:
        self._level: dict[str, float] = defaultdict(float)
        self._work: dict[Hashable, float] = {}
        self._seen = Counter(what for what, *_ in logs)
        runs: dict[str, set[int]] = defaultdict(set)
        for _, card, run_id, _ in logs:
            runs[card].add(run_id)
        self._runs = {card: len(each) for card, each in runs.items()}
        for _ in range(_TURNS):
            former = dict(self._level)
            of_work: dict[Hashable, list[float]] = defaultdict(list)
            for what, card, _, x in logs:
                of_work[what].append(x - self._level[card])
            self._work = {what: median(found) for what, found in of_work.items()}
            of_card: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
            for what, card, run_id, x in logs:
                of_card[card][run_id].append(x - self._work[what])
            for card, by_run in of_card.items():
                self._level[card] = median(map(median, by_run.values()))
            if all(abs(e - former.get(card, 0.0)) < _SETTLED for card, e in self._level.items()):
                break

    def find_drift(self, own: Sequence[CardTime]) -> Drift | None:
        """The drift of one card in one run, by its times."""
        card = own[0].card
        if self._runs.get(card, 0) < _FEWEST_EARLIER:
            return None
        rests: dict[tuple[Hashable, ...], list[float]] = defaultdict(list)
        for each in own:  # what one confirmation has timed varies together
            if each.us >= _SHORT_US and self._seen[each.what] >= _FEWEST_EARLIER:
                rest = math.log(each.us) - self._work[each.what] - self._level[card]
                rests[each.what[:-1]].append(rest)
        if len(rests) < _FEWEST_TIMES:
            return None
        found = [*map(median, rests.values())]
        middle = median(found)
        apart = max(_OF_TIME, _NORMAL * median(abs(each - middle) for each in found))
        # The error of a median is a quarter larger than that of a mean.
        error = math.hypot(
            1.25 * apart / math.sqrt(len(found)), _OF_CARD, apart / math.sqrt(self._runs[card] * 3)
        )
        ranges = [(max(each) - min(each)) / 2 for each in rests.values() if len(each) > 1]
        scatter = _NORMAL * median(ranges) if len(ranges) >= _FEWEST_TIMES else 0.0
        return Drift(middle, error, f"times of {len(found)} confirmations", scatter)
