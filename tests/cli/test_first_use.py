"""A newcomer's path and mistakes: `scripts/first_use.py`, whole and by its single mistakes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_samples import fill

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
import first_use  # noqa: E402

#: Those that start no workers.
MISTAKES = [row for row in first_use.MISTAKES if "--quiet" not in row[1]]

CALLS = [(code, words) for code, expected, words in first_use.CALLS if expected]


@pytest.fixture
def place(tuner, folder, url) -> first_use.Place:
    """The files of a newcomer: those of `tuner init`, a run and a table."""
    assert tuner("init").code == 0
    fill(url)
    (folder / "tables").mkdir()
    shutil.copy(next((ROOT / "tuner/tables").glob("softmax@NVIDIA_H200*")), folder / "tables")
    return first_use.Place(folder, folder)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[" ".join(row[:2]) for row in MISTAKES])
def test_a_mistake_is_answered_with_its_place_and_a_remedy(tuner, place, monkeypatch, mistake):
    edit, command, expected, words = mistake
    if edit:
        first_use.edit_file(place, edit)
    variables, line = re.fullmatch(r"((?:\w+=\S+ )*)tuner (.*)", command).groups()
    for name, _, value in (each.partition("=") for each in variables.split()):
        monkeypatch.setenv(name, value)
    before = place.files()
    result = tuner(*shlex.split(line))
    answer = result.err + (result.out if result.code == 1 else "")
    assert not first_use.judge(result.code, answer, expected, words), answer
    assert place.files() == before


@pytest.mark.parametrize(("code", "words"), CALLS, ids=[code for code, _ in CALLS])
def test_a_mistake_in_python_is_one_line_and_a_remedy(folder, code, words):
    names: dict[str, object] = {}
    exec(first_use.HEAD, names)
    with pytest.raises(Exception, match=re.escape(words)) as caught:
        exec(code, names)
    assert "\n" not in f"{caught.value}"
    own = type(caught.value).__module__.startswith("tuner")
    assert own == bool(getattr(caught.value, "__notes__", []))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_path_and_all_mistakes(tmp_path):
    log = tmp_path / "log.txt"
    command = [sys.executable, f"{ROOT}/scripts/first_use.py", "--output", f"{log}"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of them unknown, 0 faults" in log.read_text()
