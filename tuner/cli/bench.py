"""`tuner bench`: measure a few configs of one kernel side by side on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from results_db.shipped import describe_ratio
from search_spaces.records import Status
from tuner.base.log_ratio import split_ratio
from tuner.cli.command_context import TraceOption, settings_of, traced_command
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.cli.variant_options import (
    KernelArgument,
    QuietOption,
    SettingsOption,
    TargetOption,
    VariantOption,
    WorkloadOption,
    note_origins,
)
from tuner.views.column import Column, estimate_columns, format_estimate, sort_config
from tuner.views.progress_display import show_progress

if TYPE_CHECKING:
    from tuner.compare import BenchRow, Pass

_Row: TypeAlias = "tuple[Pass, BenchRow]"


def _of_pass(read: Callable[[Pass], object]) -> Callable[[_Row], object]:
    return lambda each: read(each[0])


def _of_row(name: str, *, heading: str | None = "") -> Column[_Row]:
    return Column(name, lambda each: getattr(each[1], name), heading=heading)


def _show_ratio(each: _Row) -> str | None:
    """The first row is what the others are compared with: it has no interval."""
    ratio, low, high = split_ratio(each[1].log_ratio)
    return format_estimate(".3f", ratio, *((low, high) if each[1].verdict else ()))


_COLUMNS: tuple[Column[_Row], ...] = (
    Column("kernel", _of_pass(lambda one: one.kernel), heading=None),
    Column("workload", _of_pass(lambda one: one.workload.key), heading=None),
    Column("device", _of_pass(lambda one: one.device.name), heading=None),
    Column("target", _of_pass(lambda one: one.device.target), heading=None),
    _of_row("variant"),
    _of_row("kind", heading=None),
    _of_row("status", heading=None),
    _of_row("median_us"),
    *estimate_columns(("ratio", "low", "high"), lambda each: each[1].log_ratio, show=_show_ratio),
    Column("verdict", lambda each: each[1].verdict),
    *estimate_columns(
        ("speedup", "speedup_low", "speedup_high"),
        lambda each: each[1].over_default,
        show=lambda each: describe_ratio(each[1].over_default),
        heading="vs_default",
    ),
    *map(_of_row, ("gb_per_s", "tflop_per_s", "copy_share", "error", "deterministic")),
    Column("config", lambda each: None if each[1].config is None else sort_config(each[1].config)),
    Column("note", lambda each: _join_message(each[1])),
    _of_row("registers", heading=None),
    Column("method", _of_pass(lambda one: one.method), heading=None),
    Column("cache", _of_pass(lambda one: one.cache), heading=None),
    Column("pairs", lambda each: len(each[1].samples_us), heading=None),
    Column("compiled", _of_pass(lambda one: one.compiled), heading=None),
    Column("timing_s", _of_pass(lambda one: one.timing_s), heading=None),
    Column("clocks", _of_pass(lambda one: dict(one.clocks)), heading=None),
)


class Method(StrEnum):
    """How samples are taken."""

    AUTO = "auto"
    EVENTS = "events"
    GRAPH = "graph"
    CUPTI = "cupti"


class Cache(StrEnum):
    """What the last-level cache holds before a launch."""

    COLD = "cold"
    WARM = "warm"
    ROTATE = "rotate"


def bench(
    context: typer.Context,
    kernel: KernelArgument,
    config: VariantOption = None,
    workload: WorkloadOption = None,
    target: TargetOption = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="A baseline's name, all or none; may be repeated. By default those that need no "
            "compiling.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        Method | None,
        typer.Option(metavar="METHOD", help="How samples are taken: auto, events, graph or cupti."),
    ] = None,
    cache: Annotated[
        Cache | None, typer.Option(help="The last-level cache before each launch.")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(min=8, max=100_000, help="Interleaved passes.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Write the raw samples to this file, as JSON.")
    ] = None,
    settings_file: SettingsOption = None,
    trace: TraceOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Measure configs side by side with the default and baselines; writes nothing to the database.

    This is the farm's confirmation: a fresh process verifies all candidates, then times them
    interleaved. Ratios are to the first row, with their 95 % intervals. Exits with 1 if a config is
    wrong or cannot be run.
    """
    context.with_resource(traced_command(trace, f"tuner bench {kernel}"))
    from search_spaces import registry
    from tuner.campaign import early_start

    early_start.begin([(registry.kinds_by_name(kernel), [target] if target else [])])
    from search_spaces.atomic_file import write_output
    from tuner import compare as library
    from tuner.traces.recording import check_writable

    overrides = {"measure.method": method, "measure.cache": cache, "measure.final_pairs": pairs}
    given = {key: value for key, value in overrides.items() if value is not None}
    settings, base = settings_of(settings_file, given)
    if samples is not None:
        check_writable(samples, "--samples")
    bench_target = library.bench_target(
        settings, base, kernel, workloads=workload or (), target=target
    )
    chosen = {
        item: library.bench_variants(bench_target, item, config, settings.database.url)
        for item in bench_target.workloads
    }
    note_origins(chosen.values())
    tasks = [
        library.GivenTask(
            bench_target, item, variants, library.chosen_baselines(bench_target, item, baseline)
        )
        for item, variants in chosen.items()
    ]
    with show_progress(not quiet) as on_progress:
        passes = library.compare(settings, tasks, on_progress)
    _emit_passes(passes, style)
    if samples is not None:
        text = json.dumps([_raw(item) for item in passes], indent=1) + "\n"
        write_output(samples, text.encode(), "name another file, or free some space")
    for item in passes:
        _note_pass(item)
    note("these results are not stored; `tuner run` stores its results")
    configs = [row for item in passes for row in item.rows if row.kind == "config"]
    if any(row.status is not Status.CORRECT for row in configs):
        raise typer.Exit(1)


def _emit_passes(passes: Sequence[Pass], style: Format) -> None:
    workload = replace(_COLUMNS[1], heading="" if len(passes) > 1 else None)
    rows = [(item, row) for item in passes for row in item.rows]
    emit(rows, (_COLUMNS[0], workload, *_COLUMNS[2:]), style, filled=True)


def _join_message(row: BenchRow) -> str:
    bad = f"{row.status}" if row.status is not Status.CORRECT else ""
    return ": ".join(filter(None, [bad, row.message]))


def _note_pass(item: Pass) -> None:
    """Print the facts of a whole pass to stderr."""
    count = max((len(row.samples_us) for row in item.rows), default=0)
    place = f"{item.kernel} {item.workload.key} on {item.device.name}"
    if not count:
        note(f"{place}: nothing was timed")
        return
    text = f"{place}: {count} interleaved passes by {item.method}, cache {item.cache}"
    if item.cache != item.protocol.cache:
        text += f" ({item.protocol.cache} is not available on it)"
    if item.compiled:
        text += f", {item.compiled} launches compiled on the device worker"
    note(text)
    if item.clocks:
        note(" ".join(["clocks:", *(_reading(*pair) for pair in sorted(item.clocks.items()))]))
    if "throttled" in item.clocks:
        note("the device was throttled during this pass; measure again when it has cooled down")


def _reading(name: str, value: float | str) -> str:
    return f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"


def _raw(item: Pass) -> dict[str, object]:
    """A pass with its samples, as `--samples` writes it."""
    return {
        "kernel": item.kernel,
        "workload": item.workload.as_dict(),
        "device": asdict(item.device),
        "toolchain": asdict(item.toolchain),
        "protocol": asdict(item.protocol),
        "calibration": None if item.calibration is None else asdict(item.calibration),
        "method": item.method,
        "cache": item.cache,
        "clocks": dict(item.clocks),
        "candidates": [
            {
                "variant": row.variant,
                "kind": row.kind,
                "config": None if row.config is None else dict(row.config),
                "status": f"{row.status}",
                "samples_us": list(row.samples_us),
            }
            for row in item.rows
        ],
    }
