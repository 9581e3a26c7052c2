"""Sessions: several calls of `tune` that share warm workers and a database."""

# Annotations are objects here: `help` shows those of the keywords.
import importlib
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from search_spaces import registry, source_changes
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.registry import refuse_nested
from tuner.api.databases import CallDatabase
from tuner.api.range_result import RangeResult
from tuner.api.result import TuneResult
from tuner.api.tuning import (
    ArgumentRanges,
    Budget,
    CallOptions,
    Dims,
    RangeDims,
    TuneCall,
    add_workload,
    result_of,
    workloads_of,
)
from tuner.base.tracing import span
from tuner.progress import ProgressCallback

if TYPE_CHECKING:
    from tuner.capturing import CapturedKernel
    from workers.pools.kept_pool import KeptPool


class Session:
    """Warm workers for several calls of `tune`; make one with `tuner.session()`.

    Calls from several threads are served one after the other. A Ctrl-C ends the call at work and
    its workers; the next call starts others. An edited kernel is imported again, in this process
    and in new worker processes.
    """

    def __init__(
        self,
        *,
        target: str | None = None,
        settings: Mapping[str, Any] | None = None,
        on_progress: ProgressCallback | None = None,
        progress: bool | None = None,
        pool: str = "local",
        database: str | None = None,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        refuse_nested("a session")
        from workers.pools.kept_pool import KeptPool

        self._target, self._settings, self._pool = target, settings or {}, pool
        self._on_progress, self._progress = on_progress, progress
        self._lock = threading.Lock()
        #: The thread of the call at work.
        self._caller: int | None = None
        self._closed = False
        #: Imports torch during the first call of a kernel that does not need it.
        self._torch: threading.Thread | None = None
        self._database = CallDatabase(database)
        self._workers = KeptPool()
        #: The files of kernels that the workers may have imported, with their stamps.
        self._loaded: source_changes.Stamps = {}
        self._trace = ExitStack()
        if trace is not None:
            from tuner.traces import record

            self._trace.enter_context(record(Path(trace), "session", option="trace"))
        # Without a call of `close`, the workers end when the session is collected, or at exit.
        self._finalizer = weakref.finalize(self, _end, self._workers, self._trace, os.getpid())

    def tune(
        self,
        kernel: "str | Kernel | CapturedKernel",
        workload: "Dims | RangeDims | Sequence[Dims] | None" = None,
        *,
        budget: Budget = 100,
        strategy: str = "bayes",
        seed: int = 0,
        fresh: bool = False,
        ranges: ArgumentRanges | None = None,
        numerics: str = "any",
        target: str | None = None,
        settings: Mapping[str, Any] | None = None,
        on_progress: ProgressCallback | None = None,
        progress: bool | None = None,
    ) -> Any:
        """Tune as `tuner.tune` does, on the session's workers and in its database.

        Results of earlier calls are reused where the code, the workload and the device are the
        same; `fresh` measures again. target, settings, on_progress and progress replace the
        session's; settings section by section.
        """
        self._refuse_own_call("tune")
        kernel, workload = add_workload(kernel, workload, ranges)
        options = CallOptions(
            budget,
            strategy,
            seed,
            fresh,
            target or self._target,
            {**self._settings, **(settings or {})},
            on_progress or self._on_progress,
            self._progress if progress is None else progress,
            self._pool,
            numerics,
        )
        with self._lock:
            if self._closed:
                raise TunerError("this session is closed", "open another one: tuner.session()")
            call = TuneCall(kernel, workloads_of(workload), options)
            self._caller = threading.get_ident()
            try:
                results = self._run(call)
            finally:
                self._caller = None
        return result_of(results, workload)

    def close(self) -> None:
        """End the workers, after a call at work. Results stay usable. May be called twice."""
        self._refuse_own_call("close")
        with self._lock:
            self._closed = True
            if not self._workers.started:
                from workers import pools

                pools.end_prestarted()  # by a call whose argument was refused
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_own_call(self, method: str) -> None:
        if self._caller == threading.get_ident():
            raise TunerError(
                "on_progress calls its own session", f"call {method} when tune has returned"
            )

    def _run(self, call: TuneCall) -> list[TuneResult] | RangeResult:
        if not self._workers.started:
            call.load_workers(kept=True)
        if self._torch is not None:
            self._torch.join()  # imports of kernels must not happen meanwhile
        call = call.reload()
        assert isinstance(call.kernel, Kernel)
        began_ns = time.time_ns()
        if source_changes.list_changed(self._loaded):
            self._loaded.clear()
            with span("replace the workers", "start"):
                self._workers.replace_workers()
        self._loaded = {**source_changes.imported_files(call.kernel), **self._loaded}
        self._import_torch(call.kernel)
        try:
            return call.run(self._database, self._workers.for_run)
        finally:
            self._note_other_files(call.kernel, began_ns)

    def _import_torch(self, kernel: Kernel) -> None:
        """Import torch during a call that does not need it: the next kernel may."""
        if self._torch is None and registry.compiles_without_torch(kernel.spec):
            self._torch = threading.Thread(
                target=importlib.import_module, args=("torch",), name="torch"
            )
            self._torch.start()

    def _note_other_files(self, kernel: Kernel, began_ns: int) -> None:
        """Note the files that the kernel reaches without an import statement for them.

        Those that changed during the call need other workers later.
        """
        for file, found in source_changes.files_of(kernel).items():
            kept = found if found[0] < began_ns else source_changes.OUTDATED
            self._loaded.setdefault(file, kept)


def session(
    *,
    target: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_progress: ProgressCallback | None = None,
    progress: bool | None = None,
    pool: str = "local",
    database: str | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> Session:
    """Keep workers warm for several calls of `tune`.

        with tuner.session() as s:
            first = s.tune("softmax", {"rows": 8192, "cols": 8192, "dtype": "bfloat16"})
            second = s.tune("softmax", {"rows": 4096, "cols": 4096, "dtype": "bfloat16"})

    The keywords are those of `tuner.tune`, for all calls. database: by default a temporary one,
    which exists as long as the session or a result of it. trace: a file for the trace of the whole
    session, written when it closes. The first call starts the workers.
    """
    return Session(
        target=target,
        settings=settings,
        on_progress=on_progress,
        progress=progress,
        pool=pool,
        database=database,
        trace=trace,
    )


def _end(workers: "KeptPool", trace: ExitStack, owner: int) -> None:
    if os.getpid() != owner:  # a forked process has the finalizer too
        return
    try:
        workers.end()
    finally:
        trace.close()
