"""`tuner compare`: two runs, task by task, from their confirmations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.shipped import select_shipped
from search_spaces.log_ratio import LogRatio, Verdict, split_ratio
from search_spaces.records import config_key
from tuner.cli.command_context import LARGEST, ConfigOption, pick_run, settings_of, store_of
from tuner.cli.console import Format, FormatOption, emit, note

if TYPE_CHECKING:
    from results_db.stored_records import SelectionRecord, TaskInfo

#: Two times within this ratio of each other count as the same.
SAME = 1.01
_COLUMNS = (
    "kernel",
    "workload",
    "device",
    "a_us",
    "b_us",
    "ratio",
    "low",
    "high",
    "verdict",
    "why",
)


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The comparison of run B with run A in one task."""

    verdict: Verdict
    #: Why the verdict is undecided without an interval.
    why: str = ""
    #: ln(B's time / A's); None where the runs have no common reference.
    log_ratio: LogRatio | None = None


def compare(
    a: Annotated[
        int, typer.Argument(help="The run to compare with.", metavar="A", min=1, max=LARGEST)
    ],
    b: Annotated[int, typer.Argument(help="The run to compare.", metavar="B", min=1, max=LARGEST)],
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Compare what two runs ship; exits with 1 if any task of B is slower.

    Times of different passes are not directly comparable. Each run confirmed its winner and the
    default config in one pass, so the default config is the common reference. Only a new
    measurement of both in one pass is conclusive.
    """
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        first, second = pick_run(store, a), pick_run(store, b)
        old = {_identity(task): task for task in store.tasks(first.run_id)}
        new = {_identity(task): task for task in store.tasks(second.run_id)}
    rows = [_row(old[key], new[key]) for key in old if key in new]
    emit(rows, _COLUMNS, style, empty="the two runs have no task in common")
    verdicts = [row["verdict"] for row in rows]
    counts = [f"{verdicts.count(each)} {each}" for each in Verdict]
    note(f"run {b} against run {a}: {', '.join(counts)}; {len(old) + len(new) - 2 * len(rows)} "
         "tasks in one of them only")  # fmt: skip
    note("from stored confirmations, relative to the default config; only a new pass is conclusive")
    if Verdict.SLOWER in verdicts:
        raise typer.Exit(1)


def compare_selections(old: SelectionRecord | None, new: SelectionRecord | None) -> RunComparison:
    """Compare what two selections ship, each confirmed in one pass with the default config."""
    if old is None or new is None:
        return RunComparison(
            Verdict.UNDECIDED, f"{'A' if old is None else 'B'} confirmed no winner"
        )
    if old.default is None or new.default is None:
        return RunComparison(Verdict.UNDECIDED, "no default config was measured")
    if config_key(old.default) != config_key(new.default):
        return RunComparison(Verdict.UNDECIDED, "the default config has changed")
    gain_a, gain_b = _gain(old), _gain(new)
    if gain_a is None or gain_b is None:
        return RunComparison(Verdict.UNDECIDED, "nothing was timed")
    middle = gain_a.value - gain_b.value
    spread = math.hypot(*((gain.high - gain.low) / 2 for gain in (gain_a, gain_b)))
    ratio = LogRatio(middle, middle - spread, middle + spread)
    return RunComparison(_verdict(ratio), "", ratio)


def _verdict(ratio: LogRatio) -> Verdict:
    if -math.log(SAME) <= ratio.low and ratio.high <= math.log(SAME):
        return Verdict.SAME
    if ratio.high < 0:
        return Verdict.FASTER
    return Verdict.SLOWER if ratio.low > 0 else Verdict.UNDECIDED


def _gain(chosen: SelectionRecord) -> LogRatio | None:
    """ln(default time / shipped time); None unless its interval is known."""
    ratio = select_shipped(chosen).log_ratio
    return ratio if ratio and ratio.interval else None


def _identity(task: TaskInfo) -> tuple[str, str, str]:
    return task.key.kernel, task.key.workload.key, task.key.device.fingerprint


def _row(old: TaskInfo, new: TaskInfo) -> dict[str, object]:
    compared = compare_selections(old.selection, new.selection)
    return {
        "kernel": new.key.kernel,
        "workload": new.key.workload.key,
        "device": new.key.device.name,
        "a_us": select_shipped(old.selection).median_us if old.selection else None,
        "b_us": select_shipped(new.selection).median_us if new.selection else None,
        **dict(zip(("ratio", "low", "high"), split_ratio(compared.log_ratio), strict=True)),
        "verdict": compared.verdict,
        "why": compared.why,
    }
