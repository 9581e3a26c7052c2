"""`tuner config`: check, show and describe config.yaml."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from tuner.cli.command_context import ConfigOption, settings_of
from tuner.cli.console import fail, note

app = typer.Typer(help="Check, show and describe config.yaml.", no_args_is_help=True)


@app.command()
def check(config: ConfigOption = None) -> None:
    """Check config.yaml; exits with 2 and prints one line for each mistake."""
    from tuner.settings import CONFIG_NAME, ConfigError

    try:
        settings, _ = settings_of(config)
    except ConfigError as error:
        for problem in error.problems[1:]:
            fail(problem)
        raise
    count = len(settings.campaigns)
    file = config or Path(CONFIG_NAME)
    name = f"{file}" if file.exists() else f"no {file}, the defaults"
    note(f"{name}: fine, {count} campaign{'' if count == 1 else 's'}")


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
