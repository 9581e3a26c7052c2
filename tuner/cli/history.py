"""`tuner history`: the confirmed results of one kernel, run by run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from results_db.errors import FIRST_RUN
from results_db.run_comparison import SAME_RECORD
from search_spaces.near_names import did_you_mean
from tuner.base.log_ratio import LogRatio, Verdict, split_ratio
from tuner.cli.column_units import format_us
from tuner.cli.command_context import ConfigOption, WorkloadsOption, settings_of, store_of
from tuner.cli.completion import complete_campaigns, complete_kernels
from tuner.cli.console import (
    READABLE,
    VERDICT_STYLES,
    Format,
    FormatOption,
    emit,
    format_estimate,
    note,
)
from tuner.cli.variant_options import config_cell

if TYPE_CHECKING:
    from results_db import Store
    from results_db.regression_records import RegressionRecord
    from results_db.task_history import History, RunResult

#: What all rows of one history share.
_SHARED = ("workload", "device")
#: Columns for readers, and for programs: one number or text each.
_BELOW = ("tag", "revision", "config", "note")
_SHOWN = (*_SHARED, "run", "started", "time", "normalised", "change", "verdict", *_BELOW)
_FIELDS = (
    "kernel",
    "workload",
    "device",
    "run",
    "tag",
    "campaign",
    "started_at",
    "revision",
    "median_us",
    "normalised_us",
    "anchor",
    "change",
    "change_low",
    "change_high",
    "verdict",
    "step",
    "step_low",
    "step_high",
    "config",
    "config_changes",
    "environment_changes",
    "note",
)
#: Runs that detection looks at, also where fewer are shown.
_LOOKED_AT = 50


def history(
    kernel: Annotated[
        str,
        typer.Argument(
            help="The kernel's name.", metavar="KERNEL", autocompletion=complete_kernels
        ),
    ],
    workload: WorkloadsOption = None,
    campaign: Annotated[
        str | None,
        typer.Option(help="Only runs of this campaign.", autocompletion=complete_campaigns),
    ] = None,
    last: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many runs of each workload to show.")
    ] = 20,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Show the confirmed results of a kernel run by run, newest first, with steps and breaks.

    A change is that against the run before, by what both confirmed in one pass with what they
    ship: the default config, or across a break a baseline. Exits with 1 if nothing is known.
    """
    from results_db.task_history import list_histories

    words = [word for text in workload or () for word in text.split()]
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        found = store.list_kernel_tasks(
            kernel, words=words, campaign=campaign, limit=max(last, _LOOKED_AT)
        )
        raised = {each.task_id: each for each in store.regressions()}
        missing = "" if found else _explain_none(store, kernel, words, campaign)
    if missing:
        if style is not Format.TABLE:
            emit([], _FIELDS, style)
        note(missing)
        raise typer.Exit(1)
    rows = list_rows(list_histories(found), last, style, raised)
    columns = _SHOWN if style in READABLE else _FIELDS
    emit(rows, columns, style, details=_BELOW, shared=_SHARED, styles=VERDICT_STYLES)


def list_rows(
    histories: Sequence[History],
    last: int,
    style: Format,
    raised: Mapping[int, RegressionRecord] = MappingProxyType({}),
) -> list[dict[str, object]]:
    """The newest results of each history, newest first, as listings in that format show them.

    raised: the regressions that begin at a task, by its number.
    """
    rows = [
        _make_row(each, result, raised.get(result.task.task_id), style)
        for each in histories
        for result in reversed(each.results[-last:])
    ]
    return [_format_row(row) for row in rows] if style in READABLE else rows


def _explain_none(store: Store, kernel: str, words: Sequence[str], campaign: str | None) -> str:
    names = store.list_kernels()
    if not names:
        return f"no runs here: {FIRST_RUN}"
    if kernel not in names:
        return f"no run has a kernel {kernel!r}{did_you_mean(kernel, names)}"
    filters = [f"--workload {' '.join(words)!r}"] if words else []
    filters += [f"--campaign {campaign}"] if campaign else []
    return f"no run of {kernel} matches {' '.join(filters)}"


def _make_row(
    each: History, result: RunResult, regression: RegressionRecord | None, style: Format
) -> dict[str, Any]:
    notes = [*_list_notes(result)]
    if regression is not None:
        notes.append(f"regression {regression.id}: {regression.state}")
    ships, run, same = result.ships, result.run, result.same_record
    return {
        "kernel": each.kernel,
        "workload": each.workload,
        "device": each.device,
        "run": run.run_id,
        "tag": run.tag,
        "campaign": run.campaign,
        "started_at": run.started_at,
        "revision": run.environment.get("git") or None,
        "median_us": ships.median_us if ships else None,
        "normalised_us": result.normalised_us,
        "anchor": result.anchor or None,
        **_split_change("change", result.change),
        "verdict": Verdict.SAME if same else result.change.verdict() if result.change else None,
        **_split_change("step", result.step.change if result.step else None),
        "config": config_cell(ships.config, style) if ships else None,
        "config_changes": ", ".join(result.config_changes),
        "environment_changes": ", ".join(result.breaks),
        "note": "; ".join(notes),
    }


def _split_change(name: str, ratio: LogRatio | None) -> dict[str, float | None]:
    """The relative change of the time with the ends of its interval: 0.03 is 3 % slower."""
    shares = (None if each is None else each - 1 for each in split_ratio(ratio))
    return dict(zip((name, f"{name}_low", f"{name}_high"), shares, strict=True))


def _list_notes(result: RunResult) -> Iterator[str]:
    """What a reader must know of a result: the step that begins here, breaks, what is missing."""
    if result.step is not None:
        change = result.step.change
        word = Verdict.SLOWER if change.value > 0 else Verdict.FASTER
        size = _format_change(_split_change("step", change), "step")
        yield f"step: {word} since this run, {size}"
    if result.breaks:
        yield f"environment changed: {', '.join(result.breaks)}"
        if result.change is not None:
            yield f"compared by {result.anchor}"
    if result.same_record:
        yield SAME_RECORD
    if result.ships is None:
        yield "; ".join(filter(None, ["no confirmed winner", result.task.note]))


def _format_row(row: Mapping[str, Any]) -> dict[str, object]:
    return {
        **row,
        "started": f"{row['started_at']:%Y-%m-%d %H:%M}Z",
        "time": format_us(row["median_us"]),
        "normalised": format_us(row["normalised_us"]),
        "change": _format_change(row, "change"),
        "config": row["config_changes"],
    }


def _format_change(row: Mapping[str, Any], name: str) -> str | None:
    """`+3.1% [+2.2%, +4.0%]`."""
    return format_estimate("+.1%", *(row[f"{name}{end}"] for end in ("", "_low", "_high")))
