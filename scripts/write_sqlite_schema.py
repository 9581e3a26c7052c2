"""Write results_db/sqlite_schema.json: the schema that all migrations together make in SQLite.

    python scripts/write_sqlite_schema.py

A new SQLite database is created from this file, because running the migrations takes twenty times
as long. Run the script after adding a migration.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, f"{Path(__file__).resolve().parent.parent}")

from sqlalchemy import create_engine

from results_db import migrate, new_sqlite


def main() -> None:
    """Migrate a database in memory and write down its schema."""
    with create_engine("sqlite://").begin() as connection:
        migrate.migrate(connection, "memory", migrate.SCRIPTS)
        statements = new_sqlite.schema_of(connection)
    document = {"revision": migrate.head(), "statements": statements}
    new_sqlite.SCHEMA.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {new_sqlite.SCHEMA}")


if __name__ == "__main__":
    main()
