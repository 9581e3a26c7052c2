"""What most commands start with: the settings, the store, the run that is meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError
from tuner.cli.console import note

if TYPE_CHECKING:
    from results_db import Store
    from results_db.records import RunInfo
    from tuner.settings.models import Settings

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="TUNER_CONFIG",
        help="The configuration file; config.yaml in this folder by default.",
        show_default=False,
    ),
]
#: Where Ray unpacks what `ray job submit --working-dir` has sent.
_PASSING = "/runtime_resources/working_dir_files/"
#: What every database takes as an integer.
LARGEST = 2**63 - 1
RunArgument = Annotated[
    int | None,
    typer.Argument(
        help="The run's number; the latest run by default.", metavar="RUN", min=1, max=LARGEST
    ),
]


def settings_of(
    config: Path | None, overrides: Mapping[str, object] | None = None
) -> tuple[Settings, Path]:
    """The settings and the folder their relative paths start from."""
    from tuner.settings import load

    return load(config, overrides or {})


def warn_of_passing_folders(settings: Settings) -> None:
    """Say what would be written into a submitted job's folder, which Ray removes after a while."""
    places = {
        "database.url": settings.database.url,
        **{f"paths.{name}": place for name, place in settings.paths.model_dump().items()},
    }
    lost = [name for name, place in places.items() if _PASSING in place]
    if lost:
        variable = f"TUNER__{lost[0].replace('.', '__').upper()}"
        note(
            f"{', '.join(lost)}: in this job's own folder, which Ray removes; set what should last "
            f"to a place outside ({variable}=...)"
        )


@contextmanager
def store_of(settings: Settings, *, create: bool = False) -> Iterator[Store]:
    """The results database, opened for as long as the block lasts."""
    from results_db import Store

    with Store.open(settings.database.url, create=create) as store:
        yield store


def pick_run(store: Store, run_id: int | None) -> RunInfo:
    """The run of that number, or the latest; raises `TunerError` where there is none."""
    if run_id is not None:
        return store.run(run_id)
    latest = store.last_run()
    if latest is None:
        raise TunerError("no run is on record yet", "start one with `tuner run quickstart`")
    return latest
