"""Commands of `tuner`, each in a process of its own that starts at once.

A process that has imported what commands use forks for each of them.
"""

from __future__ import annotations

import importlib
import json
import os
import pty
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from spaces_forks import Forks, serve

from tuner.cli import invoke
from tuner.cli.application import leave

ROOT = Path(__file__).parents[2]
_FORKS = Forks(__file__, PYTHONPATH=f"{ROOT}:{ROOT}/tests/spaces:{ROOT}/tests/plugins")
_LIBRARIES = ("torch", "triton", "scipy.special", "rich.markup")
_COMMANDS = ("best", "bench", "compare", "export", "run", "spaces", "status", "workers")
_IMPORTED = (
    *_LIBRARIES,
    *(f"tuner.cli.{name}" for name in _COMMANDS),
    "tuner.campaign.driver",
    "workers.pools.local",
    "search_spaces.recorded.recorded_kernel",
)


def run_command(
    arguments: list[str],
    folder: Path,
    *,
    on_terminal: bool = False,
    before: str = "",
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run `tuner ARGUMENTS` in a folder.

    on_terminal: whether stdout is a terminal. before: Python that is executed first, such as what
    replaces the devices of this machine.
    """
    request = [arguments, f"{folder}", on_terminal, before]
    answer = json.loads(_FORKS.run(json.dumps(request), **variables))
    return subprocess.CompletedProcess(arguments, *answer)


def main() -> None:
    arguments, folder, on_terminal, before = json.load(sys.stdin)
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            os.close(ours)
            os.dup2(theirs, 1)
            os.dup2(errors.fileno(), 2)
            os.chdir(folder)
            exec(before, {})
            code = invoke(arguments)
            with suppress(SystemExit):
                leave(code)
            os._exit(code)
        os.close(theirs)
        parts = []
        with suppress(OSError):  # the terminal's other end is closed
            while part := os.read(ours, 65536):
                parts.append(part)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        texts = b"".join(parts).decode(), errors.read().decode()
    print(json.dumps([os.waitstatus_to_exitcode(status), *texts]))


def prepare() -> None:
    for module in _IMPORTED:
        importlib.import_module(module)


if __name__ == "__main__":
    serve(main, prepare)
