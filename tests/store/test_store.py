"""The store's contract on each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from store_contract import StoreContract

from results_db import Store


class TestSqlite(StoreContract):
    @pytest.fixture
    def url(self, sqlite_url: str) -> str:
        return sqlite_url

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with Store.open(url) as store:
            yield store


@pytest.mark.postgres
class TestPostgres(StoreContract):
    @pytest.fixture
    def url(self, emptied_postgres: str) -> str:
        return emptied_postgres

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with Store.open(url) as store:
            yield store
