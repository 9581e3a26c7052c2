"""Decisions about results in the store: promotions, regressions, cards in quarantine.

A regression is raised once, decided, notified once and acknowledged.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Table, select, update

from results_db import insert
from results_db.convert import ratio_columns, reader, reuse_key, values_of
from results_db.promotion_records import (
    CardTime,
    PromotionRecord,
    QuarantineRecord,
    RegressionRecord,
    RegressionState,
)
from results_db.stored_records import TaskKey
from results_db.tables import (
    BASELINE,
    DEVICE,
    KERNEL,
    PROMOTION,
    QUARANTINE,
    REGRESSION,
    RUN,
    SELECTION,
    TASK,
    TASKS,
    TOOLCHAIN,
)
from results_db.transactions import Transactions
from search_spaces.records import Config
from tuner.base.log_ratio import LogRatio

_log = logging.getLogger(__name__)


class DecisionStore(Transactions):
    """Decisions about entries of published tables, steps to a higher time, and cards."""

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

        What is confirmed stays.
        """
        values: dict[str, Any] = {"state": state, "reason": reason}
        if state is not RegressionState.CANDIDATE:
            values |= {"decided_at": datetime.now(UTC), **ratio_columns(ratio)}
        self._change(REGRESSION, number, values, REGRESSION.c.state != RegressionState.CONFIRMED)

    def acknowledge_regression(self, number: int) -> bool:
        """Note that a regression is known; False for an unknown number."""
        return self._change(REGRESSION, number, {"acknowledged_at": datetime.now(UTC)})

    # -- cards ---------------------------------------------------------------------------------
    def quarantines(self) -> list[QuarantineRecord]:
        """All quarantines, newest first."""
        query = select(QUARANTINE).order_by(QUARANTINE.c.id.desc())
        return self._read_all(query, reader(QuarantineRecord, QUARANTINE))

    def quarantine(self, card: str, device: str, reason: str, since: datetime) -> bool:
        """Give a card no work from now on; False if it has none already.

        device: the name of its model. since: when its results begin not to count.
        """
        values = {
            "card": card,
            "device": device,
            "reason": reason,
            "since": since,
            "found_at": datetime.now(UTC),
        }
        known = select(QUARANTINE.c.id).where(
            QUARANTINE.c.card == card, QUARANTINE.c.admitted_at.is_(None)
        )

        def insert_it(connection: Connection) -> bool:
            if connection.execute(known).first() is not None:
                return False
            connection.execute(QUARANTINE.insert().values(**values))
            return True

        return self._write(insert_it)

    def admit_card(self, card: str) -> bool:
        """Let a card work again; False if it is in no quarantine."""
        # Of two drivers that found it at once, each may have stored a quarantine.
        column = QUARANTINE.c
        statement = update(QUARANTINE).where(column.card == card, column.admitted_at.is_(None))
        now = {"admitted_at": datetime.now(UTC)}
        return self._write(lambda each: bool(each.execute(statement.values(**now)).rowcount))

    def list_card_times(self, runs: int = 60) -> list[CardTime]:
        """What each card has timed in confirmations of the newest runs, oldest run first."""
        newest = select(RUN.c.id).order_by(RUN.c.id.desc()).limit(runs)
        task = TASK.c
        # What torch and its libraries time is the same work under another Triton.
        facts = TOOLCHAIN.c.torch, TOOLCHAIN.c.cuda, TOOLCHAIN.c.driver
        what = KERNEL.c.name, task.workload_id, DEVICE.c.fingerprint, *facts
        confirmed = (
            select(task.id, task.run_id, DEVICE.c.name, SELECTION.c.clocks)
            .add_columns(SELECTION.c.confirmed_at, task.toolchain_id, *what, task.protocol)
            .select_from(TASKS.join(SELECTION))
            .where(task.run_id.in_(newest))
            .order_by(task.run_id, task.id)
        )
        timed = (
            select(task.id, BASELINE.c.name, BASELINE.c.median_us)
            .select_from(TASK.join(BASELINE))
            .where(task.run_id.in_(newest), BASELINE.c.median_us > 0)
            .order_by(BASELINE.c.position)
        )

        def read(connection: Connection) -> list[CardTime]:
            times: dict[int, list[tuple[str, float]]] = defaultdict(list)
            for task_id, name, us in connection.execute(timed):
                times[task_id].append((name, us))
            found: list[CardTime] = []
            seen = set()
            for task_id, run_id, device, clocks, at, tools, *what in connection.execute(confirmed):
                card = clocks.get("card")
                # An outcome that a later run took over was measured once.
                if card and (key := (card, at, tools, *what)) not in seen:
                    seen.add(key)
                    found += [
                        CardTime(
                            run_id, card, device, (*what, _name_work(name, tools)), us, clocks, at
                        )
                        for name, us in times[task_id]
                    ]
            return found

        return self._read(read)

    def list_confirming_cards(
        self, key: TaskKey, winner: Config, away: Sequence[QuarantineRecord] = ()
    ) -> set[str]:
        """The cards on which confirmations of any run with this reuse key had this winner.

        away: what these cover does not count.
        """
        query = (
            select(SELECTION.c.clocks, SELECTION.c.confirmed_at)
            .select_from(TASK.join(SELECTION))
            .where(TASK.c.reuse_key == reuse_key(key), SELECTION.c.winner == dict(winner))
        )
        found = self._read(lambda each: each.execute(query).all())
        return {
            f"{clocks['card']}"
            for clocks, at in found
            if "card" in clocks and not any(each.covers(clocks, at) for each in away)
        }

    # -- notices -------------------------------------------------------------------------------
    def claim_notice(self, about: RegressionRecord | QuarantineRecord) -> bool:
        """Claim the notification: True for exactly one of all processes that try."""
        table = _table_of(about)
        unsaid = table.c.notified_at.is_(None)
        return self._change(table, about.id, {"notified_at": datetime.now(UTC)}, unsaid)

    def return_notice(self, about: RegressionRecord | QuarantineRecord) -> None:
        """Give a claim back after a failure, so that a later call notifies."""
        self._change(_table_of(about), about.id, {"notified_at": None})

    def _change(self, table: Table, number: int, values: dict[str, Any], *more: Any) -> bool:
        statement = update(table).where(table.c.id == number, *more).values(**values)
        return self._write(lambda each: bool(each.execute(statement).rowcount))


def _name_work(baseline: str, tools: int) -> str:
    """What a baseline does: one that `torch.compile` makes is another one under another Triton."""
    return f"{baseline} {tools}" if baseline.startswith("compile") else baseline


def _table_of(about: RegressionRecord | QuarantineRecord) -> Table:
    return QUARANTINE if isinstance(about, QuarantineRecord) else REGRESSION
