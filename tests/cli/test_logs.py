"""`--log-level`, `--log-file` and the section `logging`, on real commands and campaigns."""

from __future__ import annotations

import json
import logging
import re

import pytest
from bench_samples import recording
from cli_samples import replay_campaign

from search_spaces import log_file

QUICK = "budget: {trials: 4}"
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) +([\w.]+) \[([^\]]+)\] .+"
)


def test_a_run_writes_its_states_as_one_line_each(tuner, folder):
    recording(folder)
    replay_campaign(folder, "space.json", limits=QUICK)
    result = tuner("run", "c", "--no-report", "--quiet", "--log-file", "run.log")
    assert result.code == 0, result.err
    found = [LINE.fullmatch(line) for line in (folder / "run.log").read_text().splitlines()]
    assert all(found)
    loggers = {match[2] for match in found if match}
    assert {"tuner.campaign.run", "tuner.campaign.run_record"} <= loggers
    assert "DEBUG" not in {match[1] for match in found if match}
    assert "info:" not in result.err


def test_json_lines_have_all_fields_and_the_level_applies_to_the_file(tuner, folder):
    recording(folder)
    replay_campaign(folder, "space.json", limits=QUICK)
    options = ("--log-file", "run.jsonl", "--log-level=debug")
    assert tuner(*options, "run", "c", "--no-report", "--quiet").code == 0
    rows = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    assert {"time", "level", "logger", "process", "message"} == set(rows[0])
    assert "DEBUG" in {row["level"] for row in rows}
    assert any(row["process"].startswith("tuner:") for row in rows)


def test_workers_write_to_the_same_file(tuner, folder, monkeypatch):
    """A worker process joins the file that the environment of its parent names."""
    from workers.processes.fork_server import ForkServer
    from workers.processes.supervised_child import SupervisedChild

    monkeypatch.setenv(log_file.FILE_VARIABLE, f"{folder / 'all.jsonl'}")
    monkeypatch.setenv(log_file.LEVEL_VARIABLE, f"{logging.INFO}")
    (folder / "chatty.py").write_text(
        "import logging\n"
        "class Chatty:\n"
        "    def __init__(self, cache_dir):\n"
        "        self.cache_dir = cache_dir\n"
        "    def say(self, text):\n"
        "        logging.getLogger('workers.measure').info('%s', text)\n"
        "        return True\n"
    )
    server = ForkServer("runner 7", paths=(f"{folder}",))
    child = SupervisedChild("chatty:Chatty", server=server, own_server=True, name="runner 7")
    try:
        assert child.request("say", "a\nb\x1b[31m", timeout_s=60.0)
    finally:
        child.close()
    (line,) = (folder / "all.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["process"].startswith("runner 7:")
    assert row["message"] == "a\nb\x1b[31m"
    assert "\x1b" not in line


def test_config_yaml_names_the_file_and_the_command_line_takes_precedence(tuner, folder):
    recording(folder)
    replay_campaign(
        folder, "space.json", limits=QUICK, more="logging: {level: error, file: logs/farm.log}\n"
    )
    (folder / "logs").mkdir()
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    assert (folder / "logs" / "farm.log").read_text() == ""
    assert tuner("db", "stats", "--log-level", "debug", "--log-file", "mine.log").code == 0
    assert (folder / "mine.log").exists()
    assert (folder / "logs" / "farm.log").read_text() == ""


def test_stderr_shows_warnings_in_one_inert_line_each(tuner, folder, capsys):
    from tuner.cli.logs import command_log

    with command_log() as log:
        log.start()
        logging.getLogger("workers.pools").info("unseen")
        logging.getLogger("workers.pools").warning("lost\x1b[31m\nat postgresql://me:s3cret@h/d")
    assert capsys.readouterr().err == ("warning: lost\\x1b[31m\\nat postgresql://me:***@h/d\n")
    with command_log() as log:
        log.start()
    assert logging.getLogger("workers").level == logging.NOTSET


def test_hostile_text_stays_inert_in_a_text_file(folder):
    handler = log_file.LogFile(folder / "x.log", "tuner")
    logger = logging.Logger("tuner.test")
    logger.addHandler(handler)
    try:
        raise ValueError("bad\x1b[31m\r\n2026-01-01T00:00:00.000Z INFO fake [x] line")
    except ValueError:
        logger.exception("failed %s", "\u202eevil")
    handler.close()
    (line,) = (folder / "x.log").read_text().splitlines()
    assert LINE.fullmatch(line)
    assert "\\u202eevil" in line
    assert "ValueError: bad\\x1b[31m\\r\\n2026" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--log-level", "loud", "db", "stats"), "'loud' is not one of 'debug', 'info'"),
        (("db", "stats", "--log-file", "no/such.log"), "such.log cannot be written: No such file"),
        (("db", "stats", "--log-file", "."), "cannot be written: Is a directory"),
    ],
)
def test_bad_options_are_one_line(tuner, arguments, message):
    result = tuner(*arguments)
    assert result.code == 2
    assert message in result.error
    assert result.hint
