"""New SQLite databases, created from the schema that all migrations together make.

`sqlite_schema.json` holds the statements that SQLite keeps of a migrated database, and its
revision. Where it is of another revision, the migrations run instead.
"""

from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy import Connection, text

SCHEMA = Path(__file__).with_name("sqlite_schema.json")
_STATEMENTS = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
_REVISION = "INSERT INTO alembic_version (version_num) VALUES (:revision)"


def create(connection: Connection, revision: str) -> bool:
    """Create the schema of a revision in an empty SQLite database, in the caller's transaction.

    False where the file is of another revision; nothing is created then.
    """
    schema = json.loads(SCHEMA.read_bytes())
    if schema["revision"] != revision:
        return False
    for statement in schema["statements"]:
        connection.exec_driver_sql(statement)
    connection.execute(text(_REVISION), {"revision": revision})
    return True


def schema_of(connection: Connection) -> list[str]:
    """The statements that SQLite keeps of the schema of an open database."""
    return [f"{row.sql}" for row in connection.execute(text(_STATEMENTS))]
