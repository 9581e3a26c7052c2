"""Bad input through the real command line: one clear line, a remedy, the right exit code."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cli_samples import campaign_file, fill, kernel_file


def refused(result, *words: str, code: int = 2) -> None:
    assert result.code == code, result.err
    for word in words:
        assert word in result.error
    assert result.hint
    assert result.out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["promote", "1", "--to", ""], "to: an empty path"),
        (["export", "--output="], "output: an empty path"),
        (["schedule", "list", "--config", ""], "config: an empty path"),
        (["export", "-o", "~nosuchuser/x"], "output: ~nosuchuser/x: the shell knows no such home"),
        (["compare", "1", ""], "no run has the tag ''"),
        (["status", f"{10**23}"], f"there is no run {10**23}"),
        (["show", f"{10**23}/1"], f"there is no run {10**23}"),
        (["status", "\u0661"], "no run has the tag '\u0661'"),
        (["status", "--config", "pipe.yaml"], "pipe.yaml is a pipe, not a file"),
        (["status", "--config", "home.yaml"], "paths.tables: ~nosuchuser/x: no such home folder"),
    ],
)
def test_texts_that_name_nothing(tuner, folder, url, arguments, words):
    fill(url)
    os.mkfifo("pipe.yaml")
    Path("home.yaml").write_text("version: 1\npaths: {tables: ~nosuchuser/x}\n")
    before = sorted(os.listdir(folder))
    refused(tuner(*arguments), words)
    assert sorted(os.listdir(folder)) == before


def test_what_c_code_prints_does_not_reach_stdout(folder):
    spec = kernel_file(folder, header="import os; os.write(1, b'from C')")
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "spaces", "show", spec, "-f", "json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)
    assert "from C" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["bench", "softmax", "--target", "GPU"], ["verify", "softmax", "--target", "gpu:90"]],
)
def test_a_word_for_a_target_that_is_none_says_which_is_meant(tuner, arguments):
    refused(tuner(*arguments), "did you mean 'cuda'")


@pytest.mark.parametrize("wall", ["soon", "-5s", "0", "inf", "nan", ""])
def test_a_wall_time_that_is_none(tuner, folder, wall):
    campaign_file(folder, kernel_file(folder))
    refused(tuner("run", "c", "--wall", wall), "--wall")


def test_no_configuration_here(tuner):
    result = tuner("run", "quickstart")
    refused(result, "there are no campaigns")
    assert "tuner init" in result.hint


def test_a_kernel_that_does_not_import(tuner, folder):
    campaign_file(folder, kernel_file(folder, "broken.py", header="import no_such_package"))
    result = tuner("run", "c", "--dry-run")
    refused(result, "broken.py:Small", "no_such_package")
    campaign_file(folder, "nowhere.py:Small")
    refused(tuner("run", "c", "--dry-run"), "nowhere.py")
    campaign_file(folder, "sofmax")
    refused(tuner("run", "c", "--dry-run"), "unknown kernel 'sofmax'", "softmax")


@pytest.mark.parametrize(
    ("body", "line", "options", "words"),
    [
        ("return False", "", [], ["small", "odd"]),
        ("return 1 / 0", "", [], ["odd", "ZeroDivisionError"]),
        ("", "workloads: [{n: -1}]", [], ["n=-1", "n must be positive"]),
        ("", "targets: [cuda]", [], ["small", "cpu"]),
        ("", "", ["--kernel", "matmul"], ["--kernel"]),
    ],
    ids=["empty space", "constraint raises", "workload", "target", "filter"],
)
def test_a_campaign_that_cannot_run(tuner, folder, body, line, options, words):
    campaign_file(folder, kernel_file(folder, body=body), line)
    refused(tuner("run", "c", "--dry-run", *options), *words)


def test_databases_that_cannot_be_used(tuner, folder, monkeypatch):
    def use(url: object) -> None:
        monkeypatch.setenv("TUNER__DATABASE__URL", f"{url}")

    use(f"sqlite:///{folder / 'none.db'}")
    refused(tuner("status"), "none.db", "there is no database")
    (folder / "text.db").write_text("this is text, and long enough to have a header" * 40)
    use(f"sqlite:///{folder / 'text.db'}")
    refused(tuner("status"), "text.db", "not a database")
    use(f"sqlite:///{folder}")
    refused(tuner("status"), "is a folder")
    use("mysql://host/db")
    refused(tuner("status"), "mysql")
    use("not a url")
    refused(tuner("status"), "not a database URL")


def test_a_database_of_a_newer_schema(tuner, folder):
    fill(f"sqlite:///{folder / 'results' / 'tuner.db'}")
    with sqlite3.connect(folder / "results" / "tuner.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    refused(tuner("status"), "9999", "newer")
    refused(tuner("db", "upgrade"), "9999", "newer")
    assert tuner("doctor").code == 1


def test_a_run_that_does_not_exist(tuner, folder):
    fill(f"sqlite:///{folder / 'results' / 'tuner.db'}")
    for command in (["status"], ["report"], ["export"], ["compare", 1], ["show"], ["trials"]):
        result = tuner(*command, 99)
        refused(result, "there is no run 99, the newest is 1")
        assert "`tuner status --all` lists the runs" in result.hint
    refused(tuner("forget", "--run", 99), "there is no run 99, the newest is 1")


@pytest.mark.parametrize("database", ["absent", "empty"])
@pytest.mark.parametrize(
    "command", ["status", "status 1", "report", "export", "compare 1 2", "show 1", "trials", "best"]
)
def test_where_there_is_no_run_it_is_said_how_to_begin(tuner, database, command):
    if database == "empty":
        assert tuner("db", "upgrade").code == 0
    result = tuner(*command.split())
    if command == "best":
        assert (result.code, result.out, len(result.err.splitlines())) == (1, "", 1)
    else:
        refused(result, "no runs here")
    for word in ("`tuner init`", "`tuner run`"):
        assert word in result.err.splitlines()[-1]


def test_a_kernel_without_results_names_the_nearest(tuner, url):
    fill(url)
    assert "did you mean 'softmax'" in tuner("forget", "--kernel", "softmx").err
    # One that is known by name, though nothing of it is stored.
    assert "did you mean 'layer_norm'" in tuner("best", "layernorm").err


def test_a_disk_that_is_full_while_a_report_is_written(tuner, folder):
    fill(f"sqlite:///{folder / 'results' / 'tuner.db'}")
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    result = tuner("report", "-o", "/dev/full/report.html")
    refused(result, "/dev/full")


def test_files_are_not_replaced_without_asking(tuner, folder):
    assert tuner("init").code == 0
    (folder / "config.yaml").write_text("mine")
    result = tuner("init")
    refused(result, "config.yaml", "exist")
    assert "--force" in result.hint
    assert (folder / "config.yaml").read_text() == "mine"
    (folder / "victim").write_text("kept")
    (folder / ".config.yaml.draft").symlink_to("victim")
    assert tuner("init", "--force").code == 0
    assert (folder / "victim").read_text() == "kept"
    assert (folder / "config.yaml").read_text() != "mine"


def test_an_unexpected_error_is_one_line_and_a_traceback_on_request(tuner, folder):
    campaign_file(folder, kernel_file(folder, "odd.py"))
    text = (
        (folder / "odd.py").read_text().replace("return Cost(1.0, 16.0)", "raise RuntimeError('x')")
    )
    (folder / "odd.py").write_text(text)
    result = tuner("spaces", "show", "odd.py:Small")
    refused(result, "RuntimeError", "x")
    assert "--debug" in result.hint
    shown = tuner("spaces", "show", "odd.py:Small", "--debug")
    assert shown.code == 2
    assert "Traceback" in shown.err


def test_hostile_arguments_are_printed_inert(tuner):
    result = tuner("run", "\x1b[31m[red]\u202ex", "--config", "a\x07b\n.yaml")
    assert result.code == 2
    assert not set(result.err) & set("\x1b\x07\u202e")
    assert "a\\x07b\\n.yaml" in result.error


def test_temporary_folders_keep_their_files(tuner, folder, tmp_path_factory, monkeypatch):
    # Not the shared one, in which others make and remove theirs meanwhile.
    temporary = tmp_path_factory.mktemp("t")
    (temporary / "tuner-of-another").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = set(temporary.iterdir())
    campaign_file(folder, kernel_file(folder))
    assert tuner("run", "c", "--dry-run").code == 0
    assert set(temporary.iterdir()) == before


@pytest.mark.slow
def test_a_ray_address_that_does_not_answer(folder):
    campaign_file(folder, kernel_file(folder))
    environment = {
        **os.environ,
        "TUNER__POOL__KIND": "ray",
        "TUNER__POOL__ADDRESS": "127.0.0.1:1",
        "TUNER__POOL__CONNECT_TIMEOUT": "2s",
    }
    command = [sys.executable, "-m", "tuner", "run", "c"]
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, timeout=120
    )
    assert result.returncode == 2
    *_, error, hint = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert "127.0.0.1:1" in error
    assert hint.startswith("hint: ")
