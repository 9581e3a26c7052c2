"""A folder that all children of a shared fork server use, for files that each of them could make.

The parent chooses its name, the first child that asks for it makes it, and the server removes it
when it ends after its children; the parent removes what a killed server left.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

#: The environment variable of a server and its children that holds the name.
VARIABLE = "TUNER_SHARED_FOLDER"


def new_name() -> str:
    """A name that no other user can guess; nothing is made."""
    return os.path.join(tempfile.gettempdir(), f"tuner-{secrets.token_hex(8)}")


def shared_folder() -> Path | None:
    """The folder, made if it is missing; None outside such a child or where it cannot be made."""
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    try:
        os.makedirs(name, mode=0o700, exist_ok=True)
    except OSError:
        return None
    return Path(name)


def remove(name: str) -> None:
    """Remove the folder, if there is one of that name."""
    if name and os.path.isdir(name):
        shutil.rmtree(name, ignore_errors=True)
