"""Databases to test on: SQLite files, and the PostgreSQL server of all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from results_db import Store
from results_db.tables import METADATA


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results' / 'tuner.db'}"


@pytest.fixture(scope="session")
def _shared_postgres(new_postgres: Callable[[], str]) -> str:
    url = new_postgres()
    Store.open(url).close()
    return url


@pytest.fixture
def emptied_postgres(_shared_postgres: str) -> str:
    """A database with the schema and no rows; much cheaper than a new one."""
    with psycopg.connect(_shared_postgres.replace("+psycopg", ""), autocommit=True) as connection:
        tables = ", ".join(f'"{table}"' for table in METADATA.tables)
        connection.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE".encode())
    return _shared_postgres
