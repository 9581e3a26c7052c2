"""Put a text on disk whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from search_spaces.errors import TunerError


def write_atomically(path: Path, text: str) -> Path:
    """Write UTF-8 text to a new file in the folder of `path`, then rename it into place.

    The new file has a random name and follows no link, so that nobody who may write to the folder
    can lead it elsewhere. Raises `TunerError` when the disk is full, the folder is read-only or the
    path is a folder; what was there before stays.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}")
    exclusive = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, exclusive, 0o666), "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise TunerError(
            f"cannot write the report to {path}: {error.strerror or error}",
            hint="give another place with `tuner report --output FILE`, or free some space",
        ) from error
    return path
