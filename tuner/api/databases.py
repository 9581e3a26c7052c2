"""The database of a call: one that the caller names, or a temporary one."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results_db import Store


class CallDatabase:
    """A database by its URL. A temporary one exists as long as an object refers to it."""

    def __init__(self, url: str | None = None) -> None:
        """url: a SQLAlchemy URL; None makes a temporary SQLite database."""
        if url is None:
            folder = tempfile.mkdtemp(prefix="tuner-")
            # Also at the interpreter's exit.
            weakref.finalize(self, _remove, folder, os.getpid())
            url = f"sqlite:///{folder}/tuner.db"
        self.url = url

    def open(self) -> Store:
        """A connection to the database, which the caller closes."""
        from results_db import Store

        return Store.open(self.url, create=False)

    def __reduce__(self) -> tuple[type[CallDatabase], tuple[str]]:
        """A copy in another process refers to the same database and does not keep it."""
        return CallDatabase, (self.url,)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has the finalizer too
        shutil.rmtree(folder, ignore_errors=True)
