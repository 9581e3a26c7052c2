"""The application: its commands, global options, and the exit codes of errors."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from inspect import cleandoc
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from search_spaces.errors import TunerError
from tuner import __version__
from tuner.cli import logs
from tuner.cli.command_context import begin_command, flag
from tuner.cli.console import discard_stdout, fail, secure, separate_stdout
from tuner.cli.logs import Level, command_log
from tuner.traces import keep_exit

#: Module and object of each command, and `app` of each group of commands, in the order of the help.
_COMMANDS = {
    "init": "config:init",
    "demo": "config:demo",
    "doctor": "doctor:doctor",
    "run": "run:run",
    "optimize": "optimize:optimize",
    "capture": "programs:capture",
    "spaces": "spaces:app",
    "bench": "bench:bench",
    "verify": "verify:verify",
    "status": "status:status",
    "runs": "status:list_runs",
    "show": "show:show",
    "trials": "trials:list_trials",
    "best": "best:best",
    "report": "report:report",
    "serve": "report:serve",
    "history": "history:history",
    "regressions": "history:regressions",
    "note": "morning_note:tell_note",
    "compare": "compare:compare",
    "tag": "stored_runs:tag",
    "forget": "stored_runs:forget",
    "prune": "stored_runs:prune",
    "export": "export:export",
    "promote": "promote:promote",
    "rollback": "promote:rollback",
    "import": "import_:import_",
    "check": "check:check",
    "restamp": "restamp:restamp",
    "apply": "programs:apply",
    "bundle": "bundle:bundle",
    "workers": "workers:app",
    "schedule": "schedule:app",
    "db": "database:app",
    "config": "config:app",
}
#: The panels of the help, by their first command.
_PANELS = {
    "init": "Start",
    "run": "Tune",
    "spaces": "One kernel",
    "status": "Results",
    "export": "Tables",
    "workers": "The farm",
}
#: Global options that take a value.
_WITH_VALUE = ("--log-level", "--log-file")
#: The variable through which a shell asks for completions.
_COMPLETES = "_TUNER_COMPLETE"


def _version(requested: bool) -> None:
    if requested:
        print(f"tuner {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, flag("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, flag("--debug", help="Show the traceback of an error.")] = False,
    log_level: Annotated[
        Level | None,
        typer.Option(
            "--log-level",
            metavar="LEVEL",
            help="The least severe log records, debug, info, warning or error: of --log-file (info "
            "by default), or of stderr (warning by default).",
            show_default=False,
        ),
    ] = None,
    log_file: Annotated[
        Path | None,
        typer.Option(
            "--log-file",
            help="Append log records to this file, those of workers included; JSON lines where it "
            "is named *.jsonl.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Tune GPU and CPU kernels on a farm and ship the winners as tables."""
    logs.current.level, logs.current.file = log_level, log_file
    logs.current.start()


def make_app(name: str | None = None) -> typer.Typer:
    """The application; with the name of a command, of this command alone.

    Each command's module is imported with it: the modules of all others would take most of the time
    of a short command.
    """
    made = typer.Typer(
        name="tuner",
        cls=_Group,
        help="Tune GPU and CPU kernels on a farm and ship the winners as tables.",
        epilog="Exit codes: 0 fine, 1 a finding, 2 usage, configuration or I/O, 130 interrupted.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(options)
    panel = ""
    for each in _COMMANDS if name not in _COMMANDS else [name]:
        panel = _PANELS.get(each, panel)
        module, _, attribute = _COMMANDS[each].partition(":")
        command = getattr(import_module(f"tuner.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            for known in command.registered_commands:
                known.cls = _Command
            made.add_typer(command, name=each, cls=_Group, rich_help_panel=panel)
        else:
            # What follows the program belongs to that program.
            given = {"allow_interspersed_args": False} if each in ("capture", "optimize") else None
            made.command(each, cls=_Command, context_settings=given, rich_help_panel=panel)(command)
    return made


def _without_types(parameters: list[Any]) -> list[Any]:
    """The parameters, with no type in the help of those that take no value."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


class _Group(TyperGroup):
    """A group of commands, whose help has no type of a flag."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Command(TyperCommand):
    """A command that refuses paths which are none, and whose help fills the terminal's lines."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        paragraphs = cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        has_empty = any(word == "" or word.endswith("=") for word in args)
        rest = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            for path in value if isinstance(value, list | tuple) else [value]:
                if isinstance(path, Path) and has_empty and path == Path():
                    raise TunerError(f"{name}: an empty path", "name a file or a folder")
                if isinstance(path, Path) and f"{path}".startswith("~"):
                    raise TunerError(
                        f"{name}: {path}: the shell knows no such home folder",
                        "write the whole path; ./~name is a file or a folder of that name",
                    )
        return rest


def main() -> None:
    """The console script."""
    # Imports make objects that stay: the usual number between collections costs them a tenth.
    gc.set_threshold(50_000)
    secure()
    if _find_command(sys.argv[1:]) not in ("apply", "capture"):  # they run programs of others
        separate_stdout()
    keep_exit()
    # The imports before this line were computing, so processor time is the time since the start.
    leave(invoke(sys.argv[1:], started_s=time.monotonic() - time.process_time()))


def invoke(arguments: Sequence[str], *, started_s: float | None = None) -> int:
    """Run one command line and return its exit code; every error is printed as two lines.

    started_s: when the command began, by `time.monotonic`; by default now.
    """
    begin_command(time.monotonic() if started_s is None else started_s)
    arguments = _global_options_first(arguments)
    debug = "--debug" in arguments
    try:
        with command_log():
            code = make_app(_find_command(arguments))(
                arguments, prog_name="tuner", standalone_mode=False
            )
        sys.stdout.flush()
    except BaseException as error:
        if debug:
            traceback.print_exception(error)
        return _exit_code(error)
    return code if isinstance(code, int) else 0


def _find_command(arguments: Sequence[str]) -> str | None:
    """The word after the global options; None where a shell asks for completions."""
    words = iter(arguments)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return None if _COMPLETES in os.environ else word
    return None


def _global_options_first(arguments: Sequence[str]) -> list[str]:
    """The line with `--debug`, `--log-level` and `--log-file` moved from anywhere to its front."""
    first: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in _WITH_VALUE:
            first += [word, *islice(words, 1)]
        elif word == "--debug" or word.startswith(tuple(f"{name}=" for name in _WITH_VALUE)):
            first.append(word)
        else:
            rest.append(word)
    return first + rest


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
        fail(error, "correct the cause and rerun the command; recorded results are kept")
        return 2
    fail(f"unexpected {type(error).__name__}: {error}", "rerun it with --debug and report it")
    return 2


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tuner"
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    else:
        fail(error.format_message(), f"`{command} --help` shows its arguments")
    return 2


def leave(code: int) -> NoReturn:
    """End the process as `sys.exit` does, but without taking the interpreter apart.

    That takes a third of a second with the libraries of a run loaded, and frees only what the
    system frees at once. Functions registered with `atexit` run, and streams are flushed. With a
    thread that must be waited for, this is `sys.exit`.
    """
    main = threading.main_thread()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not main):
        sys.exit(code)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the interpreter reports it
        sys.exit(code)
    os._exit(code)
