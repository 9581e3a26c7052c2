"""Runs in the store: their leases and states."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy import insert as insert_into

from results_db import clock, insert, query, transactions
from results_db.errors import FIRST_RUN, LeaseLostError, StoreError
from results_db.stored_records import RunInfo, RunStatus
from results_db.tables import RUN, TIMELINE
from results_db.transactions import Transactions


class RunStore(Transactions):
    """Runs and their leases.

    Only a store with the lease of a run may write to it. Other writes raise `LeaseLostError` and
    store nothing.
    """

    def begin_run(
        self,
        campaign: str,
        spec_hash: str,
        seed: int,
        environment: Mapping[str, Any],
        spec: Mapping[str, Any],
        *,
        resume: bool = False,
        started_at: datetime | None = None,
    ) -> RunInfo:
        """Begin a run of a campaign with the status `running`; started_at: by default now.

        With `resume`, returns the newest unfinished run of that campaign and specification, if any.
        If two drivers call at once, one begins the run and both get it.
        """
        values = {
            "status": RunStatus.RUNNING,
            "started_at": started_at or datetime.now(UTC),
            "spec_hash": spec_hash,
            "seed": seed,
            "environment": dict(environment),
            "spec": dict(spec),
            "summary": {},
            "holder": "",
        }

        def begin(connection: Connection) -> RunInfo:
            campaign_id = insert.campaign_id(connection, campaign)
            if resume:
                query.lock_campaign(connection, campaign_id)
                found = _find_unfinished(connection, campaign, spec_hash)
                if found is not None:
                    return found
            run_id = insert.new_id(connection, RUN, values | {"campaign_id": campaign_id})
            return self._run(connection, run_id or 0)

        return self._write(begin)

    def unfinished_run(self, campaign: str, spec_hash: str) -> RunInfo | None:
        """The newest unfinished run of that campaign and specification."""
        return self._read(lambda connection: _find_unfinished(connection, campaign, spec_hash))

    def take_run(self, seen: RunInfo, lease: str, holder: str, process: str = "") -> bool:
        """Set a new lease on an unfinished run, and its status to `running`.

        lease: a random token. holder, process: see `RunInfo`. False, and nothing is changed, if the
        run has changed since it was read as `seen`: another driver took it, its holder wrote a
        heartbeat, or it has ended.
        """
        values = {"lease": lease, "holder": holder, "process": process, "status": RunStatus.RUNNING}
        statement = (
            update(RUN)
            .where(
                RUN.c.id == seen.run_id,
                RUN.c.lease == seen.lease,
                RUN.c.holder == seen.holder,
                RUN.c.heartbeat_at.is_not_distinct_from(seen.heartbeat_at),
                RUN.c.status.in_(query.UNFINISHED),
            )
            .values(**values, heartbeat_at=clock.now(), finished_at=None)
        )
        return self._write(lambda connection: bool(connection.execute(statement).rowcount))

    def beat(self, run_id: int) -> None:
        """Write a heartbeat of the driver that holds the run."""
        self._change_run(run_id, {"heartbeat_at": clock.now()})

    def finish_run(self, run_id: int, status: RunStatus, summary: Mapping[str, Any]) -> None:
        """End a run with its status and summary, and release its lease.

        A run that has ended with the same status and summary is unchanged.
        """
        values = {
            "status": status,
            "finished_at": datetime.now(UTC),
            "summary": dict(summary),
            "holder": "",
            "lease": "",
            "process": "",
        }
        try:
            self._change_run(run_id, values)
        except LeaseLostError:
            # A first attempt may have succeeded without its answer being received.
            found = self.run(run_id)
            if (found.status, found.lease, found.summary) != (status, "", dict(summary)):
                raise

    def tag_run(self, run_id: int, tag: str | None) -> int | None:
        """Give a run this tag in place of its own, or none; returns the run that had it.

        Needs no lease: results stay as they are.
        """

        def replace(connection: Connection) -> int | None:
            self._run(connection, run_id)
            others = (RUN.c.tag == tag, RUN.c.tag.is_not(None), RUN.c.id != run_id)
            former = connection.scalar(select(RUN.c.id).where(*others))
            connection.execute(update(RUN).where(*others).values(tag=None))
            connection.execute(update(RUN).where(RUN.c.id == run_id).values(tag=tag))
            return former

        return self._write(replace)

    def tags(self) -> dict[str, int]:
        """The runs that have a tag, by it."""
        query = select(RUN.c.tag, RUN.c.id).where(RUN.c.tag.is_not(None)).order_by(RUN.c.id)
        return self._read(lambda each: {row.tag: row.id for row in each.execute(query)})

    def record_timeline(self, run_id: int, spans: Mapping[str, Any]) -> None:
        """Store the time line of a traced run, in place of the one of an earlier driver.

        spans: the JSON values that `tuner.traces.timeline` makes.
        """
        values = {"run_id": run_id, "spans": dict(spans), "recorded_at": datetime.now(UTC)}

        def replace(connection: Connection) -> None:
            connection.execute(delete(TIMELINE).where(TIMELINE.c.run_id == run_id))
            connection.execute(insert_into(TIMELINE).values(**values))

        self._write_run(run_id, replace)

    def timeline(self, run_id: int) -> Mapping[str, Any] | None:
        """The stored time line of a run; None for a run that was not traced."""
        statement = select(TIMELINE.c.spans).where(TIMELINE.c.run_id == run_id)
        found: Mapping[str, Any] | None = self._read(lambda each: each.scalar(statement))
        return found

    def runs(
        self, campaign: str | None = None, limit: int | None = 50, before: int | None = None
    ) -> list[RunInfo]:
        """Runs of one campaign or of all, newest first; all of them without a limit.

        before: only runs with lower numbers.
        """
        return self._read(
            lambda each: query.runs(each, campaign=campaign, limit=limit, before=before)
        )

    def run(self, run_id: int) -> RunInfo:
        """One run. Raises `StoreError` for an unknown number."""
        return self._read(lambda connection: self._run(connection, run_id))

    def last_run(self, campaign: str | None = None) -> RunInfo | None:
        """The newest run of one campaign or of all."""
        found = self.runs(campaign, limit=1)
        return found[0] if found else None

    def _run(self, connection: Connection, run_id: int) -> RunInfo:
        found = query.run(connection, run_id)
        if found is None:
            newest = connection.scalar(select(func.max(RUN.c.id)))
            if newest is None:
                raise StoreError(f"{self._database.name}: no runs here", FIRST_RUN)
            raise transactions.unknown(self._database.name, f"run {run_id}, the newest is {newest}")
        return found


def _find_unfinished(connection: Connection, campaign: str, spec_hash: str) -> RunInfo | None:
    unfinished = query.UNFINISHED
    found = query.runs(
        connection, campaign=campaign, spec_hash=spec_hash, statuses=unfinished, limit=1
    )
    return found[0] if found else None
