"""The end of the process: what `sys.exit` does, without taking the interpreter apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("code", [0, 1, 130])
def test_exit_code_streams_and_registered_functions(code):
    done = run(
        "import atexit, sys\nfrom tuner.cli.application import leave\n"
        "atexit.register(print, 'registered')\n"
        "print('out')\nprint('err', file=sys.stderr, end='')\n"
        f"leave({code})\n"
    )
    assert done.returncode == code
    assert done.stdout == "out\nregistered\n"
    assert done.stderr == "err"


def test_a_thread_that_is_no_daemon_ends_first():
    done = run(
        "import threading, time\nfrom tuner.cli.application import leave\n"
        "def work():\n    time.sleep(0.2)\n    print('finished')\n"
        "threading.Thread(target=work).start()\n"
        "leave(3)\n"
    )
    assert (done.returncode, done.stdout) == (3, "finished\n")
