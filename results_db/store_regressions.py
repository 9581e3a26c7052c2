"""Regressions in the store: raised once, decided, notified once, acknowledged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select, update

from results_db import insert
from results_db.convert import ratio_columns, reader
from results_db.regression_records import RegressionRecord, RegressionState
from results_db.tables import REGRESSION
from results_db.transactions import Transactions
from search_spaces.log_ratio import LogRatio


class RegressionStore(Transactions):
    """Regressions, newest first."""

    def regressions(self) -> list[RegressionRecord]:
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
