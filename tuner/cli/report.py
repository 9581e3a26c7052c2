"""`tuner report`: write the HTML report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from search_spaces.inert_text import inert
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    flag,
    pick_run,
    settings_of,
    store_of,
)
from tuner.cli.console import note


def report(
    run: RunArgument = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The HTML file to write.")
    ] = None,
    show: Annotated[bool, flag("--open", help="Open it in the browser.")] = False,
    config: ConfigOption = None,
) -> None:
    """Write the HTML report of a run."""
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        import reports

        info = pick_run(store, run)
        path = output or Path(settings.paths.results) / "report.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        reports.write(store, info.run_id, path)
    print(inert(path))
    if show:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            note("no browser could be started")
