"""Write the frozen database of the newest schema revision: `python tests/store/freeze.py`.

Run once when a migration is added; the files of earlier revisions are never written again.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sample_data import fill

from results_db import Store
from results_db.migrate import head

ASSETS = Path(__file__).parent / "assets"


def freeze() -> Path:
    path = ASSETS / f"{head()}.db"
    if path.exists():
        raise SystemExit(f"{path} exists; a frozen database is never written again")
    with Store.open(f"sqlite:///{path}") as store:
        fill(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
    return path


if __name__ == "__main__":
    print(freeze())
