"""One Python process of `tuner capture`: it records from the import of Triton until its exit."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.runtime._import_watch import after_import

if TYPE_CHECKING:
    from tuner.capturing.recorder import Recorder
    from tuner.capturing.table import Calls

#: The folder into which a process writes its calls.
FOLDER = "TUNER_CAPTURE_FOLDER"
#: `integers` or `keep`, as for `tuner.capture`.
CONTENTS = "TUNER_CAPTURE_CONTENTS"
#: `1` where calls run again at exit, to find what they write.
TRIED = "TUNER_CAPTURE_TRIED"
#: What a process runs for `try_left_calls`.
_TRY = """
import pathlib, sys
from tuner.capturing.child import try_calls
try_calls(pathlib.Path(sys.argv[1]))
"""


def ask(folder: Path, contents: str = "integers", *, tried: bool = True) -> dict[str, str]:
    """The variables that ask processes of a program for their calls, for `read_recorded`."""
    return {FOLDER: f"{folder}", CONTENTS: contents, TRIED: "1" if tried else "0"}


def read_recorded(folder: Path) -> Calls | None:
    """The calls of all processes; None where none was recorded."""
    from tuner.capturing.files import merge
    from tuner.capturing.table import Calls

    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files:
        try_left_calls(file)
    if not files:
        return None
    calls, contents = merge(files)
    return Calls(lambda: calls, contents, {})


def begin() -> None:
    """Record as soon as Triton is imported; `tuner capture` has started this process."""
    after_import("triton", _record)


def _record() -> None:
    from tuner.capturing import hooks
    from tuner.capturing.contents import Contents
    from tuner.capturing.recorder import Recorder

    recorder = Recorder(Contents(all=os.environ.get(CONTENTS) == "keep"))
    hooks.begin(recorder)
    atexit.register(_finish, recorder, os.getpid())


def _finish(recorder: Recorder, owner: int) -> None:
    """Write the calls; a fault is one line on stderr and changes no exit code."""
    if os.getpid() != owner:  # a forked process has the function too
        return
    from tuner.capturing import hooks
    from tuner.capturing.files import save

    hooks.end(recorder)
    calls = list(recorder.calls())
    for name, count in recorder.dropped.items():
        print(
            f"tuner capture: {name}: {count} launches with further arguments are not recorded",
            file=sys.stderr,
        )
    if not calls:
        return
    file = Path(os.environ[FOLDER]) / f"{owner}.json"
    try:
        save(file, calls, recorder.contents.kept)
        if os.environ.get(TRIED) == "1":
            try_calls(file)
    except Exception as error:
        print(f"tuner capture: the calls are lost: {error}", file=sys.stderr)


def try_calls(file: Path) -> None:
    """Find what the calls of a file write, by running each again.

    A call may end the process, as compilers that abort do. So the file is complete before, and a
    mark beside it says which call is at work: the next process leaves that one out.
    """
    from tuner.capturing.declared import probe_calls
    from tuner.capturing.files import from_json, save

    calls, contents = from_json(file.read_text(encoding="utf-8"), f"{file}")
    mark = _mark(file)
    if mark.exists():
        at = int(mark.read_text())
        ended = calls[at].with_problem("its own config ends the process when it runs again")
        calls = (*calls[:at], ended, *calls[at + 1 :])
    for at, call in enumerate(calls):
        if call.written is None and not call.problem:
            save(file, calls, contents)
            mark.write_text(f"{at}")
            (found,) = probe_calls([call], contents)
            calls = (*calls[:at], found, *calls[at + 1 :])
    save(file, calls, contents)
    mark.unlink(missing_ok=True)


def try_left_calls(file: Path) -> None:
    """Try the calls that a process of the program left because it ended."""
    left = 1 << 20
    while _mark(file).exists() and left > (left := _count_untried(file)):
        subprocess.run([sys.executable, "-c", _TRY, f"{file}"], check=False)


def _count_untried(file: Path) -> int:
    from tuner.capturing.files import from_json

    calls, _ = from_json(file.read_text(encoding="utf-8"), f"{file}")
    return sum(call.written is None and not call.problem for call in calls)


def _mark(file: Path) -> Path:
    return file.with_suffix(".trying")
