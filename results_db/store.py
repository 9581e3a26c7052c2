"""The store: records in, records and frames out. Only the driver of a campaign writes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from results_db import convert, fence, frames, health, insert, migrate, overview, query
from results_db.engine import Database
from results_db.masking import masked
from results_db.models import Export
from results_db.patience import Patience
from results_db.records import (
    BaselineRecord,
    CalibrationRecord,
    ExportInfo,
    FinalRecord,
    SelectionRecord,
    TaskInfo,
    TaskKey,
    TaskSummary,
    TrialRecord,
)
from results_db.store_fires import FireStore
from results_db.store_runs import RunStore
from results_db.store_trials import TrialStore
from search_spaces.records import Config, Device, Toolchain, Workload
from workers.records import Calibration

if TYPE_CHECKING:
    import pandas as pd


class Store(RunStore, FireStore, TrialStore):
    """One results database. Opened by `Store.open`, closed by `close` or by leaving `with`.

    Every call is one transaction. What goes wrong is a `StoreError`, and then nothing of the call
    is stored. Threads may share a store; processes open their own.
    """

    @classmethod
    def open(cls, url: str, *, create: bool = True, answer_s: float | None = None) -> Store:
        """Open a database: `sqlite:///FILE`, `sqlite://` (memory) or `postgresql+psycopg://...`.

        create: make folders, file and schema where there are none. answer_s: seconds after which a
        statement that has no answer is a `StoreAwayError`. Raises `StoreError` when it cannot be
        reached or read, is not a results database, or has another schema.
        """
        database = Database(url, create=create, answer_s=answer_s)
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
        """The database for people to read: passwords in it are hidden."""
        return masked(self._database.url.render_as_string(hide_password=False))

    def under(self, lease: str) -> Store:
        """The same database for the driver that holds runs under this lease; close only one."""
        return Store(self._database, lease, self.patience)

    def waiting(self, patience: Patience) -> Store:
        """The same database with calls that wait so long while it is away; close only one."""
        return Store(self._database, self.lease, patience)

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

        def ensure(connection: Connection) -> TaskInfo:
            task_id = insert.task_id(connection, run_id, key, facts)
            return self._task(connection, task_id)

        return self._write_run(run_id, ensure)

    def set_stage(self, task_id: int, stage: str, note: str | None = None) -> None:
        """Move a task to `search`, `finals`, `confirm` or `done`; a note replaces the old one."""
        self._change_task(
            task_id, {"stage": stage} if note is None else {"stage": stage, "note": note}
        )

    def tasks(self, run_id: int) -> list[TaskInfo]:
        """The tasks of a run in the order they were added, with selections and baselines."""
        return self._read(lambda each: query.tasks(each, run_id))

    def overview(self, run_id: int) -> list[TaskSummary]:
        """The tasks of a run with how far they are, in the order they were added; fast."""
        return self._read(lambda each: overview.tasks(each, run_id))

    def compiled(self, run_id: int) -> tuple[int, str]:
        """How many launches of a run compiled on a device worker, and why in one case."""
        return self._read(lambda each: overview.compiled(each, run_id))

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
        self._write_task(task_id, lambda each: insert.selection(each, values, *others))

    def settled(self, key: TaskKey, *, exclude_task: int | None = None) -> TaskInfo | None:
        """The newest task of any run with the same reuse key and space that has a confirmed
        outcome."""
        return self._read(lambda each: query.settled(each, key, exclude_task))

    # -- devices -------------------------------------------------------------------------------
    def record_calibration(
        self, device: Device, toolchain: Toolchain, host: str, calibration: Calibration
    ) -> bool:
        """Add what a device was just found to do; False when the very same is known."""
        values = convert.calibration_values(device, toolchain, host, calibration)
        values |= {"measured_at": datetime.now(UTC)}
        return self._write(lambda each: insert.calibration(each, device, toolchain, values))

    def calibrations(self, device_fingerprint: str | None = None) -> list[CalibrationRecord]:
        """What devices were found to do, all or those of one fingerprint, the newest first."""
        return self._read(lambda each: query.calibrations(each, device_fingerprint))

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

        def record_it(connection: Connection) -> bool:
            best_us = fence.task(connection, self._database.name, task_id, self.lease)
            return insert.trial(connection, values, measurement, best_us)

        return self._write(record_it)

    def trials(self, task_id: int) -> list[TrialRecord]:
        """The trials of a task by number, with their raw samples."""
        return self._read(lambda each: query.trials(each, task_id))

    def known_trials(self, key: TaskKey, *, exclude_task: int | None = None) -> list[TrialRecord]:
        """What any run found for the same code, workload, device, toolchain and protocol.

        Both halves of the kernel's identity must agree. The newest trial per config that is not a
        copy from another run, oldest first. The space is no part of the match.
        """
        return self._read(lambda each: query.known_trials(each, key, exclude_task))

    def timed_trials(self, key: TaskKey, *, exclude_task: int | None = None) -> list[TrialRecord]:
        """Times of binaries, whatever the revision of the kernel: one correct trial per binary.

        Of the same kernel name, workload, device, toolchain and protocol; the newest, oldest first.
        A time holds for an equal binary; that its outputs are right has to be verified anew.
        """
        return self._read(lambda each: query.timed_trials(each, key, exclude_task))

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
        return self._read(
            lambda each: query.winners(each, kernel, device_fingerprint, limit, before_run)
        )

    # -- frames --------------------------------------------------------------------------------
    def trials_frame(self, run_id: int | None = None, task_id: int | None = None) -> pd.DataFrame:
        """One row per trial; the columns are those of `TRIAL_COLUMNS` and `config.<name>`."""
        return self._read(lambda each: frames.trials(each, run_id, task_id))

    def selections_frame(self, run_id: int | None = None) -> pd.DataFrame:
        """One row per task that has a selection; the columns are those of `SELECTION_COLUMNS`."""
        return self._read(lambda each: frames.selections(each, run_id))

    def baselines_frame(self, run_id: int | None = None) -> pd.DataFrame:
        """One row per task and baseline; the columns are those of `BASELINE_COLUMNS`."""
        return self._read(lambda each: frames.baselines(each, run_id))

    # -- exports -------------------------------------------------------------------------------
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
        self._write(lambda each: insert.new_id(each, Export, values))

    def exports(self) -> list[ExportInfo]:
        """What was exported, the newest first."""
        return self._read(lambda each: query.exports(each))

    # -- health --------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """`revision`, `head`, `file_bytes`, `rows` (per table) and `trials` (per status)."""
        return health.stats(self._database)

    def check(self) -> list[str]:
        """What is wrong with the database, one line each; an empty list when nothing is."""
        return health.check(self._database)

    def _task(self, connection: Connection, task_id: int) -> TaskInfo:
        found = query.task(connection, task_id)
        if found is None:
            raise fence.unknown(self._database.name, f"task {task_id}")
        return found
