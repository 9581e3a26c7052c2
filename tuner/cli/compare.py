"""`tuner compare`: two runs or tables, task by task, from their confirmations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.run_comparison import TaskComparison, compare_runs, count_verdicts
from tuner.base.log_ratio import Verdict
from tuner.cli.command_context import ConfigOption, complete_runs, flag, settings_of, store_of
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.cli.variant_options import QuietOption, remeasure
from tuner.views.runs import COMPARISON, pick_run

if TYPE_CHECKING:
    from results_db.stored_records import TaskInfo
    from tuner.settings.sections import Settings

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
        str | None,
        typer.Argument(
            help="What to compare, written like A; the latest run by default.",
            metavar="B",
            autocompletion=complete_runs,
        ),
    ] = None,
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
    if b is not None and _is_table(b) and not _is_table(a):
        # The run knows all facts of the devices.
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
    emit(found, COMPARISON, style)
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


def _read_side(settings: Settings, text: str | None, other: _Side | None) -> _Side:
    """What a text names; a date or a revision looks in the campaign of the other side, if any."""
    if text is not None and _is_table(text):
        from tuner.tables.table_check import read_table_tasks

        devices = [task.key.device for task in (other.tasks if other else ())]
        return _Side(
            text, read_table_tasks(Path(text), {each.fingerprint: each for each in devices})
        )
    with store_of(settings) as store:
        run = pick_run(store, text, other.campaign if other else None)
        return _Side(f"run {run.run_id}", store.tasks(run.run_id), run.campaign)


def _is_table(text: str) -> bool:
    """Whether a text names a table or a folder of tables, not a run."""
    path = Path(text)
    return bool(text) and not text.isdigit() and (path.suffix == ".json" or path.is_dir())


def _make_check(fail_on: str) -> Callable[[TaskComparison], bool]:
    """Whether a comparison fails by that option."""
    word, _, share = fail_on.partition(":")
    verdicts, least = _FAILING[word], math.log1p(float(share.rstrip("%") or 0) / 100)

    def fails(each: TaskComparison) -> bool:
        if each.verdict is Verdict.SLOWER and each.log_ratio and each.log_ratio.value < least:
            return False
        return each.verdict in verdicts

    return fails
