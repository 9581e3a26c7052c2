"""The sample files of examples/schedules are valid and call existing commands."""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

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


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_samples_hold_no_passwords(path):
    assert not re.search(r"://[^:/\s]+:(?!password@)[^@\s]+@", path.read_text())
