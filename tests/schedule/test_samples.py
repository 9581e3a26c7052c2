"""The sample files of examples/schedules are valid and call existing commands."""

from __future__ import annotations

import configparser
import contextlib
import functools
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tuner.cli.application import invoke
from tuner.schedule.due import check

FOLDER = Path(__file__).parents[2] / "examples" / "schedules"


def ini(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((FOLDER / name).read_text())
    return parser


def document(name: str) -> dict:
    return yaml.safe_load((FOLDER / name).read_text())


def assert_known(command: str) -> None:
    """The tuner command in a line exists, with the options it is given."""
    found = re.findall(r"(?:^|[/ ])tuner((?: [a-z-]+)+)", command)
    assert found, command
    arguments = found[-1].split()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert invoke([*arguments, "--help"]) == 0, out.getvalue()
    for option in (word for word in arguments if word.startswith("--")):
        assert option in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


def test_crontab_lines_are_cron_lines():
    lines = [
        line
        for line in (FOLDER / "crontab").read_text().splitlines()
        if line and not line.startswith("#") and not re.match(r"^[A-Z]+=", line)
    ]
    assert lines
    for line in lines:
        fields = line.split(maxsplit=5)
        check(" ".join(fields[:5]))
        assert "%" not in fields[5]
        assert_known(fields[5])


def test_systemd_units():
    service, timer = ini("tuner.service"), ini("tuner.timer")
    assert service["Service"]["Type"] == "oneshot"
    assert_known(service["Service"]["ExecStart"])
    assert timer["Install"]["WantedBy"] == "timers.target"
    if shutil.which("systemd-analyze"):
        calendar = timer["Timer"]["OnCalendar"]
        subprocess.run(["systemd-analyze", "calendar", calendar], check=True, capture_output=True)


def test_cronjob_submits_a_tick():
    spec = document("cronjob-rayjob.yaml")["spec"]
    check(spec["schedule"], spec["timeZone"])
    assert spec["concurrencyPolicy"] == "Forbid"
    (container,) = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (script,) = container["args"]
    assert "ray job submit" in script
    found = re.search(r"--runtime-env-json '([^']*)'", script)
    assert found is not None
    assert json.loads(found.group(1))["env_vars"]
    assert_known(script.split(" -- ")[1])


def test_raycronjob_says_that_it_is_alpha():
    text = (FOLDER / "raycronjob.yaml").read_text()
    assert "ALPHA" in text
    spec = yaml.safe_load(text)["spec"]
    check(spec["schedule"], spec["timeZone"])
    assert_known(spec["jobTemplate"]["entrypoint"])
    assert yaml.safe_load(spec["jobTemplate"]["runtimeEnvYAML"])["env_vars"]


# -- schemas, which `reduce_schema.py` has reduced from those of KubeRay and Grafana ---------------
def reject(kind: str, sample: object) -> str:
    """What a schema of `sample_schemas.json` says against a document; empty for nothing."""
    schema = json.loads(Path(__file__).with_name("sample_schemas.json").read_text())[kind]
    return "; ".join(error.message for error in Draft202012Validator(schema).iter_errors(sample))


def sample(name: str) -> dict:
    return yaml.safe_load((FOLDER.parent / name).read_text())


SCHEMAS = {
    "RayCronJob": "schedules/raycronjob.yaml",
    "CronJob": "schedules/cronjob-rayjob.yaml",
    "dashboard": "monitoring/grafana.json",
}


def test_every_manifest_has_a_schema():
    manifests = {p.name for p in FOLDER.glob("*.yaml")}
    assert manifests == {Path(name).name for name in SCHEMAS.values() if name.endswith(".yaml")}


@pytest.mark.parametrize(("kind", "name"), SCHEMAS.items())
def test_samples_have_the_fields_of_their_schema(kind, name):
    assert reject(kind, sample(name)) == ""


def test_the_cluster_option_of_the_prose_has_the_fields_of_its_schema():
    (option,) = re.findall(
        r"`authOptions: (\{.*?\})`", (FOLDER.parents[1] / "docs" / "pools.md").read_text()
    )
    document = sample(SCHEMAS["RayCronJob"])
    document["spec"]["jobTemplate"]["rayClusterSpec"]["authOptions"] = yaml.safe_load(option)
    assert reject("RayCronJob", document) == ""


@pytest.mark.parametrize(
    ("kind", "place", "value", "printed"),
    [
        ("RayCronJob", "spec.timezone", "Etc/UTC", "'timezone' was unexpected"),
        ("RayCronJob", "spec.jobTemplate.shutdownAfterJobFinishes", "yes", "of type 'boolean'"),
        ("RayCronJob", "spec.jobTemplate.rayClusterSpec.authOptions.mode", "none", "not one of"),
        ("RayCronJob", "spec.jobTemplate.rayClusterSpec.headGroupSpec.template", None, "'object'"),
        ("CronJob", "spec.jobTemplate.spec.template.spec.container", [], "was unexpected"),
        ("CronJob", "spec.schedule", 5, "of type 'string'"),
        ("dashboard", "panel", [], "was unexpected"),
        ("dashboard", "time", {"from": "now-7d"}, "'to' is a required property"),
    ],
)
def test_a_wrong_field_is_found(kind, place, value, printed):
    document = sample(SCHEMAS[kind])
    *path, last = place.split(".")
    functools.reduce(dict.__getitem__, path, document)[last] = value
    assert printed in reject(kind, document)


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_samples_hold_no_passwords(path):
    assert not re.search(r"://[^:/\s]+:(?!password@)[^@\s]+@", path.read_text())
