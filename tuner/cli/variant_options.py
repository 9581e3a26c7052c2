"""What `tuner bench` and `tuner verify` share: options that name variants, progress, columns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.records import canonical_json
from tuner.cli.console import Format, console, inert, note
from tuner.cli.progress import LINE_EVERY_S

if TYPE_CHECKING:
    from search_spaces.records import Config
    from tuner.bench import Tell, Variant

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


def tell_origins(chosen: Iterable[Sequence[Variant]]) -> None:
    """What people should know of where configs come from."""
    for variants in chosen:
        for variant in variants:
            if variant.note:
                note(variant.note)


@contextmanager
def told(*, quiet: bool) -> Iterator[Tell]:
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


def told_columns(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Those that say something of some row: a screen is narrow."""
    return (name for name in columns if any(row[name] not in (None, "") for row in rows))


def config_cell(config: Config | None, style: Format) -> object:
    """A config as a listing of that style holds it."""
    if config is None or style in (Format.JSON, Format.TABLE):
        return None if config is None else dict(config)
    return canonical_json(dict(config))
