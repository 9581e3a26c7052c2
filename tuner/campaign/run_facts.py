"""What a run records of its host and of the state of its sources."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from pathlib import Path

from search_spaces.records import Value

_REVISION = "TUNER_REVISION"


def collect_facts(base: Path, *, fresh: bool) -> dict[str, Value]:
    """Host, system and state of the sources, for the report's environment panel."""
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count() or 0,
        "git": read_revision(base),
        "dirty": bool(_git(base, "status", "--porcelain", "--untracked-files=no")),
        "fresh": fresh,
    }


def read_revision(base: Path) -> str:
    """The git revision of a folder; empty where there is none.

    The variable `TUNER_REVISION` takes precedence, for sources without their history.
    """
    return os.environ.get(_REVISION) or _git(base, "rev-parse", "--short=12", "HEAD")


def _git(base: Path, *arguments: str) -> str:
    command = ["git", "-C", str(base), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
