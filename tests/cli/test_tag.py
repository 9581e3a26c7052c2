"""`tuner tag`: a run has a name wherever a number is taken."""

from __future__ import annotations

import json

import pytest
from cli_samples import fill

from results_db import Store


@pytest.fixture
def two_runs(tuner, url):
    """Two runs, of which the first is tagged."""
    fill(url, gain=0.5)
    fill(url, gain=0.6)
    assert tuner("tag", 1, "baseline").err == "run 1 of nightly is 'baseline'\n"


def test_every_command_takes_the_tag_of_a_run(tuner, url, folder, two_runs):
    for command in (["status"], ["trials"], ["show"], ["forget", "--dry-run", "--run"]):
        named, numbered = tuner(*command, "baseline"), tuner(*command, 1)
        assert (named.code, named.out, named.err) == (0, numbered.out, numbered.err)
    assert tuner("show", "baseline/1/0").out == tuner("show", "1/1/0").out
    assert "1 faster" in tuner("compare", "baseline", 2).err
    assert "run 1 against run 2" in tuner("compare", 2, "baseline").err
    assert tuner("report", "baseline", "-o", "r.html").code == 0
    assert tuner("export", "baseline", "-f", "csv", "-o", "out").code == 0
    assert tuner("status", "baseline").out.startswith("run 1 (baseline) of nightly: finished")


def test_a_tag_moves_and_goes(tuner, url, two_runs):
    runs = json.loads(tuner("runs", "-f", "json").out)
    assert [(row["run"], row["tag"]) for row in runs] == [(2, None), (1, "baseline")]
    assert json.loads(tuner("status", "--all", "-f", "json").out) == runs
    moved = tuner("tag", 2, "baseline")
    assert moved.err.splitlines()[0] == "run 1 is no longer 'baseline'"
    assert tuner("tag", "baseline", "best-of_2026.11").code == 0
    with Store.open(url) as store:
        assert store.tags() == {"best-of_2026.11": 2}
    assert tuner("tag", 2, "--remove").err == "run 2 of nightly has no tag\n"
    assert tuner("status", "baseline").code == 2


def test_without_a_run_commands_take_the_latest(tuner, folder, two_runs):
    assert tuner("show").out == tuner("show", 2).out != tuner("show", 1).out
    assert tuner("show", "--asm").code == 2
    assert tuner("compare", "baseline").err == tuner("compare", "baseline", 2).err
    assert tuner("tag", "newest").err == "run 2 of nightly is 'newest'\n"
    assert tuner("tag", "--remove").err == "run 2 of nightly has no tag\n"
    assert "run 2 to published: 1 " in tuner("promote", "--to", "published", "--dry-run").err


@pytest.mark.parametrize("name", ["7", "1st", "", "a/b", "a b", "-x", "x" * 101, "a\u202eb", "a\n"])
def test_a_name_that_could_be_mistaken_is_refused(tuner, two_runs, name):
    result = tuner("tag", "1", "--", name)
    assert result.code == 2
    assert "is no name of a run" in result.error
    assert not set(result.err) & set("\u202e")


@pytest.mark.parametrize("arguments", [["1"], ["1", "a", "--remove"]])
def test_either_a_name_or_none(tuner, two_runs, arguments):
    assert "either NAME or --remove" in tuner("tag", *arguments).error


@pytest.mark.parametrize("command", [["status"], ["report"], ["show"], ["compare", "1"], ["tag"]])
def test_an_unknown_tag_names_the_nearest(tuner, two_runs, command):
    result = tuner(*command, "basline", *(["x"] if command == ["tag"] else []))
    assert result.code == 2
    assert result.error == "no run has the tag 'basline'; did you mean 'baseline'?"
    assert "`tuner runs` lists them" in result.hint


@pytest.mark.parametrize("run", ["0", "9" * 40, "\u0663"])
def test_a_number_of_no_run(tuner, two_runs, run):
    assert tuner("status", run).error
