"""`tuner bench` and `tuner verify`: a few variants of one kernel, here and now."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError
from search_spaces.records import Status, canonical_json
from tuner.cli._console import Format, FormatOption, console, emit, inert, note
from tuner.cli._progress import LINE_EVERY_S
from tuner.cli._session import LARGEST, settings_of

if TYPE_CHECKING:
    from search_spaces.records import Config
    from tuner.bench import Checked, Pass, Row, Tell, Variant

SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        "-c",
        envvar="TUNER_CONFIG",
        help="The farm's configuration file; config.yaml in this folder by default.",
        show_default=False,
    ),
]
KernelArgument = Annotated[
    str, typer.Argument(help="A name, module:object, file.py:object.", metavar="KERNEL")
]
VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        help="best (the database's winner), default, a JSON object, or a file with one or with an "
        "exported table; may be repeated.",
        metavar="best|default|JSON|FILE",
        show_default=False,
    ),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(
        help="The kernel's workloads with these dims, as 'M=32 dtype=float16', or one of your own "
        "with all of them; may be repeated. The kernel's first by default.",
        show_default=False,
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target", "--device", help="cuda, hip, cpu or cuda:90; the best device here by default."
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]

_BENCH = (
    "variant",
    "median_us",
    "ratio",
    "low",
    "high",
    "verdict",
    "speedup",
    "gb_per_s",
    "tflop_per_s",
    "copy_share",
    "error",
    "deterministic",
    "config",
    "note",
)
_BENCH_ALL = (
    "kernel",
    "workload",
    "device",
    "target",
    *_BENCH[:1],
    "kind",
    "status",
    *_BENCH[1:],
    "registers",
    "method",
    "cache",
    "pairs",
    "compiled",
    "timing_s",
    "clocks",
)
_VERIFY = ("variant", "status", "checked_by", "error", "config", "note")
_VERIFY_ALL = ("kernel", "workload", "device", "target", *_VERIFY, "odd")
#: Statuses that say nothing against a config that was not asked for by name.
_HARMLESS = (Status.CORRECT, Status.CONSTRAINTS)


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
    kernel: KernelArgument,
    config: VariantOption = None,
    workload: WorkloadOption = None,
    target: TargetOption = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="A baseline's name, all or none; may be repeated. Those that need no compiling "
            "by default.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[Method | None, typer.Option(help="How samples are taken.")] = None,
    cache: Annotated[
        Cache | None, typer.Option(help="The last-level cache before each launch.")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(min=8, max=100_000, help="Interleaved passes.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Write the raw samples there, as JSON.")
    ] = None,
    settings_file: SettingsOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Measure configs side by side with the default and baselines; writes nothing to the database.

    One confirmation as the farm makes it: a fresh process, everything verified first, then
    interleaved. Ratios are to the first row, with their 95 % intervals. Exits with 1 if a config is
    wrong or cannot be run.
    """
    from tuner import bench as library

    overrides = {"measure.method": method, "measure.cache": cache, "measure.final_pairs": pairs}
    given = {key: value for key, value in overrides.items() if value is not None}
    settings, base = settings_of(settings_file, given)
    _check_writable(samples)
    subject = library.subject(settings, base, kernel, workloads=workload or (), target=target)
    chosen = {
        item: library.contestants(subject, item, config, settings.database.url)
        for item in subject.workloads
    }
    _tell_origins(chosen.values())
    with _told(quiet=quiet) as tell:
        passes = list(library.bench(settings, subject, chosen, baselines=baseline, tell=tell))
    _emit_passes(passes, style)
    if samples is not None:
        samples.write_text(json.dumps([_raw(item) for item in passes], indent=1) + "\n")
    for item in passes:
        _note_pass(item)
    note("nothing of this is stored; `tuner run` keeps what it finds")
    configs = [row for item in passes for row in item.rows if row.kind == "config"]
    if any(row.status is not Status.CORRECT for row in configs):
        raise typer.Exit(1)


def verify(
    kernel: KernelArgument,
    config: VariantOption = None,
    every: Annotated[bool, typer.Option("--all", help="Every config of the space.")] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="So many configs, drawn at random.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST, help="Seed of the draw.")] = 0,
    workload: WorkloadOption = None,
    target: TargetOption = None,
    settings_file: SettingsOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Check that configs compute what they should, odd size included; nothing is timed or stored.

    Where no such GPU is here they are compiled for it and run by Triton's interpreter. Exits with 1
    if any is wrong. The default config by itself, unless others are named.
    """
    from tuner import bench as library

    if sum((bool(config), every, sample is not None)) > 1:
        raise TunerError("--config, --all and --sample exclude each other", "give one of them")
    settings, base = settings_of(settings_file)
    subject = library.subject(
        settings, base, kernel, workloads=workload or (), target=target, timed=False
    )
    url, drawn = settings.database.url, every or sample is not None
    chosen = {
        item: library.points(subject, item, sample, seed)
        if drawn
        else library.variants(subject, item, config or ["default"], url)
        for item in subject.workloads
    }
    _tell_origins(chosen.values())
    with _told(quiet=quiet) as tell:
        found = list(library.verify(settings, subject, chosen, tell=tell))
    rows = [
        {
            "kernel": subject.kernel.name,
            "device": subject.device.name,
            "target": subject.device.target,
            **_checked_row(item, style),
        }
        for item in found
    ]
    several = ("workload",) if len(chosen) > 1 else ()
    emit(rows, (*several, *_VERIFY) if style is Format.TABLE else _VERIFY_ALL, style)
    _note_checked(found, subject.device.name, subject.runner)
    harmless = _HARMLESS if drawn else (Status.CORRECT,)
    if any(item.status not in harmless for item in found):
        raise typer.Exit(1)


# -- bench -----------------------------------------------------------------------------------------
def _check_writable(path: Path | None) -> None:
    """Before anything is measured for it."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise TunerError(f"--samples {path}: no file can be written there", "name another file")


def _emit_passes(passes: Sequence[Pass], style: Format) -> None:
    rows = [_row(item, row, style) for item in passes for row in item.rows]
    several = ("workload",) if len(passes) > 1 else ()
    emit(rows, (*several, *_BENCH) if style is Format.TABLE else _BENCH_ALL, style)


def _row(item: Pass, row: Row, style: Format) -> dict[str, object]:
    facts = asdict(row)
    return {
        **facts,
        "kernel": item.kernel,
        "workload": item.workload.key,
        "device": item.device.name,
        "target": item.device.target,
        "status": f"{row.status}",
        "low": row.ratio_low,
        "high": row.ratio_high,
        "verdict": row.verdict or None,
        "config": _config(row.config, style),
        "note": _joined(row),
        "method": item.method,
        "cache": item.cache,
        "pairs": len(row.samples_us),
        "compiled": item.compiled,
        "timing_s": item.timing_s,
        "clocks": dict(item.clocks) if style is Format.JSON else canonical_json(dict(item.clocks)),
    }


def _joined(row: Row) -> str:
    bad = f"{row.status}" if row.status is not Status.CORRECT else ""
    return ": ".join(filter(None, [bad, row.message]))


def _config(config: Config | None, style: Format) -> object:
    if config is None or style in (Format.JSON, Format.TABLE):
        return None if config is None else dict(config)
    return canonical_json(dict(config))


def _note_pass(item: Pass) -> None:
    """What holds for a whole pass, for people."""
    count = max((len(row.samples_us) for row in item.rows), default=0)
    place = f"{item.kernel} {item.workload.key} on {item.device.name}"
    if not count:
        note(f"{place}: nothing was timed")
        return
    text = f"{place}: {count} interleaved passes by {item.method}, cache {item.cache}"
    if item.cache != item.protocol.cache:
        text += f" ({item.protocol.cache} is not to be had there)"
    if item.compiled:
        text += f", {item.compiled} launches compiled on the device's worker"
    note(text)
    if item.clocks:
        note(" ".join(["clocks:", *(_reading(*pair) for pair in sorted(item.clocks.items()))]))
    if "throttled" in item.clocks:
        note("the device was throttled while this was measured; measure again when it is cool")


def _reading(name: str, value: float | str) -> str:
    return f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"


def _raw(item: Pass) -> dict[str, object]:
    """A pass with its samples, for other programs."""
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
        "contestants": [
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


# -- verify ----------------------------------------------------------------------------------------
def _checked_row(item: Checked, style: Format) -> dict[str, object]:
    return {
        "workload": item.workload.key,
        "variant": item.variant or None,
        "status": f"{item.status}",
        "checked_by": item.checked_by or None,
        "odd": item.odd.key if item.odd else None,
        "error": item.error,
        "config": _config(item.config, style),
        "note": item.message,
    }


def _note_checked(found: Sequence[Checked], device: str, runner: str) -> None:
    words = [f"{item.status}" for item in found]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(sorted(words)))
    how = "compiled, and run by Triton's interpreter" if runner == "interpreter" else "run"
    note(f"{len(found)} configs {how} for {device}: {counts or 'none'}")


# -- both ------------------------------------------------------------------------------------------
def _tell_origins(chosen: Iterable[Sequence[Variant]]) -> None:
    for variants in chosen:
        for variant in variants:
            if variant.note:
                note(variant.note)


@contextmanager
def _told(*, quiet: bool) -> Iterator[Tell]:
    """Progress on stderr: one line that changes on a terminal, a line now and then elsewhere."""
    if quiet:
        yield lambda what, done, total: None
    elif sys.stderr.isatty():
        with console(stderr=True).status("starting") as shown:
            yield lambda what, done, total: shown.update(_progress(what, done, total))
    else:
        yield _lines(note)


def _lines(write: Callable[[object], None]) -> Tell:
    next_s = 0.0

    def tell(what: str, done: int, total: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s or (total and done == total):
            next_s = time.monotonic() + LINE_EVERY_S
            write(_progress(what, done, total))

    return tell


def _progress(what: str, done: int, total: int) -> str:
    return inert(f"{what} {done}/{total}" if total else what)
