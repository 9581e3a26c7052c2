"""What a call of `tune` shows while it works: on a terminal, in a notebook, in a log."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_spaces import synthesize

import tuner
from tuner.progress import Progress
from tuner.views import progress_display
from tuner.views.progress_display import ProgressLines, picture, show_progress

ROOT = Path(__file__).parents[2]


def words(recorded, **arguments) -> list[str]:
    """The stages that a call reports, without repetitions."""
    seen: list[Progress] = []
    tuner.tune(**recorded, **arguments, on_progress=seen.append, progress=False)
    assert all(each.activity for each in seen)
    pairs = itertools.pairwise([Progress.of_stage(""), *seen])
    return [after.stage for before, after in pairs if after.stage != before.stage]


def test_a_call_reports_its_stages_in_order(recorded):
    found = words(recorded, budget=30)
    order = ["loading", "starting", "building", "searching", "racing", "confirming"]
    order += ["closing", "writing"]
    assert found[:2] == order[:2]
    assert found[-2:] == order[-2:]
    assert [stage for stage in order if stage in found] == found


def test_the_activity_names_the_best_time_and_the_finals(recorded):
    texts: list[str] = []
    found = tuner.tune(
        **recorded, budget=60, on_progress=lambda p: texts.append(p.activity), progress=False
    )
    assert found.median_us
    assert texts[0] == "loading the kernels"
    assert any(re.fullmatch(r"searching: \d+ trials, best [\d.]+ us", text) for text in texts)


def test_the_time_left_counts_the_finals(recorded):
    seen: list[Progress] = []
    tuner.tune(
        **recorded,
        budget=20,
        on_progress=seen.append,
        progress=False,
        settings={"pool": {"devices": {"simulated": {"runners": 1}}}},
    )
    left = [each.left_s for each in seen if each.tasks_total and each.left_s is not None]
    assert left
    for each in seen:
        if each.tasks_total and each.stage == "searching" and each.left_s is not None:
            assert each.total is not None
            assert each.left_s > (each.total - each.done) / each.trials_per_s


class Screen:
    def __init__(self) -> None:
        self.seen: list[Progress] = []
        self.ended: list[str] = []

    def show(self, progress: Progress) -> None:
        self.seen.append(progress)

    def end(self, text: str) -> None:
        self.ended.append(text)


@pytest.fixture
def screen(monkeypatch) -> Screen:
    """Where progress is shown, in place of the terminal."""
    made = Screen()
    monkeypatch.setattr(progress_display, "_find_screen", lambda shown: made)
    return made


def until(condition) -> None:
    deadline = time.monotonic() + 290
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silent_stage_is_shown_again_and_again(screen):
    with show_progress() as show:
        show(replace(Progress.of_stage("opening", "opening NVIDIA H200"), left_s=100.0))
        until(lambda: len(screen.seen) >= 4)
    assert screen.seen[0].activity == "starting"
    assert {each.activity for each in screen.seen[1:]} == {"opening NVIDIA H200"}
    first, *_, last = screen.seen[1:]
    assert first.elapsed_s < last.elapsed_s
    assert first.left_s > last.left_s
    (end,) = screen.ended
    assert re.fullmatch(r"done in \d+ s", end)


def test_a_screen_that_fails_is_left_alone(screen, monkeypatch):
    def fail(progress: Progress) -> None:
        screen.seen.append(progress)
        raise BrokenPipeError

    monkeypatch.setattr(screen, "show", fail)
    with show_progress() as show:
        show(Progress.of_stage("searching"))
    assert (len(screen.seen), screen.ended) == (1, [])


def test_a_call_that_fails_says_after_which_time(screen):
    with pytest.raises(KeyboardInterrupt), show_progress():
        raise KeyboardInterrupt
    (end,) = screen.ended
    assert re.fullmatch(r"stopped after \d+ s", end)


def test_a_log_gets_a_line_for_each_stage_and_for_a_long_one():
    written, now = [], [0.0]
    lines = ProgressLines(written.append, clock=lambda: now[0])
    opening = Progress.of_stage("opening", "opening NVIDIA H200")
    for second in range(7):
        now[0] = float(second)
        lines.show(replace(opening, elapsed_s=now[0]))
    search = replace(opening, stage="measuring", total=50)
    for second in range(7, 14):
        now[0] = float(second)
        activity = f"measuring {second}/50"
        lines.show(replace(search, done=second, activity=activity, elapsed_s=now[0]))
    lines.show(Progress.of_stage("racing", "racing 9"))
    lines.end("done in 14 s")
    assert "".join(written).splitlines() == [
        "opening NVIDIA H200",
        "opening NVIDIA H200  5 s",
        "measuring 7/50",
        "measuring 12/50  12 s",
        "racing 9",
        "done in 14 s",
    ]


@pytest.mark.parametrize(("progress", "lines"), [(None, False), (False, False), (True, True)])
def test_a_stream_that_is_no_terminal_gets_lines_only_on_request(progress, lines, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with show_progress(progress) as show:
        assert (show is not None) == lines
        if show is not None:
            show(Progress.of_stage("racing", "racing 9"))
    assert ("racing 9" in stream.getvalue()) == lines


class Handle:
    def __init__(self, data: dict) -> None:
        self.data = [data]

    def update(self, data: dict, *, raw: bool) -> None:
        assert raw
        self.data.append(data)


@pytest.fixture
def notebook(monkeypatch):
    """The part of IPython that a display needs, as in the kernel of a notebook."""
    handles: list[Handle] = []

    def display(data: dict, *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        handles.append(Handle(data))
        return handles[-1]

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    displays = types.ModuleType("IPython.display")
    displays.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return handles


def test_a_notebook_gets_one_display_that_updates(recorded, notebook):
    tuner.tune(**recorded, budget=20)
    (handle,) = notebook
    texts = [data["text/plain"] for data in handle.data]
    assert any(text.startswith("searching: ") for text in texts)
    assert texts[-1].startswith("done in ")
    assert any("<progress value=" in data["text/html"] for data in handle.data)
    tuner.tune(**recorded, budget=20, progress=False)
    assert len(notebook) == 1


def test_the_display_of_a_notebook_escapes_text(notebook):
    with show_progress(None) as show:
        show(Progress.of_stage("opening", "opening <script>\x1b[31m"))
    html = "".join(data["text/html"] for data in notebook[0].data)
    assert "<script>" not in html
    assert "\x1b" not in html


SCRIPT = """
import tuner

space = tuner.RecordedSpace.load("space.json")
tuner.tune("recorded:space.json", space.workload, budget=10, pool="virtual")
"""


def test_a_script_on_a_terminal_shows_its_progress_from_the_first_moment(tmp_path):
    synthesize(40, seed=5).save(tmp_path / "space.json")
    paths = f"{ROOT}:{ROOT}/tests/plugins"
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "TERM": "xterm", "COLUMNS": "100"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown_text = b""
    try:
        while chunk := os.read(ours, 4096):
            shown_text += chunk
    except OSError:  # the other end was closed
        pass
    os.close(ours)
    assert child.wait() == 0
    text = shown_text.decode()
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert re.match(r"\s*starting, elapsed \d+ s", drawn)
    assert "loading the kernels" in text
    assert text.endswith("\x1b[2K"), "the display is erased at the end"


def test_a_log_gets_each_stage_once():
    written: list[str] = []
    show = ProgressLines(written.append).show
    for stage, activity in (("starting", "starting 15 builders"), ("racing", "racing 9")):
        show(Progress.of_stage(stage, activity))
        show(Progress.of_stage(stage, activity))
    assert written == ["starting 15 builders\n", "racing 9\n"]


def test_the_command_line_shows_the_stage_before_there_are_figures():
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, markup=False, force_terminal=False)
    console.print(picture(Progress.of_stage("starting", "starting 15 builders\x1b[31m", 3.0)))
    text = console.file.getvalue()
    assert "starting 15 builders" in text
    assert "elapsed 3 s" in text
    assert "\x1b" not in text
