"""The store: records in, records and frames out. Only the driver of a campaign writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, update

from results_db import convert, frames, health, insert, migrate, query
from results_db.engine import Database
from results_db.errors import StoreError
from results_db.models import Base, Export, Run, ScheduleFire, Task
from results_db.records import (
    BaselineRecord,
    CalibrationRecord,
    ExportInfo,
    FinalRecord,
    Fire,
    RunInfo,
    SelectionRecord,
    TaskInfo,
    TaskKey,
    TrialRecord,
)
from search_spaces.records import Config, Device, Toolchain, Workload
from workers.records import Calibration

if TYPE_CHECKING:
    import pandas as pd


class Store:
    """One results database. Opened by `Store.open`, closed by `close` or by leaving `with`.

    Every call is one transaction. What goes wrong is a `StoreError`, and then nothing of the call
    is stored. Threads may share a store; processes open their own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Store:
        """Open a database: `sqlite:///FILE`, `sqlite://` (memory) or `postgresql+psycopg://...`.

        create: make folders, file and schema where there are none. Raises `StoreError` when it
        cannot be reached or read, is not a results database, or has another schema.
        """
        database = Database(url, create=create)
        try:
            migrate.ensure(database, create=create)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The database for people to read: a password in it is hidden."""
        return self._database.url.render_as_string(hide_password=True)

    # -- runs ----------------------------------------------------------------------------------
    def begin_run(
        self,
        campaign: str,
        spec_hash: str,
        seed: int,
        environment: Mapping[str, Any],
        spec: Mapping[str, Any],
        *,
        resume: bool = False,
    ) -> RunInfo:
        """Start a run of a campaign; its status is `running`.

        With `resume`, the newest unfinished run of that campaign and specification where there is
        one: of two drivers that ask at once, one begins the run and both get it.
        """
        values = {
            "status": "running",
            "started_at": datetime.now(UTC),
            "spec_hash": spec_hash,
            "seed": seed,
            "environment": dict(environment),
            "spec": dict(spec),
            "summary": {},
            "holder": "",
        }
        with self._database.write() as connection:
            campaign_id = insert.campaign_id(connection, campaign)
            if resume:
                query.lock_campaign(connection, campaign_id)
                found = self._unfinished(connection, campaign, spec_hash)
                if found is not None:
                    return found
            run_id = insert.new_id(connection, Run, values | {"campaign_id": campaign_id})
            return self._run(connection, run_id or 0)

    def unfinished_run(self, campaign: str, spec_hash: str) -> RunInfo | None:
        """The newest run of that campaign and specification that did not come to its end."""
        with self._database.read() as connection:
            return self._unfinished(connection, campaign, spec_hash)

    def set_run_status(self, run_id: int, status: str) -> None:
        """Set `running`, `interrupted`, `failed` or `finished`; only `running` has no end."""
        finished_at = None if status == "running" else datetime.now(UTC)
        self._change(Run, run_id, {"status": status, "finished_at": finished_at})

    def finish_run(self, run_id: int, status: str, summary: Mapping[str, Any]) -> None:
        """End a run with its status and the figures a listing shows."""
        values = {
            "status": status,
            "finished_at": datetime.now(UTC),
            "summary": dict(summary),
            "holder": "",
        }
        self._change(Run, run_id, values)

    def hold_run(self, run_id: int, holder: str, instead_of: str = "") -> bool:
        """Take a run, or give a sign of life on it; False when another driver holds it.

        holder: `host:pid`. instead_of: a holder known to be dead. The run is `running` then.
        """
        values = {"holder": holder, "heartbeat_at": datetime.now(UTC), "status": "running"}
        statement = (
            update(Run)
            .where(Run.id == run_id, Run.holder.in_({holder, instead_of}))
            .values(**values, finished_at=None)
        )
        with self._database.write() as connection:
            return bool(connection.execute(statement).rowcount)

    def runs(self, campaign: str | None = None, limit: int = 50) -> list[RunInfo]:
        """Runs, of one campaign or of all, the newest first."""
        with self._database.read() as connection:
            return query.runs(connection, campaign=campaign, limit=limit)

    def run(self, run_id: int) -> RunInfo:
        """One run; raises `StoreError` when there is none of that number."""
        with self._database.read() as connection:
            return self._run(connection, run_id)

    def last_run(self, campaign: str | None = None) -> RunInfo | None:
        """The newest run, of one campaign or of all."""
        found = self.runs(campaign, limit=1)
        return found[0] if found else None

    # -- tasks ---------------------------------------------------------------------------------
    def ensure_task(
        self,
        run_id: int,
        key: TaskKey,
        *,
        flops: float,
        bytes: float,
        tolerance: float | None,
        note: str = "",
    ) -> TaskInfo:
        """The run's task of that key, as stored; added in stage `search` where there is none."""
        facts = {
            "stage": "search",
            "flops": flops,
            "bytes": bytes,
            "tolerance": tolerance,
            "note": note,
        }
        with self._database.write() as connection:
            self._run(connection, run_id)
            task_id = insert.task_id(connection, run_id, key, facts)
            return self._task(connection, task_id)

    def set_stage(self, task_id: int, stage: str, note: str | None = None) -> None:
        """Move a task to `search`, `finals`, `confirm` or `done`; a note replaces the old one."""
        self._change(
            Task, task_id, {"stage": stage} if note is None else {"stage": stage, "note": note}
        )

    def tasks(self, run_id: int) -> list[TaskInfo]:
        """The tasks of a run in the order they were added, with selections and baselines."""
        with self._database.read() as connection:
            return query.tasks(connection, run_id)

    def record_selection(
        self,
        task_id: int,
        selection: SelectionRecord,
        baselines: Sequence[BaselineRecord],
        finals: Sequence[FinalRecord] = (),
    ) -> None:
        """Store the outcome of a task, its baselines and finals, in place of earlier ones."""
        values = {
            **convert.selection_values(selection),
            "task_id": task_id,
            "recorded_at": datetime.now(UTC),
        }
        others = convert.baseline_rows(task_id, baselines), convert.final_rows(task_id, finals)
        with self._database.write() as connection:
            self._task(connection, task_id)
            insert.selection(connection, values, *others)

    def settled(self, key: TaskKey, *, exclude_task: int | None = None) -> TaskInfo | None:
        """The newest task of any run with the same reuse key and space that has a confirmed
        outcome."""
        with self._database.read() as connection:
            return query.settled(connection, key, exclude_task)

    # -- devices -------------------------------------------------------------------------------
    def record_calibration(
        self, device: Device, toolchain: Toolchain, host: str, calibration: Calibration
    ) -> bool:
        """Add what a device was just found to do; False when the very same is known."""
        values = convert.calibration_values(device, toolchain, host, calibration)
        with self._database.write() as connection:
            return insert.calibration(
                connection, device, toolchain, values | {"measured_at": datetime.now(UTC)}
            )

    def calibrations(self, device_fingerprint: str | None = None) -> list[CalibrationRecord]:
        """What devices were found to do, all or those of one fingerprint, the newest first."""
        with self._database.read() as connection:
            return query.calibrations(connection, device_fingerprint)

    # -- trials --------------------------------------------------------------------------------
    def record_trial(self, task_id: int, record: TrialRecord) -> bool:
        """Store a finished trial in one transaction.

        False, and nothing stored, when its attempt is known anywhere or its config or number in
        this task.
        """
        values = {
            **convert.trial_values(record),
            "task_id": task_id,
            "recorded_at": datetime.now(UTC),
        }
        measurement = convert.measurement_values(record)
        with self._database.write() as connection:
            return insert.trial(connection, values, measurement)

    def trials(self, task_id: int) -> list[TrialRecord]:
        """The trials of a task by number, with their raw samples."""
        with self._database.read() as connection:
            return query.trials(connection, task_id)

    def known_trials(self, key: TaskKey, *, exclude_task: int | None = None) -> list[TrialRecord]:
        """What any run found for the same kernel source, workload, device, toolchain and protocol.

        The newest trial per config that is not a copy from another run, oldest first. The space is
        no part of the match.
        """
        with self._database.read() as connection:
            return query.known_trials(connection, key, exclude_task)

    def winners(
        self,
        kernel: str,
        device_fingerprint: str | None = None,
        limit: int = 100,
        *,
        before_run: int | None = None,
    ) -> list[tuple[Workload, Config]]:
        """Winning configs of a kernel with their workloads, the newest first, for warm starts.

        before_run: only those of runs begun before that one, so that a resumed run starts as it
        first did.
        """
        with self._database.read() as connection:
            return query.winners(connection, kernel, device_fingerprint, limit, before_run)

    # -- frames --------------------------------------------------------------------------------
    def trials_frame(self, run_id: int | None = None, task_id: int | None = None) -> pd.DataFrame:
        """One row per trial; the columns are those of `TRIAL_COLUMNS` and `config.<name>`."""
        with self._database.read() as connection:
            return frames.trials(connection, run_id, task_id)

    def selections_frame(self, run_id: int | None = None) -> pd.DataFrame:
        """One row per task that has a selection; the columns are those of `SELECTION_COLUMNS`."""
        with self._database.read() as connection:
            return frames.selections(connection, run_id)

    def baselines_frame(self, run_id: int | None = None) -> pd.DataFrame:
        """One row per task and baseline; the columns are those of `BASELINE_COLUMNS`."""
        with self._database.read() as connection:
            return frames.baselines(connection, run_id)

    # -- exports and schedules -----------------------------------------------------------------
    def record_export(
        self,
        path: str,
        format: str,
        run_id: int | None,
        sha256: str,
        task_ids: Sequence[int] = (),
    ) -> None:
        """Note that a table or file was written from these tasks' results."""
        values = convert.export_values(path, format, run_id, sha256, task_ids)
        with self._database.write() as connection:
            insert.new_id(connection, Export, values)

    def exports(self) -> list[ExportInfo]:
        """What was exported, the newest first."""
        with self._database.read() as connection:
            return query.exports(connection)

    def claim_fire(self, schedule: str, instant: datetime, host: str) -> bool:
        """Take a firing upon oneself: True for exactly one of all hosts that ask."""
        values = convert.fire_values(schedule, instant, host, "started")
        with self._database.write() as connection:
            return insert.new_id(connection, ScheduleFire, values) is not None

    def finish_fire(
        self,
        schedule: str,
        instant: datetime,
        state: str,
        run_id: int | None = None,
        message: str = "",
    ) -> None:
        """End a claimed firing as `finished` or `failed`."""
        statement = (
            update(ScheduleFire)
            .where(ScheduleFire.schedule == schedule, ScheduleFire.instant == instant)
            .values(state=state, run_id=run_id, message=message)
        )
        with self._database.write() as connection:
            if not connection.execute(statement).rowcount:
                raise StoreError(
                    f"{self._database.name}: {schedule!r} has no firing at {instant}",
                    "claim it first",
                )

    def record_missed(self, schedule: str, instants: Sequence[datetime], host: str) -> None:
        """Note firings that were let pass; those already claimed stay as they are."""
        with self._database.write() as connection:
            for instant in instants:
                values = convert.fire_values(schedule, instant, host, "missed")
                insert.new_id(connection, ScheduleFire, values)

    def last_fire(self, schedule: str) -> Fire | None:
        """The firing with the latest instant, missed ones included."""
        found = self.fires(schedule, limit=1)
        return found[0] if found else None

    def fires(self, schedule: str | None = None, limit: int = 50) -> list[Fire]:
        """Firings, of one schedule or of all, the latest instant first."""
        with self._database.read() as connection:
            return query.fires(connection, schedule, limit)

    # -- health --------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """`revision`, `head`, `file_bytes`, `rows` (per table) and `trials` (per status)."""
        return health.stats(self._database)

    def check(self) -> list[str]:
        """What is wrong with the database, one line each; an empty list when nothing is."""
        return health.check(self._database)

    def _unfinished(self, connection: Connection, campaign: str, spec_hash: str) -> RunInfo | None:
        unfinished = query.UNFINISHED
        found = query.runs(
            connection, campaign=campaign, spec_hash=spec_hash, statuses=unfinished, limit=1
        )
        return found[0] if found else None

    def _run(self, connection: Connection, run_id: int) -> RunInfo:
        found = query.run(connection, run_id)
        if found is None:
            raise self._unknown(Run, run_id)
        return found

    def _task(self, connection: Connection, task_id: int) -> TaskInfo:
        found = query.task(connection, task_id)
        if found is None:
            raise self._unknown(Task, task_id)
        return found

    def _change(self, model: type[Run | Task], row_id: int, values: dict[str, Any]) -> None:
        statement = update(model).where(model.id == row_id).values(**values)
        with self._database.write() as connection:
            if not connection.execute(statement).rowcount:
                raise self._unknown(model, row_id)

    def _unknown(self, model: type[Base], row_id: int) -> StoreError:
        return StoreError(
            f"{self._database.name}: there is no {model.__tablename__} {row_id}",
            "`tuner status` lists the runs and their tasks",
        )
