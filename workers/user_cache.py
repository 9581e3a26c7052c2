"""The user's cache folder: what later runs need not find out again. It may be deleted at any time.

It is `$TUNER_CACHE_DIR`, else `$XDG_CACHE_HOME/tuner`, else `~/.cache/tuner`, and belongs to this
user alone: files of other users must not reach a build or a measurement.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: The environment variable that names another folder.
VARIABLE = "TUNER_CACHE_DIR"


def place(part: str = "") -> Path:
    """Where the cache is, or the folder of a part of it such as `headers`; makes nothing."""
    own = os.environ.get(VARIABLE)
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(own or os.path.join(root, "tuner")).absolute() / part


def folder(part: str) -> Path | None:
    """The folder of a part, made if it is missing; None if it is not usable."""
    path = place(part)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return path if usable(path) else None


def usable(path: Path) -> bool:
    """Whether a folder is this user's and not writable by other users."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022
