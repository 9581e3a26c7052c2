"""The context of a command: its settings, the store, the run it refers to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from search_spaces.errors import TunerError
from tuner.cli.completion import complete_runs
from tuner.cli.console import note

if TYPE_CHECKING:
    from results_db import Store
    from search_spaces.kernel import Kernel
    from tuner.settings.sections import Settings


def flag(*names: str, **options: Any) -> Any:
    """A `typer.Option` that takes no value. Its line in the help has no type."""
    return typer.Option(*names, metavar="", **options)


KernelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kernel",
        help="A kernel beyond the built-in ones and those of config.yaml, as file.py:object; "
        "may be repeated.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="TUNER_CONFIG",
        help="The configuration file; by default config.yaml in this folder.",
        show_default=False,
    ),
]
WorkloadsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        help="Only workloads with these dims, as 'M=32 dtype=float16'; may be repeated.",
    ),
]
#: Part of the folder into which Ray unpacks the `--working-dir` of a submitted job.
_JOB_FOLDER = "/runtime_resources/working_dir_files/"
_started_s = time.monotonic()
RunArgument = Annotated[
    str | None,
    typer.Argument(
        help="The run's number, tag, date or git revision; the latest run by default.",
        metavar="RUN",
        autocompletion=complete_runs,
    ),
]


def settings_of(
    config: Path | None, overrides: Mapping[str, object] | None = None
) -> tuple[Settings, Path]:
    """The settings and the folder their relative paths start from; also starts their log file."""
    from tuner.cli import logs
    from tuner.settings import load

    settings, base = load(config, overrides or {})
    logs.current.configure(settings.logging)
    return settings, base


def warn_of_job_folders(settings: Settings) -> None:
    """Warn of results inside the folder of a submitted Ray job, which Ray removes later."""
    # A run only reads `paths.priors`.
    written = settings.paths.model_dump(exclude={"priors"})
    places = {
        "database.url": settings.database.url,
        **{f"paths.{name}": place for name, place in written.items()},
    }
    lost = [name for name, place in places.items() if _JOB_FOLDER in place]
    if lost:
        variable = f"TUNER__{lost[0].replace('.', '__').upper()}"
        note(
            f"{', '.join(lost)}: inside the folder of this job, which Ray removes; set it to a "
            f"permanent place ({variable}=...)"
        )


def command_started_s() -> float:
    """The start of the present command, by `time.monotonic`."""
    return _started_s


def begin_command(started_s: float) -> None:
    """Note the start of a command, by `time.monotonic`."""
    global _started_s
    _started_s = started_s


@contextmanager
def store_of(settings: Settings, *, create: bool = False) -> Iterator[Store]:
    """The results database, open for the length of the block."""
    from results_db import Store

    with Store.open(settings.database.url, create=create) as store:
        yield store


def configured_kernels(
    settings: Settings, base: Path, more: Sequence[str] = ()
) -> dict[str, list[Kernel]]:
    """The kernels of the configuration that are no registered names, imported, by their names.

    more: further specs. A kernel that does not import is reported and left out.
    """
    from search_spaces import registry
    from tuner.campaign.range_workloads import read_line

    tasks = [task for plan in settings.campaigns.values() for task in plan.tasks]
    named = [*more, *settings.kernels, *(task.kernel for task in tasks)]
    specs = dict.fromkeys(spec for spec in named if ":" in spec)
    ranged = {task.kernel: task for task in tasks if task.ranges and task.workloads == "all"}
    found: dict[str, list[Kernel]] = {}
    for spec in specs:
        try:
            kernel = registry.load_undecided(spec, (str(base),))
            if spec in ranged:
                kernel, _ = read_line(ranged[spec], kernel, (str(base),))
        except TunerError as error:
            note(f"left out: {error.message}")
        else:
            found.setdefault(kernel.name, []).append(kernel)
    return found
