"""Files that appear whole or not at all: the one writer of everything the project puts on disk.

A reader sees the old content or the new content, never a part, also when the process is killed or
the disk is full. The content goes to a draft in the same folder, which then takes the file's name.

    write_atomic(path, content)             OSError where that fails
    write_output(path, content, remedy)     TunerError with the remedy
    with draft_of(path) as draft: ...       for content that something else writes
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from search_spaces.errors import TunerError

#: A draft is a new file: opening it follows no link and fails if it exists. Other users of the
#: folder therefore cannot redirect the content.
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_atomic(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace the content of a file in one step.

    The file gets the permissions of a new file (0666 less the umask). A symbolic link at `path` is
    replaced, its target stays. durable: as in `draft_of`. Raises OSError; the old file then stays
    and no draft is left behind.
    """
    with (
        draft_of(path, durable=durable) as draft,
        os.fdopen(os.open(draft, _NEW_FILE, 0o666), "wb") as file,
    ):
        file.write(content)


def write_output(path: Path, content: bytes, remedy: str) -> Path:
    """`write_atomic` for a file that the user asked for, with missing folders; returns its path.

    Raises TunerError, caused by the OSError, with the system's reason and `remedy` as the hint.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except OSError as error:
        reason = error.strerror or f"{error}"
        raise TunerError(f"{path}: cannot be written ({reason})", remedy) from error
    return path


@contextmanager
def draft_of(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A new name in the folder of `path`; the file written there replaces `path` after the block.

    durable: content and name are on the disk before the block returns, so that they survive a power
    failure. Private caches do without, which saves milliseconds per file. When the block raises,
    the draft is removed and `path` stays as it was. Raises OSError.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory", f"{path}")
    # Short enough for the 255 bytes of a file name, also in four-byte characters.
    draft = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}")
    try:
        yield draft
        if durable:
            _flush(draft)
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    if durable:
        with suppress(OSError):  # some network file systems cannot flush a folder
            _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
