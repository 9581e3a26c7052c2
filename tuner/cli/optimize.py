"""`tuner optimize`: tune what a whole program calls, and keep what makes it faster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.console import Format, FormatOption, emit_record, note, say
from tuner.cli.programs import add_import_path, find_program, hooked_environment
from tuner.cli.variant_options import QuietOption


def optimize(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND", help="The program and its arguments."),
    ],
    budget: Annotated[
        str, typer.Option(help="Time of the tuning, such as 30m; runs of the program add to it.")
    ] = "10m",
    tables: Annotated[
        Path, typer.Option("--tables", "-t", metavar="DIR", help="The folder of tables.")
    ] = Path("tables"),
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Tune the operators and Triton kernels of a program, and keep what makes all of it faster.

    It runs about twenty times: to record its calls, then in turn as it is written, with operators
    in its models, and with new tables. Triton kernels of its libraries are launched from tables,
    too. Where the last line of its output is a number, that is compared, the smaller the better,
    else the time of a run. Tables are written only if it is surely faster with them than in both
    other ways.
    """
    from tuner.settings.sections import read_seconds

    seconds = read_seconds("--budget", budget)
    find_program(command[0])
    add_import_path(command)
    from tuner.optimizing.optimization import optimize_program
    from tuner.optimizing.program import Program

    program = Program(command, hooked_environment(), (lambda text: None) if quiet else note)
    progress = False if quiet else None
    result = optimize_program(program, budget=seconds, tables=tables, progress=progress)
    if style is not Format.TABLE:
        emit_record({"predicted": result.predicted, **asdict(result)}, style)
        return
    for line in f"{result}".splitlines():
        say(line)
