"""What ran: the implementation of every kind of call that this process has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search_spaces.records import Value
from tuner.ops.operator import OPERATORS


@dataclass(frozen=True, slots=True)
class Use:
    """The calls of one kind."""

    operator: str
    #: The workload of the kernel; empty where no kernel takes such calls.
    workload: str
    #: Calls so far; inside of a CUDA graph none is counted.
    calls: int
    #: `tuned`, or the name of a baseline; `eager` is torch's own function.
    implementation: str
    reason: str
    #: What is launched, of `tuned`.
    config: Mapping[str, Value] | None
    #: The workload of the table's entry that decided.
    entry: Mapping[str, Value] | None
    #: Time of the fastest baseline over that of the implementation, as confirmed; None if unknown.
    gain: float | None


class Report(tuple[Use, ...]):
    """All uses, the most frequent first; as text a table."""

    def __str__(self) -> str:
        head = ("operator", "calls", "runs", "gain", "workload", "why")
        return table_of([head, *(_row(use) for use in self)])


def table_of(rows: Sequence[Sequence[str]]) -> str:
    """Rows as text, in columns."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(text.ljust(w) for text, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    )


def _row(use: Use) -> tuple[str, ...]:
    gain = "" if use.gain is None else f"{use.gain:.2f}x"
    return (use.operator, f"{use.calls}", use.implementation, gain, use.workload, use.reason)


def report() -> Report:
    """What each kind of call of this process runs, and the gain that its table has measured."""
    uses = [
        Use(
            name, each.workload, each.calls, each.choice.implementation, each.choice.reason,
            each.choice.config, each.choice.entry, each.choice.gain,
        )
        for name, operator in OPERATORS.items()
        for each in operator.decisions()
    ]  # fmt: skip
    return Report(sorted(uses, key=lambda use: (-use.calls, use.operator)))
