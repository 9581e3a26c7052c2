"""What a build needs of the machine, checked before each build: a compiler, folders, limits.

Without it every config would fail in the same way, and the failures would be taken for the
configs'. What these checks do not know shows when a sample fails as well (`workers.compiling.job`).
"""

from __future__ import annotations

import importlib.util
import os
import resource
from pathlib import Path

from workers import toolchain
from workers.processes.machine_faults import FILE_SIZE, LastingFault

#: The largest files that compilers write, rounded up: precompiled headers of C++, and binaries.
CPP_BYTES, TRITON_BYTES = 256 << 20, 16 << 20


def check_cpp_builds(cache_dir: Path) -> None:
    """Check what Inductor's C++ backend needs. Raises `LastingFault` with the remedy."""
    if not toolchain.compiler():
        chosen = os.environ.get("CXX")
        what = f"CXX={chosen} names no program" if chosen else "there is no g++"
        remedy = "set CXX to a compiler, or unset it" if chosen else "install g++, or set CXX"
        raise LastingFault(f"no C++ compiler for CPU kernels: {what}", remedy)
    torch = importlib.util.find_spec("torch")
    places = {"TMPDIR": f"{cache_dir}", "torch": torch.origin if torch else ""}
    for name, path in places.items():
        # Inductor splits the compiler's command at blanks.
        if path and path.split() != [path]:
            raise LastingFault(
                f"torch.compile cannot use folders with a blank in their names: {path!r} ({name})",
                f"set {name} to another folder" if name == "TMPDIR" else "install torch elsewhere",
            )
    check_file_size(CPP_BYTES)


def check_file_size(needed_bytes: int) -> None:
    """Check the limit on the size of files that a process may write. Raises `LastingFault`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < needed_bytes:
        raise LastingFault(
            f"files may have {limit / 2**20:.1f} MiB here (`ulimit -f`), "
            f"compilers write up to {needed_bytes >> 20} MiB",
            FILE_SIZE,
        )
