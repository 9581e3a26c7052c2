"""The builder role: one supervised child process that compiles, and sees no device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from search_spaces.errors import TunerError
from search_spaces.records import Status, Value, config_key
from tuner.base.tracing import span
from workers import backend_kinds
from workers.compiling.job import build
from workers.job_records import Artifact, BuildJob, Failure
from workers.processes.crash_retry import at_fault, crash_message, raise_if_killed, start
from workers.processes.fork_server import ForkServer
from workers.processes.machine_faults import fault_of
from workers.processes.supervised_child import (
    ChildDied,
    ChildError,
    ChildTimeout,
    SingleChild,
    SupervisedChild,
)
from workers.processes.worker_lost import WorkerLost, lost_to, one_line, times

_log = logging.getLogger(__name__)
#: Added to the niceness of the child.
_NICE = 10


class ProcessBuilder(SingleChild):
    """Builds in a child process of low priority; implements `workers.roles.Builder`.

    build_options: the options of builds, by kind. cores: the processors it may use, empty for all.
    server: the fork server of its child, which others share and close; by default it has its own.

    A build that takes too long is killed. A build whose compiler crashes is retried once in a fresh
    process (`workers.processes.crash_retry`). Raises WorkerLost if the kernel or the machine is
    at fault, or if no child process can be started.
    """

    def __init__(
        self,
        build_options: Mapping[str, Mapping[str, Value]] | None = None,
        worker_id: str = "builder",
        paths: tuple[str, ...] = (),
        cwd: str | None = None,
        cores: frozenset[int] = frozenset(),
        server: ForkServer | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._given_up = False
        child = SupervisedChild(
            "workers.compiling.process_builder:BuildService",
            {"options": {kind: dict(given) for kind, given in (build_options or {}).items()}},
            environment=_environment,
            server=server or ForkServer(worker_id, paths=paths, cwd=cwd),
            own_server=server is None,
            paths=paths,
            name=worker_id,
            nice=_NICE,
            cores=cores,
        )
        super().__init__(child)

    @property
    def worker_id(self) -> str:
        """The name of the builder."""
        return self._worker_id

    @property
    def warm(self) -> bool:
        """Whether there is a child, which has what its server loaded, or none can be started."""
        return self._given_up or self.pid is not None

    def warm_up(self) -> None:
        """Start the child once its server has loaded the compilers.

        Where no child can be started, builds report what is wrong.
        """
        try:
            start(self._child)
        except (WorkerLost, ChildTimeout, ChildDied, ChildError) as error:
            self._given_up = True
            _log.info("%s cannot be warmed up: %s", self._worker_id, one_line(f"{error}"))

    def build(self, job: BuildJob) -> Artifact | Failure:
        """Build one variant; a Failure if the variant is at fault. Raises WorkerLost."""
        exits: list[str] = []
        while True:
            try:
                start(self._child)
                result: Artifact | Failure = self._child.request(
                    "build", job, timeout_s=job.timeout_s
                )
                build_s = max(0.0, result.build_s - self._child.suspended_s)
                return replace(result, build_s=build_s)
            except ChildTimeout:
                message = f"the build took longer than {job.timeout_s:g} s"
                return Failure(Status.TIMEOUT, message, build_s=job.timeout_s)
            except ChildError as error:
                return _failure(error)
            except ChildDied as death:
                exits.append(death.exit_status)
                if at_fault(exits):
                    raise_if_killed(exits, "a builder")
                    cause = f"the compiler crashed ({death.exit_status}) {times(len(exits))}"
                    return Failure(Status.COMPILE, crash_message(cause, death), death.output)
                _log.info("%s: retried after %s", job.job_id, death)


class BuildService:
    """The object in a builder's child process."""

    def __init__(
        self, cache_dir: Path, options: Mapping[str, Mapping[str, Value]] | None = None
    ) -> None:
        self._cache_dir, self._options = cache_dir, options or {}

    def build(self, job: BuildJob) -> Artifact | Failure:
        kind = job.device.kind
        config, workload = config_key(job.config), job.workload.key
        name = f"build {job.kernel.spec.rpartition('/')[2]}"
        with span(name, "build", workload=workload, config=config) as recorded:
            options = self._options.get(kind, {})
            known = backend_kinds.spec(kind).build(job, self._cache_dir, options)
            result = build(job, self._cache_dir) if known is None else known
            recorded.add(status=result.status if isinstance(result, Failure) else "built")
        return result


def _failure(error: ChildError) -> Failure:
    """The variant's failure. Raises WorkerLost if the kernel or the machine is at fault."""
    # By the contract of `workers.compiling.build` these are errors of the kernel or the machine.
    if isinstance(error.error, TunerError | ImportError) or fault_of(error.error):
        raise lost_to(error.error) from None
    return Failure(Status.COMPILE, one_line(f"{error}"), error.trace)


def _environment(cache_dir: Path) -> dict[str, str | None]:
    """Compilers write into the private folder, start no helper processes and see no device."""
    folder = str(cache_dir)
    hidden = {one.visible_devices: "" for one in backend_kinds.specs() if one.visible_devices}
    hidden["ZE_AFFINITY_MASK"] = ""  # Intel's, which no spec names but torch looks for
    return {
        **hidden,
        "TRITON_CACHE_DIR": folder,
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TRITON_INTERPRET": None,
    }
