"""`tuner status --watch` on a terminal: a full screen that follows the run and is left clean."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from cli_samples import fill

from results_db import Store
from tuner.campaign import lease

ENTER, LEAVE, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Watch:
    """A `tuner status --watch` on a terminal, and all that it has written there."""

    def __init__(self, columns: int, lines: int) -> None:
        self.text = ""
        self._ours, theirs = pty.openpty()
        self.resize(columns, lines)
        environment = {**os.environ, "TERM": "xterm"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tuner", "status", "--watch"],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._ours, 65536):
                self.text += part.decode(errors="replace")
        except OSError:  # the terminal's other end is closed
            pass

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + 290
        while not holds():
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)

    def end(self) -> int:
        """The exit code; checks that the terminal is as it was."""
        code = self.child.wait()
        self._reader.join()
        os.close(self._ours)
        assert (self.text.count(ENTER), self.text.count(LEAVE)) == (1, 1)
        assert SHOW_CURSOR in self.text[self.text.index(ENTER) :]
        return code

    @property
    def after(self) -> str:
        """What stands on the terminal once the full screen is left."""
        return self.text.partition(LEAVE)[2]


@pytest.fixture
def store(url) -> Iterator[Store]:
    """A database whose newest run is in progress, held by this process, with one task."""
    fill(url)
    with Store.open(url) as store:
        (done,) = store.tasks(1)
        run = store.begin_run("nightly", "spec", 8, {"host": "here"}, {})
        driver = lease.take(store, run)
        driver.ensure_task(run.run_id, done.key, flops=1.0, bytes=1.0, tolerance=None)
        yield driver


@pytest.fixture
def watch(store) -> Iterator[Watch]:
    shown = Watch(110, 30)
    shown.until(lambda: "softmax" in shown.text)
    yield shown
    shown.child.kill()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_it_was(watch, stop):
    watch.child.send_signal(stop)
    assert watch.end() == 130
    assert "softmax" not in watch.after


def test_the_view_follows_the_size_and_the_run(watch, store):
    assert "…" not in watch.text
    watch.resize(40, 12)
    watch.until(lambda: "…" in watch.text)  # the first line is cut at the new width
    watch.until(lambda: "dtype=bfloat16" in watch.text.partition("…")[2])
    assert max(map(len, re.findall(r"[^\x1b\r\n]+", watch.text.partition("…")[2]))) <= 40
    (task,) = store.tasks(2)
    store.set_stage(task.task_id, "done", "a note of the end")
    store.finish_run(2, "finished", {})
    assert watch.end() == 0
    assert "run 2 of nightly: finished" in watch.after
    assert "a note of the end" in watch.after


def test_an_error_is_told_once_the_terminal_is_as_it_was(watch, folder):
    with closing(sqlite3.connect(folder / "results" / "tuner.db")) as database:
        database.execute("ALTER TABLE run RENAME TO taken_away")
    assert watch.end() == 2
    assert "error: " in watch.after
    assert "error: " not in watch.text.partition(LEAVE)[0]
