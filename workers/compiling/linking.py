"""A faster link of Inductor's C++ kernels.

For each kernel, the linker reads the symbols of torch's largest library, which takes a fifth of the
time of a compilation with a precompiled header. A shared object may leave symbols to be resolved
when it is loaded, and torch's libraries are loaded by then. Therefore kernels are linked with an
empty library of the same name instead. Their code and the libraries that they name stay the same.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIBRARY = "torch_cpu"
_OPTION = f"-l{_LIBRARY}"


def without_reading_torch(folder: Path) -> None:
    """Link this process's kernels with an empty library, which is made in `folder`.

    Does nothing where that is not possible. A command that fails so is repeated as it was.
    """
    if sys.platform != "linux":
        return
    from torch._inductor import cpp_builder

    run: Callable[..., None] | None = getattr(cpp_builder, "run_compile_cmd", None)
    if run is None or hasattr(run, "linked_in"):
        return

    def run_faster(cmd_line: str, *args: Any, **kwargs: Any) -> None:
        if faster := _faster(cmd_line, folder):
            with contextlib.suppress(Exception):
                run(faster, *args, **kwargs)
                return
        run(cmd_line, *args, **kwargs)

    run_faster.linked_in = folder  # type: ignore[attr-defined]
    cpp_builder.run_compile_cmd = run_faster


def _faster(command: str, folder: Path) -> str:
    """The command with the empty library; empty for one that links nothing, or not with g++."""
    words = command.split()
    if "-shared" not in words or _OPTION not in words or "clang" in words[0]:
        return ""
    if not _made(words[0], folder / f"lib{_LIBRARY}.so"):
        return ""
    # As needed, which some compilers pass by default, would leave out a library without symbols.
    named = f"-Wl,--push-state,--no-as-needed {_OPTION} -Wl,--pop-state"
    return command.replace(f" {_OPTION}", f" -L{shlex.quote(f'{folder}')} {named}", 1)


def _made(compiler: str, library: Path) -> bool:
    """Make the empty library, if it is missing; whether there is one."""
    if library.exists():
        return True
    command = [compiler, "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", f"{library}"]
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [*command, f"-Wl,-soname,{library.name}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True
