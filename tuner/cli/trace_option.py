"""The option `--trace` of commands that measure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tuner.base.inert_text import inert
from tuner.cli.console import note
from tuner.traces import record

TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write what every process did when to FILE, for ui.perfetto.dev.",
        show_default=False,
    ),
]


@contextmanager
def traced_command(path: Path | None, name: str) -> Iterator[None]:
    """Record a command into a trace file, if there is a path, and name the file on stderr."""
    with record(path, name):
        yield
    if path is not None:
        note(f"trace: {inert(path)} (open it in https://ui.perfetto.dev)")
