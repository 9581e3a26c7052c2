"""The store's contract on each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from store_contract import StoreContract
from store_round_trips import RoundTrips

from results_db import Store


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


class OnSqlite:
    @pytest.fixture
    def url(self, sqlite_url: str) -> str:
        return sqlite_url


class OnPostgres:
    @pytest.fixture
    def url(self, emptied_postgres: str) -> str:
        return emptied_postgres


class TestSqlite(OnSqlite, StoreContract):
    pass


class TestSqliteRecords(OnSqlite, RoundTrips):
    pass


@pytest.mark.postgres
class TestPostgres(OnPostgres, StoreContract):
    pass


@pytest.mark.full
@pytest.mark.postgres
class TestPostgresRecords(OnPostgres, RoundTrips):
    pass
