"""What was found for a step or a program: as text for people, as fields for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tuner.base.inert_text import inert
from tuner.base.log_ratio import LogRatio
from tuner.ops.usage import table_of
from tuner.optimizing.call_times import CallTime, StepRecord
from tuner.optimizing.program import Outcome
from tuner.optimizing.step_comparison import StepComparison, is_surely_faster

#: Most kinds of calls that are listed.
_LISTED = 12


@dataclass(frozen=True, slots=True)
class TunedCall:
    """A kind of call that was tuned, or why it was not."""

    call: CallTime
    #: Confirmed time of the fastest baseline that a call may run, microseconds.
    before_us: float | None = None
    #: Confirmed time of the config that ships, microseconds.
    after_us: float | None = None
    #: Why it does not go into a table; empty where it does.
    note: str = ""

    def refuse(self, note: str) -> Self:
        """The same, that goes into no table."""
        return replace(self, note=note)

    @property
    def gain(self) -> float:
        """How many times as fast as the fastest baseline the calls become."""
        if self.note or not self.before_us or not self.after_us:
            return self.call.gain
        return self.before_us / self.after_us


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """The outcome of `tuner.optimize`, or of `tuner optimize` for a program."""

    #: The step as it is written, and the calls in it; of a program, the sum of its calls is its
    #: time.
    record: StepRecord
    #: What was tuned, the largest expected saving first.
    tuned: tuple[TunedCall, ...]
    #: The whole as it is written, with today's tables and with new ones.
    comparison: StepComparison
    #: The folder of tables, and the files written there.
    tables: Path
    written: tuple[Path, ...] = ()
    #: The record of calls, for `from_model` in a campaign.
    calls: Path | None = None
    #: Of a program: its run as it is written.
    outcome: Outcome | None = None
    #: Whether it was compared with operators.
    operators: bool = True
    #: Classes of models that have operators now.
    patched: tuple[str, ...] = ()

    @property
    def predicted(self) -> float:
        """The share of the record's time that operators and new tables were to save.

        The time of a step is that of the device, or of the host where the device waits for it.
        """
        record = self.record
        left = record.with_operators
        if left is None:
            left = record.seconds - sum(each.seconds * (1 - 1 / each.gain) for each in record.calls)
        for each in self.tuned:
            left -= each.call.seconds * (1 / each.call.gain - 1 / each.gain)
        plain, other = record.host_s
        whole = max(record.seconds, plain)
        return min(1.0, 1 - max(left, other) / whole) if whole else 0.0

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        record = self.record
        yield self._whole()
        rows = [_row(each, record.share(each)) for each in record.calls[:_LISTED]]
        others = record.calls[_LISTED:]
        if others:
            share = sum(map(record.share, others))
            rows.append(("others", f"{len(others)} kinds", _percent(share), "", ""))
        if self.outcome is None:
            rest = max(0.0, 1 - sum(map(record.share, record.calls)))
            rows.append(("all else", "", _percent(rest), "", ""))
        yield table_of([("kernel", "calls", "share", "workload", "runs"), *rows])
        yield "tuned:" if self.tuned else "nothing was worth tuning"
        for each in self.tuned:
            yield f"  {inert(each.call.name)} {inert(each.call.workload.key)}: {_outcome(each)}"
        predicted = f"{self.predicted:.1%} {'of these calls ' if self.outcome else ''}predicted"
        yield f"saving: {predicted}, {_saving(self.comparison.measured)} measured"
        yield from self._what_was_done()

    def _whole(self) -> str:
        if self.outcome is None:
            host_s = self.record.host_s[0]
            waits = f", which waits for the host: {1e3 * host_s:.4g} ms; a CUDA graph saves that"
            shown = f"one step: {1e3 * self.record.seconds:.4g} ms on the device"
            return shown + waits * (host_s > self.record.seconds)
        shares = "shares are of the time of these calls"
        if self.outcome.number is not None:
            return f"one run: {self.outcome.number:g}, the last line of its output; {shares}"
        said = f"the last line, {self.outcome.shown_line}, is no positive number"
        return f"one run: {self.outcome.seconds:.4g} s by the clock, since {said}; {shares}"

    def _what_was_done(self) -> Iterator[str]:
        new = self.comparison.over_today
        if new is not None:
            yield f"new tables over today's: {_saving(new)}"
        yield from (f"wrote {path}" for path in (*self.written, self.calls) if path)
        if not self.comparison.ships:
            yield "no table was written" + (": new ones are not surely faster" if new else "")
        elif self.outcome is None:
            launched = any(each.call.place and not each.note for each in self.tuned)
            apply = f" and TUNER_APPLY={self.tables}" if launched else ""
            yield f"in use in this process; elsewhere set TUNER_TABLES={self.tables}{apply}"
        if self.patched:
            names = ", ".join(self.patched)
            yield f"patched {names}, as tuner.ops.patch does; tuner.ops.unpatch takes it back"
        elif is_surely_faster(self.comparison.measured):
            flag = "--operators " if self.operators else ""
            way = f"the program: tuner apply {flag}--tables {self.tables} -- COMMAND"
            step = "tuner.ops.replaced()" if self.operators else f'tuner.applied("{self.tables}")'
            yield f"run {way if self.outcome else f'the step in `with {step}:`'}"


def _saving(ratio: LogRatio) -> str:
    ends = ratio.interval
    within = f" (95 % interval {1 - ends[1]:.1%} to {1 - ends[0]:.1%})" if ends else ""
    return f"{1 - ratio.ratio:.1%}{within}"


def _row(call: CallTime, share: float) -> tuple[str, ...]:
    texts = map(inert, (call.name, call.workload.key, call.reason))
    shown = _percent(share) if call.seconds else "not measured"
    return next(texts), f"{call.count}", shown, *texts


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _outcome(each: TunedCall) -> str:
    times = [f"{time:.4g} us" for time in (each.before_us, each.after_us) if time is not None]
    return "; ".join(filter(None, [" to ".join(times), each.note]))
