"""`tuner apply`: run a program whose libraries launch their kernels from tables."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from search_spaces.errors import TunerError
from tuner.cli.command_context import flag

#: Its `sitecustomize` runs at the start of every Python process of the program.
_SITE = Path(__file__).parents[1] / "site"


def apply(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND", help="The program and its arguments, or a script.py."),
    ],
    tables: Annotated[
        list[Path] | None,
        typer.Option(
            "--tables",
            "-t",
            metavar="PATH",
            help="A table or a folder of tables; give it again for more. By default `tables`.",
            show_default=False,
        ),
    ] = None,
    miss: Annotated[
        str | None,
        typer.Option(
            metavar="tune|default",
            help="What a launch without an entry does: the library's own tuning, or its default.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        bool, flag("--report", help="At its end, each process lists kernels and launches.")
    ] = False,
) -> None:
    """Run a program whose libraries launch their kernels from tables.

    Nothing in the libraries is changed. Every Python process that the program starts applies the
    tables too. The exit code is the program's.
    """
    if miss not in (None, "tune", "default"):
        raise TunerError(f"--miss is {miss!r}", "write tune or default")
    paths = tables or [Path("tables")]
    for path in paths:
        if not path.exists():
            raise TunerError(f"{path}: there is no such table or folder", "name one with --tables")
    if command[0].endswith(".py"):
        command = [sys.executable, *command]
    program = shutil.which(command[0])
    if program is None:
        raise TunerError(f"{command[0]}: there is no such program", "write -- python script.py")
    listed = [f"{_SITE}", *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "TUNER_APPLY": os.pathsep.join(f"{path.resolve()}" for path in paths),
        "PYTHONPATH": os.pathsep.join(listed),
        **({"TUNER_APPLY_REPORT": "1"} if report else {}),
        **({"TUNER_MISS": miss} if miss else {}),
    }
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, command, environment)
