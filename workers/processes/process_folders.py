"""The temporary folders of supervised processes: one per child, and one that children share.

The parent chooses a name and tells the process that is to own the folder, which makes and removes
it. So there is no moment at which a parent that is killed leaves a folder without an owner.

A child's reaper owns its private folder. The server owns the folder that the children of a shared
fork server use for files that each of them could make; the first child that asks for it makes it,
and the parent removes what a killed server left.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

#: The environment variable of a server and its children that holds the name of their folder.
SHARED = "TUNER_SHARED_FOLDER"


def unused_name() -> str:
    """A path for a temporary folder, which no other user can guess; nothing is made."""
    return os.path.join(tempfile.gettempdir(), f"tuner-{secrets.token_hex(8)}")


def use_for_temporary_files(name: str) -> None:
    """Make a private folder and put temporary files of this process and its helpers there.

    Both settings are needed: `tempfile` remembers an earlier folder, and it would choose another
    one on a full disk.
    """
    inside = os.path.join(name, "tmp")
    os.mkdir(name, mode=0o700)
    os.mkdir(inside)
    os.environ["TMPDIR"] = tempfile.tempdir = inside


def shared_folder() -> Path | None:
    """The folder of this child's server; None without one or where it cannot be made."""
    name = os.environ.get(SHARED)
    if not name:
        return None
    try:
        os.makedirs(name, mode=0o700, exist_ok=True)
    except OSError:
        return None
    return Path(name)


def remove(name: str) -> None:
    """Remove a folder, if there is one of that name."""
    if name and os.path.isdir(name):
        shutil.rmtree(name, ignore_errors=True)
