"""Scripts that start at once: a process that has made a script's imports forks for each run.

To import torch, Triton and Inductor takes seconds of processor time, and most runs are shorter.
Each run is a process of its own, as if the script had been started: what it leaves in memory is
gone with it.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_SERVE = "serve forks"


class Forks:
    """A script, imported once by a process of its own and run by forks of that.

    variables: environment variables from the start of the process, such as those that imports read.
    """

    def __init__(self, script: str, flags: Sequence[str] = (), **variables: str) -> None:
        self._command = [sys.executable, *flags, script, _SERVE]
        self._variables = variables
        self._server: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def run(self, text: str, **variables: str) -> str:
        """What the script prints for this input; an AssertionError with its errors if it fails."""
        environment = {**os.environ, **self._variables, **variables}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "input").write_text(text)
            try:
                code = self._answer({"folder": folder, "environment": environment})
            except BaseException:  # such as a timeout of pytest
                self.close()
                raise
            assert code == 0, (Path(folder) / "errors").read_text()[-3000:]
            return (Path(folder) / "output").read_text()

    def _answer(self, request: dict[str, object]) -> int:
        if self._server is None:
            self._server = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **self._variables},
                process_group=0,
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())

    def close(self) -> None:
        """End the process and a run in progress."""
        if self._server is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            with suppress(BrokenPipeError):
                self._server.communicate()
            self._server = None


def serve(main: Callable[[], None], prepare: Callable[[], None] = lambda: None) -> None:
    """What a script does in place of `main()`: run it once, or in forks as `Forks` asks for.

    prepare: work that all runs have in common.
    """
    prepare()
    if sys.argv[1:] != [_SERVE]:
        main()
        return
    for line in sys.stdin:
        request = json.loads(line)
        with warnings.catch_warnings():
            # Threads that libraries started idle, and have handlers for forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _run(main, Path(request["folder"]), request["environment"])
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(main: Callable[[], None], folder: Path, environment: dict[str, str]) -> None:
    """Run in this process and end it."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        for descriptor, name in enumerate(("input", "output", "errors")):
            opened = os.open(folder / name, os.O_RDWR | os.O_CREAT)
            os.dup2(opened, descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the other's buffer has requests
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
