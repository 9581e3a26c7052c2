"""`tuner report`: write the HTML report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    flag,
    settings_of,
    store_of,
)
from tuner.cli.console import note
from tuner.views.runs import pick_run


def report(
    run: RunArgument = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The HTML file to write; with --all, the folder."),
    ] = None,
    every: Annotated[
        bool, flag("--all", help="Write the missing reports of all runs, and an index of them.")
    ] = False,
    show: Annotated[bool, flag("--open", help="Open it in the browser.")] = False,
    config: ConfigOption = None,
) -> None:
    """Write the HTML report of a run, or those of all runs into a folder."""
    if every and run is not None:
        raise TunerError("--all takes no run", "leave one of them out")
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        import reports
        from reports.folder import write_reports

        results = Path(settings.paths.results)
        if every:
            path = write_reports(store, output or results / "reports")
        else:
            path = reports.write(
                store, pick_run(store, run).run_id, output or results / "report.html"
            )
    print(inert(path))
    if show:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            note("no browser could be started")
