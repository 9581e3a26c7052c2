"""`tuner db`: upgrade, check and measure the results database."""

from __future__ import annotations

import typer

from tuner.base.inert_text import inert
from tuner.cli.command_context import ConfigOption, open_store, settings_of
from tuner.cli.console import Format, FormatOption, emit, note

app = typer.Typer(help="Upgrade, check and measure the results database.", no_args_is_help=True)


@app.command()
def upgrade(config: ConfigOption = None) -> None:
    """Bring the database to this version's schema; back it up first."""
    from results_db import migrate

    settings, _ = settings_of(config)
    before, after = migrate.upgrade(settings.database.url)
    note(f"schema {after}" + ("" if before == after else f", was {before or 'absent'}"))


@app.command()
def check(config: ConfigOption = None) -> None:
    """Check the integrity of the database; exits with 1 and prints one line for each finding."""
    with open_store(config) as store:
        findings = list(store.check())
    for finding in findings:
        print(inert(finding))
    if findings:
        raise typer.Exit(1)
    note("no findings")


@app.command()
def stats(config: ConfigOption = None, style: FormatOption = Format.TABLE) -> None:
    """Count the rows of the database."""
    with open_store(config) as store:
        stats = store.stats()
    rows = [{"what": name, "value": stats[name]} for name in ("revision", "head", "file_bytes")]
    rows += [{"what": f"rows of {name}", "value": n} for name, n in stats["rows"].items()]
    rows += [{"what": f"trials {name}", "value": n} for name, n in stats["trials"].items()]
    emit(rows, ("what", "value"), style)
