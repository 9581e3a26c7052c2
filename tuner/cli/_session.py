"""What most commands start with: the settings, the store, the run that is meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError

if TYPE_CHECKING:
    from results_db import Store
    from results_db.records import RunInfo
    from tuner.config import Settings

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
