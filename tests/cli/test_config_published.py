"""The published configuration: schema, reference and effective settings."""

from __future__ import annotations

import json
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
