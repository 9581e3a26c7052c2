"""Promotions in the store: what was decided about the entries of published tables."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import insert, select

from results_db.convert import reader, values_of
from results_db.promotion_records import PromotionRecord
from results_db.tables import PROMOTION
from results_db.transactions import Transactions

_log = logging.getLogger(__name__)


class PromotionStore(Transactions):
    """Decisions about entries of published tables."""

    def record_promotions(self, records: Sequence[PromotionRecord]) -> None:
        """Store decisions. In a read-only database only a warning is logged."""
        if self._database.read_only:
            name = self._database.name
            _log.warning("%s: read-only; %d promotions are not recorded", name, len(records))
        elif records:
            now = {"decided_at": datetime.now(UTC)}
            values = [values_of(record) | now for record in records]
            self._write(lambda each: each.execute(insert(PROMOTION), values))

    def promotions(self, run_id: int | None = None) -> list[PromotionRecord]:
        """The decisions about one run's results or about those of all, newest first."""
        query = select(PROMOTION).order_by(PROMOTION.c.id.desc())
        if run_id is not None:
            query = query.where(PROMOTION.c.run_id == run_id)
        return self._read_all(query, reader(PromotionRecord, PROMOTION))
