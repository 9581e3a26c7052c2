"""One Python process of `tuner capture`: it records from the import of Triton until its exit."""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.capturing.recorder import Recorder

#: The folder into which a process writes its calls.
FOLDER = "TUNER_CAPTURE_FOLDER"
#: `integers` or `keep`, as for `tuner.capture`.
CONTENTS = "TUNER_CAPTURE_CONTENTS"
#: `1` where calls run again at exit, to find what they write.
TRIED = "TUNER_CAPTURE_TRIED"


def begin() -> None:
    """Record as soon as Triton is imported, where `tuner capture` has started this process."""
    if os.environ.get(FOLDER):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Waits for the import of Triton."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "triton":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _record()

        loader.exec_module = exec_module
        return spec


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
    from tuner.capturing.declared import tried
    from tuner.capturing.files import save
    from tuner.capturing.table import CapturedKernel

    hooks.end(recorder)
    calls = list(recorder.calls())
    for name, count in recorder.dropped.items():
        print(
            f"tuner capture: {name}: {count} launches with further arguments are not recorded",
            file=sys.stderr,
        )
    if not calls:
        return
    try:
        contents = recorder.contents.kept
        if os.environ.get(TRIED) == "1":
            calls = tried(CapturedKernel(calls, contents))
        save(Path(os.environ[FOLDER]) / f"{owner}.json", calls, contents)
    except Exception as error:
        print(f"tuner capture: the calls are lost: {error}", file=sys.stderr)
