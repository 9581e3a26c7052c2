"""`tuner init`, `tuner demo` and `tuner config`: a first campaign, and config.yaml."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.errors import NothingStoredError
from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.cli.command_context import ConfigOption, command_started_s, flag, settings_of, store_of
from tuner.cli.console import Format, FormatOption, fail, note

if TYPE_CHECKING:
    from tuner.settings.sections import Settings

#: File names and their templates.
FILES = {"config.yaml": "config.yaml", "my_kernel.py": "my_kernel.py.txt"}


def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write to.", metavar="DIR")] = Path(),
    force: Annotated[bool, flag("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a commented config.yaml and a working example kernel."""
    targets = {folder / name: template for name, template in FILES.items()}
    existing = [path for path in targets if path.exists()]
    if existing and not force:
        names = ", ".join(f"{path}" for path in existing)
        raise TunerError(f"{names} already exists", "add --force to replace it")
    for path, template in targets.items():
        _copy(template, path)
        print(inert(path))
    there = "" if folder == Path() else f"cd {folder} && "
    note(f"next: {there}tuner run first --dry-run, then {there}tuner run first")


def _copy(template: str, path: Path) -> None:
    from search_spaces.atomic_file import write_output

    content = files("tuner").joinpath("templates", template).read_bytes()
    write_output(path, content, "name another folder, or free space or get permission there")


app = typer.Typer(help="Check, show and describe config.yaml.", no_args_is_help=True)


@app.command()
def check(
    kernels: Annotated[
        bool,
        flag(
            "--kernels",
            help="Also import the kernels, check their workloads and open the database.",
        ),
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Check config.yaml; exits with 2 and prints one line for each mistake."""
    from tuner.settings import CONFIG_NAME, ConfigError

    try:
        settings, base = settings_of(config)
    except ConfigError as error:
        for problem in error.problems[1:]:
            fail(problem)
        raise
    problems = list(_find_problems(settings, base)) if kernels else []
    for place, found in problems:
        fail(f"{place}: {found.message}", found.hint)
    if problems:
        raise typer.Exit(2)
    count = len(settings.campaigns)
    file = config or Path(CONFIG_NAME)
    name = f"{file}" if file.exists() else f"no {file}, the defaults"
    note(f"{name}: fine, {count} campaign{'' if count == 1 else 's'}")


def _find_problems(settings: Settings, base: Path) -> Iterator[tuple[str, TunerError]]:
    """The first mistake of each task and kernel, and that of the database, with their keys."""
    from search_spaces import registry
    from tuner.campaign.declaration_check import check_declarations
    from tuner.campaign.tasks import requested_tasks

    paths, extra = (f"{base.resolve()}",), []
    for number, spec in enumerate(settings.kernels):
        try:
            registry.load_undecided(spec, paths)
            extra.append(spec)
        except TunerError as error:
            yield f"kernels[{number}]", error
    for name, campaign in settings.campaigns.items():
        for number, line in enumerate(campaign.tasks):
            alone = campaign.model_copy(update={"tasks": [line]})
            try:
                check_declarations(requested_tasks(alone, extra=extra, paths=paths))
            except TunerError as error:
                yield f"campaigns.{name}.tasks[{number}]", error
    try:
        with suppress(NothingStoredError), store_of(settings):  # it need not exist yet
            pass
    except TunerError as error:
        yield "database.url", error


@app.command()
def show(config: ConfigOption = None) -> None:
    """Print the effective settings, with defaults and environment, as YAML."""
    from ruamel.yaml import YAML

    from results_db.masking import mask_passwords

    settings, _ = settings_of(config)
    data = settings.model_dump(mode="json")
    data["database"]["url"] = mask_passwords(data["database"]["url"])
    if data["notify"]["webhook"]:
        data["notify"]["webhook"] = "***"
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style, writer.allow_unicode = False, False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(data, sys.stdout)


@app.command()
def schema() -> None:
    """Print the JSON Schema of config.yaml, for editors."""
    print(schema_text(), end="")


def schema_text() -> str:
    """The JSON Schema of config.yaml as it is committed in docs/config.schema.json."""
    from tuner.settings.sections import Settings

    described = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Settings.model_json_schema(),
        "title": "tuner config.yaml",
    }
    return json.dumps(described, indent=2, sort_keys=True) + "\n"


def demo(
    folder: Annotated[Path, typer.Argument(help="The folder to write to.", metavar="DIR")] = Path(
        "tuner-demo"
    ),
    fresh: Annotated[bool, flag("--fresh", help="Replay what the folder has results for.")] = False,
    quiet: Annotated[
        bool, flag("--quiet", "-q", help="Show no progress and no table of winners.")
    ] = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Tune 16 workloads whose searches were recorded on an NVIDIA H200; no GPU is needed.

    DIR gets a config.yaml, the database and the report.
    """
    config = folder / "config.yaml"
    if not config.exists():
        _copy("demo.yaml", config)
    # The demo leaves a database and a cluster that the environment names alone.
    overrides = {
        "database.url": f"sqlite:///{folder.absolute() / 'results' / 'tuner.db'}",
        "pool.kind": "local",
    }
    settings, base = settings_of(config, overrides)
    from tuner.campaign import RunOptions
    from tuner.cli.run import run_and_print

    options = RunOptions(fresh=fresh, export=False, started_s=command_started_s(), base=base)
    run_and_print(settings, "demo", options, style, quiet=quiet)
    note(f"next: cd {folder} && tuner best, or `tuner show`, `tuner trials`, `tuner run --fresh`")
