"""Databases to test on: a private PostgreSQL server where one is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from postgres_server import PostgresServer, private_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that lives as long as the test session."""
    with private_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(postgres: PostgresServer) -> str:
    """Its URL, without a database name."""
    return postgres.url


@pytest.fixture(scope="session")
def new_postgres(postgres: PostgresServer) -> Callable[[], str]:
    """Makes an empty database and returns its URL."""
    return postgres.new_database
