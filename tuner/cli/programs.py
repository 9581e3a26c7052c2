"""`tuner capture` and `tuner apply`: run programs, and record or replace what they launch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError
from tuner.capturing import child
from tuner.cli.command_context import flag
from tuner.cli.console import Format, FormatOption, emit, note

if TYPE_CHECKING:
    from tuner.capturing.table import Calls

_COLUMNS = ("kernel", "grid", "dtypes", "shapes", "configs", "launches", "GPU time", "note")


class KeptContents(StrEnum):
    """Whose values are kept."""

    INTEGERS = "integers"
    KEEP = "keep"


def capture(
    command: Annotated[
        list[str],
        typer.Argument(
            help="A program and its arguments, such as `python script.py`.",
            metavar="COMMAND",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the calls to this file, for `tuner run --calls`. Each call runs again at "
            "the program's exit, to find what it writes.",
        ),
    ] = None,
    contents: Annotated[
        KeptContents,
        typer.Option(help="Keep the values of integer tensors up to 1 MiB, or of all tensors."),
    ] = KeptContents.INTEGERS,
    style: FormatOption = Format.TABLE,
) -> None:
    """Run a program and list the Triton kernels that it launches.

    Python processes that the program starts are recorded as well. The exit code is the program's;
    with 0, it is 1 if no launch was recorded.
    """
    if output is not None:
        from tuner.traces.recording import check_writable

        check_writable(output, "--output")
    program = find_program(command[0])
    with tempfile.TemporaryDirectory(prefix="tuner-capture-") as folder:
        code = _run([program, *command[1:]], Path(folder), contents, tried=output is not None)
        calls = child.read_recorded(Path(folder))
    if calls is not None:
        _emit(calls, style)
        if output is not None:
            calls.save(output)
            note(f"{len(calls)} calls are in {output}; tune them: tuner run --calls {output}")
    else:
        note("no launch of a Triton kernel was recorded")
    if code or calls is None:
        raise typer.Exit(code or 1)


def _run(command: Sequence[str], folder: Path, contents: KeptContents, *, tried: bool) -> int:
    """Run a program with the recorder in its Python processes; its exit code, as a shell's."""
    environment = {**hooked_environment(), **child.ask(folder, f"{contents}", tried=tried)}
    sys.stdout.flush()
    process = subprocess.Popen(command, env=environment)
    # A Ctrl-C reaches the program as well, which decides what it means.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
    return code if code >= 0 else 128 - code


def _emit(calls: Calls, style: Format) -> None:
    from tuner.capturing.table import rows_of

    rows: list[dict[str, object]] = [{**row} for row in rows_of(calls.records)]
    shown = [name for name in _COLUMNS if any(row[name] for row in rows)]
    emit(rows, shown if style is Format.TABLE else _COLUMNS, style)


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
    operators: Annotated[
        bool,
        flag(
            "--operators", help="Put operators into models, too, or in place of torch's functions."
        ),
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
    program = find_program(command[0])
    listed = os.pathsep.join(f"{path.resolve()}" for path in paths)
    environment = {
        **hooked_environment(),
        "TUNER_APPLY": listed,
        **({"TUNER_OPERATORS": "1", "TUNER_TABLES": listed} if operators else {}),
        **({"TUNER_APPLY_REPORT": "1"} if report else {}),
        **({"TUNER_MISS": miss} if miss else {}),
    }
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, command, environment)


def find_program(name: str) -> str:
    """The path of a program. Raises `TunerError` without one."""
    program = shutil.which(name)
    if program is None:
        raise TunerError(f"{name}: there is no such program", "write `-- python script.py`")
    return program


def add_import_path(command: Sequence[str] = ()) -> None:
    """Let this process import what a program does, after all else: modules of the working folder,
    which `tuner` does not have on its import path, and those beside the program's script."""
    scripts = [Path(each) for each in command if each.endswith(".py")]
    for folder in (Path.cwd(), *(script.resolve().parent for script in scripts)):
        if f"{folder}" not in sys.path:
            sys.path.append(f"{folder}")


def hooked_environment() -> dict[str, str]:
    """The environment in which every Python process of a program begins with `tuner/site`."""
    paths = [f"{_SITE}", os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
