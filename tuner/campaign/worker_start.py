"""The pool that a run needs, and the start of its workers, waited for or as it describes them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces import registry
from search_spaces.errors import TunerError
from tuner.base.tracing import span, trace_calls
from tuner.campaign.tasks import RequestedTask, runner_kinds
from tuner.engine import Event
from tuner.settings.sections import Settings
from workers import backend_kinds
from workers.job_records import PoolSpec, WorkerGone, WorkerInfo, WorkerReady
from workers.toolchain import differences

if TYPE_CHECKING:
    from tuner.campaign.options import Control
    from workers.roles import Pool

#: How long the first runner may take to start, in multiples of the pool's `connect_timeout`.
START_TIMEOUTS = 4
_log = logging.getLogger(__name__)


def required_pool(
    settings: Settings, tasks: Sequence[RequestedTask], base: Path, priority: int = 0
) -> PoolSpec:
    """The spec of a pool that can serve these tasks.

    base: the folder of config.yaml, an import path of the workers.
    """
    pool = settings.pool
    kinds = sorted(runner_kinds(tasks))
    if pool.kind == "local":
        # Libraries for accelerators that this machine lacks need not be loaded.
        here = backend_kinds.present(kinds)
        kinds = [kind for kind in kinds if kind in here or pool.runners_of(kind)]
    return PoolSpec(
        kind=pool.kind,
        runners={kind: pool.runners_of(kind) for kind in kinds},
        builders=pool.builders,
        address=pool.address,
        connect_timeout_s=pool.connect_timeout,
        options={kind: pool.options_of(kind) for kind in kinds},
        reserve=pool.reserve,
        priority=priority,
        paths=(str(base.resolve()),),
        torch_free=all(registry.compiles_without_torch(task.kernel.spec) for task in tasks),
    )


class StartedPool:
    """Starts a pool on entry. Leaving the block kills the workers of a pool that is still open."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._open = True
        self._ending: Future[None] | None = None

    def __enter__(self) -> StartedPool:
        try:
            with span("start the pool", "start"):
                self.pool.start()
        except BaseException:
            self.close(kill=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close(kill=True)

    def begin_to_close(self, *, kill: bool) -> None:
        """Have the workers end while the caller continues, and leave the rest to the block's end.

        A pool that cannot do that is closed.
        """
        if not (self._open and self.pool.begin_kill()):
            self.close(kill=kill)
            return
        self._open = False
        executor = ThreadPoolExecutor(1, "end of the pool")
        self._ending = executor.submit(self._end, kill=True)
        executor.shutdown(wait=False)

    def close(self, *, kill: bool) -> None:
        """Close the pool, or wait for its end; a second call does nothing."""
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.result()
        if self._open:
            self._open = False
            self._end(kill=kill)

    @trace_calls("close the pool", "end")
    def _end(self, *, kill: bool) -> None:
        self.pool.close(kill=kill)


class ExpectedWorkers:
    """The runners that a pool has described, compared with those that start.

    Tasks and their keys in the database name the described device and toolchain. A runner that
    opens another device, or runs under another toolchain, must therefore not measure for them.
    """

    def __init__(self, described: Sequence[WorkerInfo], timeout_s: float) -> None:
        """timeout_s: the longest that the first runner may take to start, from now."""
        self._missing = {worker.worker_id: worker for worker in described}
        self._described = dict(self._missing)
        self._ends_at = time.monotonic() + timeout_s
        #: Whether a runner has started as described.
        self.started = False

    def accepts(self, event: Event) -> bool:
        """Whether the engine may take the event.

        Raises `TunerError` where no described runner is left that could start.
        """
        if isinstance(event, WorkerGone) and not self.started:
            _log.warning("%s did not start: %s", event.worker_id, event.reason)
            self._lose(event)
        if not isinstance(event, WorkerReady):
            return True
        problem = self._difference(event.worker)
        if problem:
            _log.warning("%s is not used: %s", event.worker.worker_id, problem)
            self._lose(WorkerGone(event.worker.worker_id, problem))
            return False
        self.started = True
        _log.info("%s is ready: %s", event.worker.worker_id, event.worker.device.name)
        return True

    def check(self) -> None:
        """Raise `TunerError` when the first runner is overdue."""
        if not self.started and time.monotonic() > self._ends_at:
            raise no_worker(None)

    def _difference(self, worker: WorkerInfo) -> str:
        """How a runner that has started differs from its description; empty where it does not."""
        described = self._described.get(worker.worker_id)
        if described is None:
            return ""
        if worker.device.fingerprint != described.device.fingerprint:
            return (
                f"it opened {worker.device.name} ({worker.device.target}), which differs from the "
                f"{described.device.name} ({described.device.target}) that was found before"
            )
        if worker.toolchain.key == described.toolchain.key:
            return ""
        parts = differences(described.toolchain, worker.toolchain, further=("driver",))
        return f"its toolchain differs from the one that was found before: {parts}"

    def _lose(self, event: WorkerGone) -> None:
        self._missing.pop(event.worker_id, None)
        if not self._missing and not self.started:
            raise no_worker(event)


@trace_calls("wait for the workers", "waiting")
def await_workers(pool: Pool, control: Control, timeout_s: float) -> list[WorkerInfo]:
    """Wait for all runners to start; `TunerError` where none does in time."""
    ready: dict[str, WorkerInfo] = {}
    gone: WorkerGone | None = None
    deadline = time.monotonic() + timeout_s
    _log.info("waiting for %d runners", pool.runners)
    while len(ready) < pool.runners and time.monotonic() < deadline:
        if control.draining:
            raise KeyboardInterrupt
        for event in pool.poll(0.2):
            if isinstance(event, WorkerReady):
                ready[event.worker.worker_id] = event.worker
                _log.info("%s is ready: %s", event.worker.worker_id, event.worker.device.name)
            elif isinstance(event, WorkerGone):
                ready.pop(event.worker_id, None)
                gone = event
                _log.warning("%s did not start: %s", event.worker_id, event.reason)
    if not ready and (pool.runners or gone):
        raise no_worker(gone)
    return list(ready.values())


def no_worker(gone: WorkerGone | None) -> TunerError:
    """The error of a run for which no runner has started. gone: the last one that was lost."""
    reason = f": {gone.worker_id}: {gone.reason}" if gone else ""
    remedy = gone.remedy if gone else ""
    return TunerError(
        f"no worker came up{reason}",
        remedy or "run `tuner doctor`, and see the workers' logs for the cause",
    )
