"""Precompiled headers of Inductor's C++ backend, shared by all builders of a user.

One such header takes seconds to make and 100 MB to keep. Every builder has a folder of its own,
which goes with it; complete headers are also kept in the user's cache folder, and the next builder
starts with those. A builder that is killed while it writes a header leaves nothing there.
"""

from __future__ import annotations

import importlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

_SUFFIXES = (".h", ".gch")


def share(private: Path) -> None:
    """Let Inductor keep this process's headers in `private`, and share them with later builders.

    Does nothing where torch precompiles no headers; a cache folder that cannot be used is left out.
    """
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    make = getattr(codecache, "_precompile_header", None)
    if make is None or str(private) == codecache._HEADER_DIR:
        return
    codecache._HEADER_DIR = str(private)
    codecache._HEADER_LOCK_DIR = str(private / "locks")
    shared = _folder()
    if shared is None:
        return
    _take(shared, private)

    def made(*args: Any, **kwargs: Any) -> Any:
        header = make(*args, **kwargs)
        _give(private, shared)
        return header

    codecache._precompile_header = made


def _folder() -> Path | None:
    """The user's own cache folder for headers; None where there can be none."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(root) / "tuner" / "headers"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    others = stat.S_IMODE(found.st_mode) & 0o022
    return folder if found.st_uid == os.geteuid() and not others else None


def _take(shared: Path, private: Path) -> None:
    for header in shared.glob("*.gch"):
        for file in (header.with_suffix(""), header):
            _place(file, private / file.name)


def _give(private: Path, shared: Path) -> None:
    """Keep what is complete: Inductor has returned from making it. A header goes after its text."""
    files = [path for path in private.iterdir() if path.suffix in _SUFFIXES]
    for file in sorted(files, key=lambda path: path.suffix == ".gch"):
        _place(file, shared / file.name)


def _place(file: Path, target: Path) -> None:
    """The same file at another place, whole or not at all; on a full disk, not at all."""
    if target.exists():
        return
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".draft-") as folder:
            draft = Path(folder) / file.name
            try:
                os.link(file, draft)
            except OSError:
                shutil.copy2(file, draft)
            draft.replace(target)
    except OSError:
        return
