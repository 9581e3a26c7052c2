"""The published configuration: schema, reference and effective settings."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import yaml

from search_spaces.records import Device, Toolchain
from tuner.campaign.tasks import assign_devices, requested_tasks
from tuner.cli.config import schema_text
from tuner.settings import load
from workers import device
from workers.job_records import WorkerInfo

ROOT = Path(__file__).parents[2]
sys.path.insert(0, f"{ROOT / 'scripts'}")

import site_hooks  # noqa: E402


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


def test_the_quickstart_replays_recordings_only_without_a_gpu():
    found, base = load(ROOT / "config.yaml")
    tasks = requested_tasks(found.campaigns["quickstart"], paths=(f"{base}",))
    kinds = ("cpu", "simulated")
    here = [WorkerInfo(kind, Device(kind, kind, kind), Toolchain()) for kind in kinds]
    absent, notes = assign_devices(tasks, here)
    assert [task.device.kind for task in absent].count("simulated") == 4
    assert [task.compile_only for task in absent].count(True) == 2
    assert notes == []
    gpu = WorkerInfo("gpu", replace(device.offline("cuda:90"), name="a GPU"), Toolchain())
    scheduled, notes = assign_devices(tasks, [*here, gpu])
    assert [task.device.kind for task in scheduled] == ["cpu", "cpu", "cuda", "cuda"]
    assert not any(task.compile_only for task in scheduled)
    assert notes == []


def test_the_example_of_init_is_correct_in_every_config(tuner, folder):
    assert tuner("init").code == 0
    result = tuner("run", "first", "--no-report", "--quiet")
    assert result.code == 0, result.err
    assert "38 trials (0 failed) over 2 tasks" in result.out
    assert "0 not checked" in result.out or "2 with a winner" in result.out


def test_the_reference_describes_every_key():
    """Each key of the schema has a row with a meaning, and a section that it names exists."""
    assert "<!-- generated: configuration -->" in (ROOT / "docs" / "configuration.md").read_text()
    text = site_hooks.configuration()
    schema = json.loads(schema_text())
    sections = [schema, *schema["$defs"].values()]
    objects = [each for part in sections for each in (part, *part.get("anyOf", ()))]
    keys = [key for each in objects for key in each.get("properties", {})]
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert sorted(key for key, _ in rows) == sorted(keys)
    assert [key for key, meaning in rows if not meaning.strip()] == []
    headings = {name.lower() for name in re.findall(r"^### (\w+)", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= headings


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
