"""Decisions about results in the store: promotions, and regressions.

A regression is raised once, decided, notified once and acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select, update

from results_db import insert
from results_db.convert import ratio_columns, reader, values_of
from results_db.promotion_records import PromotionRecord, RegressionRecord, RegressionState
from results_db.tables import PROMOTION, REGRESSION
from results_db.transactions import Transactions
from tuner.base.log_ratio import LogRatio

_log = logging.getLogger(__name__)


class DecisionStore(Transactions):
    """Decisions about entries of published tables, and about steps to a higher time."""

    def record_promotions(self, records: Sequence[PromotionRecord]) -> None:
        """Store decisions. In a read-only database only a warning is logged."""
        if self._database.read_only:
            name = self._database.name
            _log.warning("%s: read-only; %d promotions are not recorded", name, len(records))
        elif records:
            now = {"decided_at": datetime.now(UTC)}
            values = [values_of(record) | now for record in records]
            self._write(lambda each: each.execute(PROMOTION.insert(), values))

    def promotions(self, run_id: int | None = None) -> list[PromotionRecord]:
        """The decisions about one run's results or about those of all, newest first."""
        query = select(PROMOTION).order_by(PROMOTION.c.id.desc())
        if run_id is not None:
            query = query.where(PROMOTION.c.run_id == run_id)
        return self._read_all(query, reader(PromotionRecord, PROMOTION))

    def regressions(self) -> list[RegressionRecord]:
        """All regressions, newest first."""
        query = select(REGRESSION).order_by(REGRESSION.c.id.desc())
        return self._read_all(query, reader(RegressionRecord, REGRESSION))

    def raise_regression(
        self, task_id: int, former_task_id: int, found_run_id: int, step: LogRatio
    ) -> bool:
        """Store a candidate; False if one begins at that task already."""
        values = {
            "task_id": task_id,
            "former_task_id": former_task_id,
            "found_run_id": found_run_id,
            "state": RegressionState.CANDIDATE,
            "reason": "",
            **ratio_columns(step),
            "found_at": datetime.now(UTC),
        }
        return self._write(lambda each: insert.new_id(each, REGRESSION, values)) is not None

    def decide_regression(
        self, number: int, state: RegressionState, reason: str, ratio: LogRatio | None = None
    ) -> None:
        """Set the state of a candidate with its reason, and the ratio of the pass if there was one.

        What is decided already stays.
        """
        values: dict[str, Any] = {"state": state, "reason": reason}
        if state is not RegressionState.CANDIDATE:
            values |= {"decided_at": datetime.now(UTC), **ratio_columns(ratio)}
        self._change(number, values, REGRESSION.c.state == RegressionState.CANDIDATE)

    def claim_notice(self, number: int) -> bool:
        """Claim the notification: True for exactly one of all processes that try."""
        unsaid = REGRESSION.c.notified_at.is_(None)
        return self._change(number, {"notified_at": datetime.now(UTC)}, unsaid)

    def return_notice(self, number: int) -> None:
        """Give a claim back after a failure, so that a later call notifies."""
        self._change(number, {"notified_at": None})

    def acknowledge_regression(self, number: int) -> bool:
        """Note that a regression is known; False for an unknown number."""
        return self._change(number, {"acknowledged_at": datetime.now(UTC)})

    def _change(self, number: int, values: dict[str, Any], *conditions: Any) -> bool:
        statement = (
            update(REGRESSION).where(REGRESSION.c.id == number, *conditions).values(**values)
        )
        return self._write(lambda each: bool(each.execute(statement).rowcount))
