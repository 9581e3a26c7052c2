"""Put a text on disk whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from search_spaces.errors import TunerError


def write_atomically(path: Path, text: str) -> Path:
    """Write UTF-8 text beside `path`, then rename it into place.

    Raises `TunerError` when the disk is full, the folder is read-only or the path is a folder; what
    was there before stays.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True) if draft.parent.is_dir() else None
        raise TunerError(
            f"cannot write the report to {path}: {error.strerror or error}",
            hint="give another place with `tuner report --output FILE`, or free some space",
        ) from error
    return path
