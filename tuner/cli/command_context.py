"""What commands share: options, completions, settings, the store, the run they refer to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.cli.console import note
from tuner.traces import record
from tuner.views.runs import LARGEST

if TYPE_CHECKING:
    from results_db import Store
    from search_spaces.kernel import Kernel
    from tuner.settings.sections import Settings


#: A word that a shell completes, and what it stands for.
Completion: TypeAlias = tuple[str, str]
#: Words that every shell takes as they are.
_WORD = re.compile(r"[\w.,:/+@=-]+")
#: Seconds that a shell waits for the database, and the newest runs, which are completed.
_ANSWER_S, _RUNS = 2.0, 50


def _completes(
    listed: Callable[[Settings], Iterable[Completion]],
) -> Callable[[typer.Context], list[Completion]]:
    """What a shell completes, nothing where config.yaml or the database is missing or broken."""

    def complete(ctx: typer.Context) -> list[Completion]:
        from tuner.settings import load

        try:
            config = ctx.params.get("config") or ctx.params.get("settings_file")
            found = list(listed(load(config)[0]))
        except Exception:  # a shell shows what is printed here in the middle of a line
            return []
        # A stored name may hold what a terminal or a shell obeys.
        return [(word, inert(text)) for word, text in found if _WORD.fullmatch(word)]

    return complete


@_completes
def complete_campaigns(settings: Settings) -> Iterator[Completion]:
    """The campaigns of config.yaml."""
    for name, campaign in settings.campaigns.items():
        yield name, campaign.description


@_completes
def complete_kernels(settings: Settings) -> Iterator[Completion]:
    """The kernels known by name, and those of config.yaml."""
    from search_spaces import registry

    tasks = (task for campaign in settings.campaigns.values() for task in campaign.tasks)
    specs = [*settings.kernels, *(task.kernel for task in tasks)]
    for name in dict.fromkeys([*registry.available(), *filter(None, specs)]):
        yield name, ""


@_completes
def complete_exporters(settings: Settings) -> Iterator[Completion]:
    """The names of exporters."""
    from tuner.tables import available

    for name in available():
        yield name, ""


@_completes
def complete_runs(settings: Settings) -> Iterator[Completion]:
    """The numbers of the newest runs, and their tags."""
    from results_db import Store

    with Store.open(settings.database.url, create=False, answer_s=_ANSWER_S) as store:
        for run in store.runs(limit=_RUNS):
            described = f"{run.campaign}, {run.status}"
            yield f"{run.run_id}", described
            if run.tag:
                yield run.tag, f"run {run.run_id} of {described}"


def flag(*names: str, **options: Any) -> Any:
    """A `typer.Option` that takes no value. Its line in the help has no type."""
    return typer.Option(*names, metavar="", **options)


def storable(value: Any) -> Any:
    """A number or numbers of an option, if every database takes them."""
    for each in value if isinstance(value, list) else [value]:
        if each is not None and each > LARGEST:
            raise typer.BadParameter(f"{each} is more than {LARGEST}")
    return value


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
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write what every process did when to FILE, for ui.perfetto.dev.",
        show_default=False,
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
def open_store(config: Path | None) -> Iterator[Store]:
    """The results database of the settings, open for the length of the block."""
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        yield store


@contextmanager
def store_of(settings: Settings, *, create: bool = False) -> Iterator[Store]:
    """The results database, open for the length of the block."""
    from results_db import Store

    with Store.open(settings.database.url, create=create) as store:
        yield store


def list_run_kernels(store: Store, base: Path) -> list[str]:
    """The kernels that runs were of without a campaign, as file.py:object; no missing files."""
    from search_spaces import registry

    specs = dict.fromkeys(run.campaign for run in store.runs(limit=None) if ":" in run.campaign)
    return [spec for spec in specs if registry.place_of(spec, (f"{base}",)) is not None]


def configured_kernels(
    settings: Settings, base: Path, more: Sequence[str] = ()
) -> dict[str, list[Kernel]]:
    """The kernels of the configuration that are no registered names, imported, by their names.

    more: further specs, such as those of `list_run_kernels`. A kernel that does not import is
    reported and left out.
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
            alike = found.setdefault(kernel.name, [])
            if all(kernel.spec != each.spec for each in alike):
                alike.append(kernel)
    return found


@contextmanager
def traced_command(path: Path | None, name: str) -> Iterator[None]:
    """Record a command into a trace file, if there is a path, and name the file on stderr."""
    with record(path, name):
        yield
    if path is not None:
        note(f"trace: {inert(path)} (open it in https://ui.perfetto.dev)")
