"""`tuner compare`: two runs or tables, task by task, from their confirmations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from results_db.run_comparison import TaskComparison, compare_runs
from tuner.base.log_ratio import Verdict, split_ratio
from tuner.cli.column_units import format_us
from tuner.cli.command_context import (
    ConfigOption,
    flag,
    pick_run,
    settings_of,
    store_of,
)
from tuner.cli.completion import complete_runs
from tuner.cli.console import (
    READABLE,
    VERDICT_STYLES,
    Format,
    FormatOption,
    emit,
    format_estimate,
    note,
)
from tuner.cli.variant_options import QuietOption, remeasure

if TYPE_CHECKING:
    from results_db.stored_records import TaskInfo
    from tuner.settings.sections import Settings

_WHAT = ("kernel", "workload", "device")
#: Columns for readers, and for programs: one number or text each.
_SHOWN = (*_WHAT, "a", "b", "change", "ratio", "verdict", "why")
_FIELDS = (*_WHAT, "a_us", "b_us", "change", "ratio", "low", "high", "verdict", "why")
_FAIL_ON = re.compile(r"(slower|undecided)(:\d+(\.\d+)?%)?|never")
#: The verdicts that fail, by the word of `--fail-on`.
_FAILING: Mapping[str, tuple[Verdict, ...]] = {
    "never": (),
    "slower": (Verdict.SLOWER,),
    "undecided": (Verdict.SLOWER, Verdict.UNDECIDED),
}


def _check_fail_on(text: str) -> str:
    if _FAIL_ON.fullmatch(text) is None:
        raise typer.BadParameter(f"{text!r}: write slower, slower:3%, undecided or never")
    return text


def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="What to compare with: a run's number, tag, date or git revision, or a table or "
            "folder of tables.",
            metavar="A",
            autocompletion=complete_runs,
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            help="What to compare, written like A.", metavar="B", autocompletion=complete_runs
        ),
    ],
    fail_on: Annotated[
        str,
        typer.Option(
            help="Exit with 1 if any task of B is `slower`, slower by at least a share "
            "(`slower:3%`), or slower or `undecided`; or `never`.",
            callback=_check_fail_on,
        ),
    ] = "slower",
    again: Annotated[
        bool,
        flag(
            "--remeasure",
            help="Measure the configs of both in one pass on the device here, which decides.",
        ),
    ] = False,
    config: ConfigOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Compare what two runs or tables ship; exits with 1 if any task of B is slower.

    The change is that of the times as each measured them. Times of different passes are not
    directly comparable: ratio and verdict go through what each run confirmed in one pass with its
    winner, the default config or a baseline. Only a new measurement of both in one pass is
    conclusive.
    """
    settings, base = settings_of(config)
    if _is_table(b) and not _is_table(a):  # the run knows all facts of the devices
        first = _read_side(settings, a, None)
        second = _read_side(settings, b, first)
    else:
        second = _read_side(settings, b, None)
        first = _read_side(settings, a, second)
    found = compare_runs(first.tasks, second.tasks)
    if all(each.verdict is None for each in found):
        note("the two have no task in common")
    if again:
        found = remeasure(settings, base, found, quiet=quiet)
    rows = [make_row(each, style) for each in found]
    columns = _SHOWN if style in READABLE else _FIELDS
    emit(rows, columns, style, details=("why",), shared=("device",), styles=VERDICT_STYLES)
    note(f"{second.name} against {first.name}: {count_verdicts(found)}")
    if not again:
        note(
            "from stored confirmations, by the default config or a baseline that both measured; "
            "only a new pass is conclusive: --remeasure makes it"
        )
    if any(map(_make_check(fail_on), found)):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    tasks: Sequence[TaskInfo]
    campaign: str | None = None


def _read_side(settings: Settings, text: str, other: _Side | None) -> _Side:
    """What a text names; a date or a revision looks in the campaign of the other side, if any."""
    path = Path(text)
    if _is_table(text):
        from tuner.tables.table_tasks import read_table_tasks

        devices = [task.key.device for task in (other.tasks if other else ())]
        return _Side(text, read_table_tasks(path, {each.fingerprint: each for each in devices}))
    with store_of(settings) as store:
        run = pick_run(store, text, other.campaign if other else None)
        return _Side(f"run {run.run_id}", store.tasks(run.run_id), run.campaign)


def _is_table(text: str) -> bool:
    """Whether a text names a table or a folder of tables, not a run."""
    path = Path(text)
    return bool(text) and not text.isdigit() and (path.suffix == ".json" or path.is_dir())


def count_verdicts(found: Sequence[TaskComparison]) -> str:
    """How many comparisons have each verdict, in words."""
    verdicts = [each.verdict for each in found]
    counts = [f"{verdicts.count(each)} {each}" for each in Verdict]
    return f"{', '.join(counts)}; {verdicts.count(None)} tasks in one of them only"


def _make_check(fail_on: str) -> Callable[[TaskComparison], bool]:
    """Whether a comparison fails by that option."""
    word, _, share = fail_on.partition(":")
    verdicts, least = _FAILING[word], math.log1p(float(share.rstrip("%") or 0) / 100)

    def fails(each: TaskComparison) -> bool:
        if each.verdict is Verdict.SLOWER and each.log_ratio and each.log_ratio.value < least:
            return False
        return each.verdict in verdicts

    return fails


def make_row(each: TaskComparison, style: Format) -> dict[str, object]:
    """The row of a comparison as listings in that format show it."""
    key, (a_us, b_us) = each.task.key, each.times_us
    row: dict[str, object] = {
        "kernel": key.kernel,
        "workload": key.workload.key,
        "device": key.device.name,
        "a_us": a_us,
        "b_us": b_us,
        "change": b_us / a_us - 1 if a_us and b_us is not None else None,
        **dict(zip(("ratio", "low", "high"), split_ratio(each.log_ratio), strict=True)),
        "verdict": each.verdict,
        "why": each.why,
    }
    return _format_row(row) if style in READABLE else row


def _format_row(row: dict[str, Any]) -> dict[str, object]:
    return {
        **row,
        "a": format_us(row["a_us"]),
        "b": format_us(row["b_us"]),
        "change": format_estimate("+.1%", row["change"]),
        "ratio": format_estimate(".3f", row["ratio"], row["low"], row["high"]),
    }
