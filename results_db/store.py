"""The store of results. Only the driver of a campaign writes to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select, update

from results_db import convert, frames, health, insert, migrate, overview, query, transactions
from results_db.connections import Database
from results_db.masking import mask_passwords
from results_db.patience import Patience
from results_db.store_decisions import DecisionStore
from results_db.store_fires import FireStore
from results_db.store_runs import RunStore
from results_db.store_trials import TrialStore
from results_db.stored_records import (
    BaselineRecord,
    CalibrationRecord,
    ConfirmedTask,
    ExportInfo,
    FinalRecord,
    RunChecks,
    RunInfo,
    SelectionRecord,
    Stage,
    TaskInfo,
    TaskKey,
    TaskSummary,
    TrialRecord,
)
from results_db.tables import (
    CALIBRATION,
    DEVICE,
    EXPORT,
    KERNEL,
    SELECTION,
    TASK,
    TASKS,
    TOOLCHAIN,
    WORKLOAD,
)
from search_spaces.records import Config, Device, Toolchain, Workload
from search_spaces.size_range import RangePlace
from tuner.base.tracing import span
from workers.job_records import Calibration

if TYPE_CHECKING:
    import pandas as pd


# -- the confirmed tasks of all runs, in outline, for the choice of the best known result ----------
def tasks(connection: Connection, kernel: str | None) -> list[ConfirmedTask]:
    """Tasks with a confirmed time, the newest result first. Loads no samples.

    kernel: only tasks of the kernel with this name.
    """
    query = (
        select(
            TASK.c.id.label("task_id"),
            KERNEL.c.name.label("kernel"),
            KERNEL.c.launch_hash,
            WORKLOAD.c.key.label("workload"),
            DEVICE.c.kind.label("device_kind"),
            DEVICE.c.name.label("device"),
            DEVICE.c.target,
            DEVICE.c.fingerprint,
            TOOLCHAIN.c.torch,
            TOOLCHAIN.c.triton,
            SELECTION.c.median_us,
            SELECTION.c.default_us,
        )
        .select_from(TASKS.join(SELECTION))
        .where(SELECTION.c.median_us.is_not(None))
        .order_by(SELECTION.c.recorded_at.desc(), SELECTION.c.id.desc())
    )
    if kernel is not None:
        query = query.where(KERNEL.c.name == kernel)
    return [ConfirmedTask(**row) for row in connection.execute(query).mappings()]


# -- the store of results --------------------------------------------------------------------------
_log = logging.getLogger(__name__)


class Store(RunStore, FireStore, TrialStore, DecisionStore):
    """One results database. `Store.open` opens it; `close` or the end of `with` closes it.

    Every call is one transaction. A failed call raises `StoreError` and stores nothing. Threads may
    share a store; each process must open its own.
    """

    @classmethod
    def open(cls, url: str, *, create: bool = True, answer_s: float | None = None) -> Store:
        """Open a database: `sqlite:///FILE`, `sqlite://` (memory) or `postgresql+psycopg://...`.

        create: create missing folders, file and schema. answer_s: seconds after which a statement
        without an answer raises `StoreAwayError`. Raises `StoreError` for a database that cannot be
        read, is not a results database, or has another schema.
        """
        database = Database(url, create=create, answer_s=answer_s)
        try:
            with span("open the database", "database"):
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
        """The URL with hidden passwords."""
        return mask_passwords(self._database.url.render_as_string(hide_password=False))

    def under(self, lease: str) -> Store:
        """The same database with this lease for writes to runs. Close only one of the two."""
        return Store(self._database, lease, self.patience)

    def waiting(self, patience: Patience) -> Store:
        """The same database with calls that wait during outages. Close only one of the two."""
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
        place: RangePlace | None = None,
    ) -> TaskInfo:
        """The run's task with that key. A missing task is added in stage `search`.

        place: where the workload is one of the sizes of a range.
        """
        facts = {
            "stage": Stage.SEARCH,
            "flops": flops,
            "bytes": bytes,
            "tolerance": tolerance,
            "note": note,
            "place": {} if place is None else place.to_json(),
        }

        def ensure(connection: Connection) -> TaskInfo:
            task_id = insert.task_id(connection, run_id, key, facts)
            return self._load_tasks(connection, [task_id])[task_id]

        return self._write_run(run_id, ensure)

    def renew_identity(self, task_id: int, key: TaskKey) -> None:
        """Give a task another identity of its kernel, with which its results are reused.

        key: the task's, with the identity of code that launches the same.
        """

        def renew(connection: Connection) -> None:
            values = {
                "kernel_id": insert.kernel_id(connection, key),
                "reuse_key": convert.reuse_key(key),
            }
            connection.execute(update(TASK).where(TASK.c.id == task_id).values(**values))

        self._write(renew)

    def set_stage(self, task_id: int, stage: str, note: str | None = None) -> None:
        """Set the stage to `search`, `finals`, `confirm` or `done`; replace the note if given."""
        self._change_task(
            task_id, {"stage": stage} if note is None else {"stage": stage, "note": note}
        )

    def tasks(self, run_id: int) -> list[TaskInfo]:
        """The tasks of a run in the order of their addition, with selections and baselines."""
        return self._read(lambda each: query.tasks(each, run_id))

    def task(self, task_id: int) -> TaskInfo:
        """One task with its selection, baselines and finals. `StoreError` where there is none."""
        return self.tasks_by_number([task_id])[task_id]

    def tasks_by_number(self, task_ids: Sequence[int]) -> dict[int, TaskInfo]:
        """The tasks of these numbers, in that order, each as `task` gives it."""
        return self._read(lambda each: self._load_tasks(each, task_ids))

    def list_confirmed(self, kernel: str | None = None) -> list[ConfirmedTask]:
        """Tasks of all runs, or of one kernel, with a confirmed time; newest result first."""
        return self._read(lambda each: tasks(each, kernel))

    def list_kernel_tasks(
        self,
        kernel: str,
        *,
        words: Sequence[str] = (),
        campaign: str | None = None,
        limit: int = 50,
    ) -> list[tuple[RunInfo, TaskInfo]]:
        """Tasks of a kernel with their runs: of each workload and device in the newest runs.

        words: dims that a workload must have, as in its key. limit: runs of one workload.
        """
        return self._read(lambda each: query.kernel_tasks(each, kernel, words, campaign, limit))

    def number_tasks(self, run_id: int) -> dict[int, int]:
        """By the id of each task of a run, its number as people see it: from 1, as declared."""
        return self._read(lambda each: query.number_tasks(each, run_id))

    def overview(self, run_id: int, task_id: int | None = None) -> list[TaskSummary]:
        """The progress of a run's tasks, in the order of their addition. Loads no trial.

        task_id: only this task; none where the run does not have it.
        """
        return self._read(lambda each: overview.tasks(each, run_id, task_id))

    def count_device_compiles(self, run_id: int) -> tuple[int, str]:
        """The number of launches of a run that compiled on a device worker, and one message."""
        return self._read(lambda each: overview.count_device_compiles(each, run_id))

    def count_states(self) -> dict[str, dict[str, int]]:
        """Of `run` and `trial` how many have each status, of `task` each stage in running runs."""
        return self._read(overview.count_states)

    def summarize_checks(self, run_id: int) -> RunChecks:
        """What the checks of a run's trials found."""
        return self._read(lambda each: overview.summarize_checks(each, run_id))

    def record_selection(
        self,
        task_id: int,
        selection: SelectionRecord,
        baselines: Sequence[BaselineRecord],
        finals: Sequence[FinalRecord] = (),
    ) -> None:
        """Store the outcome of a task with its baselines and finals, and replace earlier ones."""
        values = convert.values_of(selection)
        values |= {"task_id": task_id, "recorded_at": datetime.now(UTC)}
        others = convert.list_parts(task_id, baselines), convert.list_parts(task_id, finals)
        self._write_task(task_id, lambda each: insert.selection(each, values, *others))

    def find_settled(self, key: TaskKey, *, exclude_task: int | None = None) -> TaskInfo | None:
        """The newest task of any run with the same reuse key, space and a confirmed outcome."""
        return self._read(lambda each: query.find_settled(each, key, exclude_task))

    # -- devices -------------------------------------------------------------------------------
    def record_calibration(
        self, device: Device, toolchain: Toolchain, host: str, calibration: Calibration
    ) -> bool:
        """Add a calibration of a device; False if an identical one is stored."""
        values = convert.calibration_values(device, toolchain, host, calibration)
        values |= {"measured_at": datetime.now(UTC)}
        return self._write(lambda each: insert.calibration(each, device, toolchain, values))

    def calibrations(self, device_fingerprint: str | None = None) -> list[CalibrationRecord]:
        """Calibrations of all devices or of one fingerprint, newest first."""
        found = query.CALIBRATIONS.order_by(CALIBRATION.c.id.desc())
        if device_fingerprint is not None:
            found = found.where(DEVICE.c.fingerprint == device_fingerprint)
        return self._read_all(found, convert.calibration_record)

    # -- trials --------------------------------------------------------------------------------
    def record_trial(self, task_id: int, record: TrialRecord) -> bool:
        """Store a finished trial in one transaction.

        False, and nothing is stored, if the attempt is stored anywhere, or the config or the number
        in this task.
        """
        values = convert.trial_values(record)
        values |= {"task_id": task_id, "recorded_at": datetime.now(UTC)}
        measurement = convert.measurement_values(record)

        def insert_trial(connection: Connection) -> bool:
            best_us = transactions.task(connection, self._database.name, task_id, self.lease)
            return insert.trial(connection, values, measurement, best_us)

        return self._write(insert_trial)

    def winners(
        self,
        kernel: str,
        device_fingerprint: str | None = None,
        limit: int = 100,
        *,
        before_run: int | None = None,
    ) -> list[tuple[Workload, Config]]:
        """Winners of a kernel with their workloads, newest first, for warm starts.

        before_run: only winners of runs that began before that run, so that a resumed run gets the
        same warm start again.
        """
        return self._read(
            lambda each: query.winners(each, kernel, device_fingerprint, limit, before_run)
        )

    # -- frames --------------------------------------------------------------------------------
    def trials_frame(self, run_id: int | None = None, task_id: int | None = None) -> pd.DataFrame:
        """One row per trial, with the columns `TRIAL_COLUMNS` and `config.<name>`."""
        return self._read(lambda each: frames.trials(each, run_id, task_id))

    # -- exports -------------------------------------------------------------------------------
    def record_export(
        self,
        path: str,
        format: str,
        run_id: int | None,
        sha256: str,
        task_ids: Sequence[int] = (),
    ) -> None:
        """Record that a file was written from the results of these tasks.

        In a read-only database only a warning is logged: the file is there.
        """
        if self._database.read_only:
            _log.warning("%s: read-only; the export of %s is not recorded", self.url, path)
            return
        values = convert.values_of(
            ExportInfo(path, format, run_id, sha256, tuple(task_ids), datetime.now(UTC))
        )
        self._write(lambda each: insert.new_id(each, EXPORT, values))

    def exports(self) -> list[ExportInfo]:
        """Exports, newest first."""
        newest = select(EXPORT).order_by(EXPORT.c.id.desc())
        return self._read_all(newest, convert.reader(ExportInfo, EXPORT))

    # -- health --------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """`revision`, `head`, `file_bytes`, `rows` (per table) and `trials` (per status)."""
        return health.stats(self._database)

    def check(self) -> list[str]:
        """The faults of the database, one line each; an empty list for a valid database."""
        return health.check(self._database)

    def _load_tasks(self, connection: Connection, task_ids: Sequence[int]) -> dict[int, TaskInfo]:
        found = query.load_tasks(connection, task_ids)
        for task_id in task_ids:
            if task_id not in found:
                raise transactions.unknown(self._database.name, f"task {task_id}")
        return {task_id: found[task_id] for task_id in task_ids}
