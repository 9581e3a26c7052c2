"""Detect that an open SQLite file was deleted or replaced, and rescue its content.

A process with an open deleted file continues to write to it. The content is lost when the process
ends.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from results_db.errors import StoreMovedError, translate_errors
from search_spaces.atomic_file import draft_of


class SqliteFile:
    """A database file and its write-ahead log, identified by their inodes at the first check."""

    def __init__(self, path: Path) -> None:
        # The working directory may change while the connection stays open.
        self.path = path.absolute()
        self._seen: dict[Path, tuple[int, int]] = {}

    def check(self) -> None:
        """Raise `StoreMovedError` if the path no longer leads to the open file."""
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            now = _inode(path)
            if path in self._seen and now != self._seen[path]:
                what = "was deleted" if now is None else "was replaced by another file"
                raise StoreMovedError(
                    f"{path} {what} while it was in use", "leave it in place during a run"
                )
            if now is not None:
                self._seen[path] = now

    def save(self, connection: sqlite3.Connection) -> Path:
        """Copy the database of an open connection to a new file in the same folder."""
        number, target = 0, self.path.with_name(f"{self.path.name}.rescued")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while target.exists():
            number += 1
            target = self.path.with_name(f"{self.path.name}.{number}.rescued")
        with (
            translate_errors(f"{target}"),
            draft_of(target) as partial,
            closing(sqlite3.connect(partial)) as copy,
        ):
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        return target


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
