"""The published configuration: schema, reference and effective settings."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import jsonschema
import yaml

from tuner.cli.config import schema_text
from tuner.settings import load

ROOT = Path(__file__).parents[2]


def test_the_committed_schema_is_current_and_takes_the_default_configuration():
    path = ROOT / "docs" / "config.schema.json"
    assert path.read_text() == schema_text(), "run `tuner config schema > docs/config.schema.json`"
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for file in (ROOT / "config.yaml", ROOT / "tuner" / "templates" / "config.yaml"):
        validator.validate(yaml.safe_load(file.read_text()))
    assert not validator.is_valid({"version": 1, "pool": {"kidn": "ray"}})


def test_the_default_configuration_is_fine_and_has_its_campaigns(tuner):
    result = tuner("config", "check", "--config", ROOT / "config.yaml")
    assert result.code == 0
    found, _ = load(ROOT / "config.yaml")
    assert {"quickstart", "nightly"} <= set(found.campaigns)
    assert found.campaigns["nightly"].schedule is not None
    assert found.campaigns["quickstart"].schedule is None


def test_the_reference_describes_every_key():
    text = (ROOT / "docs" / "configuration.md").read_text()
    schema = json.loads(schema_text())
    sections = [schema, *schema["$defs"].values()]
    keys = {key for section in sections for key in section.get("properties", {})}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_the_wall_time_of_a_run_is_known_in_three_files():
    """The campaign's key, the option of the command, and the run that keeps to it."""
    word = re.compile(r"(?<![\w-])(--)?wall(_s)?(?![\w-])")
    packages = ("search_spaces", "workers", "results_db", "reports", "tuner")
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    found = {str(p.relative_to(ROOT)) for p in paths if word.search(" ".join(words_of(p)))}
    assert found == {"tuner/settings/sections.py", "tuner/cli/run.py", "tuner/campaign/run.py"}


def words_of(path):
    """Names and texts of a module's code, without its docstrings."""
    tree = ast.parse(path.read_text())
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in set(ast.walk(tree)) - prose:
        yield from (
            value
            for name in ("id", "attr", "arg", "name", "value")
            if isinstance(value := getattr(node, name, None), str)
        )
