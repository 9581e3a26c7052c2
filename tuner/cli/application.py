"""The application: its commands, and the one place where an error becomes an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from search_spaces.errors import TunerError
from tuner import __version__
from tuner.cli import (
    bench,
    compare,
    config,
    database,
    doctor,
    forget,
    init,
    replay,
    results,
    run,
    schedule,
    spaces,
    verify,
    workers,
)
from tuner.cli.console import fail
from tuner.cli.streams import discard_stdout, secure

app = typer.Typer(
    name="tuner",
    help="Tune GPU and CPU kernels on a farm and ship the winners as tables.",
    epilog="Exit codes: 0 fine, 1 a finding, 2 usage, configuration or I/O, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(init.init)
app.command("run")(run.run)
app.command("status")(results.status)
app.command("report")(results.report)
app.command("export")(results.export)
app.command("replay")(replay.replay)
app.command("forget")(forget.forget)
app.command("compare")(compare.compare)
app.command("bench")(bench.bench)
app.command("verify")(verify.verify)
app.add_typer(spaces.app, name="spaces")
app.add_typer(workers.app, name="workers")
app.add_typer(schedule.app, name="schedule")
app.add_typer(database.app, name="db")
app.add_typer(config.app, name="config")
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tuner {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; anywhere on the line.")
    ] = False,
) -> None:
    """Tune GPU and CPU kernels on a farm and ship the winners as tables."""


def main() -> None:
    """The console script."""
    secure()
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error is printed as two lines."""
    debug = "--debug" in arguments
    arguments = [item for item in arguments if item != "--debug"]
    try:
        code = app(arguments, prog_name="tuner", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        if debug:
            traceback.print_exception(error)
        return _exit_code(error)
    return code if isinstance(code, int) else 0


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
        error = error.__context__
    if isinstance(error, BrokenPipeError):
        discard_stdout()
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 2
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        fail("interrupted")
        return 130
    if isinstance(error, TunerError):
        fail(error.message, error.hint)
        return error.exit_code
    if isinstance(error, typer.TyperException):
        return _usage(error)
    if isinstance(error, OSError):
        fail(error, "mend that and run the same command again; what was recorded is kept")
        return 2
    fail(f"unexpected {type(error).__name__}: {error}", "run it again with --debug, and report it")
    return 2


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tuner"
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    else:
        fail(error.format_message(), f"`{command} --help` shows what it takes")
    return 2
