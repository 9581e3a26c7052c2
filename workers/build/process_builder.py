"""The builder role: one supervised child process that compiles, and sees no device."""

from __future__ import annotations

import errno
import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from search_spaces.errors import TunerError
from search_spaces.records import Status, Value
from workers.records import Artifact, BuildJob, Failure, KernelRef
from workers.supervision.machine_faults import fault_of, printed_fault, remedy
from workers.supervision.supervised_child import (
    ChildDied,
    ChildError,
    ChildTimeout,
    SupervisedChild,
)

_WARM_TIMEOUT_S = 120.0
#: What is compiled to warm up, by the kind of device; its code is never run.
_WARM_TARGETS = {"cuda": "cuda:90", "hip": "hip:gfx942", "interpreter": "cuda:90"}

_log = logging.getLogger("tuner.workers")

#: A variant's own crashes after which it is to blame, and deaths of any kind.
_CRASHES, _DEATHS = 2, 4


class WorkerLost(Exception):
    """The worker, not the job, is at fault; the pool gives the job up as lost and starts again.

    remedy: what a user can do, where it is a fault of the machine
    (`workers.supervision.machine_faults`); else empty.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[WorkerLost], tuple[str, str]]:
        return type(self), (f"{self}", self.remedy)


class ProcessBuilder:
    """Builds in a child process of low priority; implements `workers.roles.Builder`.

    build_options: `time_scale` for simulated builds. kinds: the kinds of devices that builds are
    likely for, which `warm_up` prepares. cores: the processors for it, empty for all.

    A build that takes too long is killed; one whose compiler crashes is tried again in a fresh
    process, for the crash may have come from outside (see `blamed`). Raises WorkerLost when no
    child process can be started.
    """

    def __init__(
        self,
        build_options: Mapping[str, Value] | None = None,
        worker_id: str = "builder",
        nice: int = 10,
        paths: tuple[str, ...] = (),
        cwd: str | None = None,
        kinds: Sequence[str] = (),
        cores: frozenset[int] = frozenset(),
    ) -> None:
        self._worker_id = worker_id
        self._kinds = tuple(kinds)
        self._warmed: tuple[int | None, int] = (None, 0)
        self._given_up = False
        self._warming = False
        self._child = SupervisedChild(
            "workers.build.process_builder:BuildService",
            dict(build_options or {}),
            environment=_environment,
            paths=paths,
            cwd=cwd,
            name=worker_id,
            nice=nice,
            cores=cores,
        )

    @property
    def pid(self) -> int | None:
        """The process id of the living child."""
        return self._child.pid

    @property
    def warm(self) -> bool:
        """Whether the child has loaded what builds need, or cannot."""
        pid = self.pid
        return self._given_up or (pid is not None and self._warmed == (pid, len(self._kinds)))

    @property
    def warming(self) -> bool:
        """Whether `warm_up` is at work, in another thread."""
        return self._warming

    def warm_up(self) -> None:
        """Start the child, or load what the builds of one more kind need; a few seconds at most.

        A child that cannot be warmed is left as it is: its builds will say what is wrong.
        """
        self._warming = True
        try:
            start(self._child)
            pid, done = self._warmed
            if pid != self.pid:
                self._warmed = self.pid, 0
            elif done < len(self._kinds):
                self._child.request("warm", self._kinds[done], timeout_s=_WARM_TIMEOUT_S)
                self._warmed = self.pid, done + 1
        except (WorkerLost, ChildTimeout, ChildDied, ChildError) as error:
            self._given_up = True
            _log.info("%s cannot be warmed up: %s", self._worker_id, one_line(f"{error}"))
        finally:
            self._warming = False

    def build(self, job: BuildJob) -> Artifact | Failure:
        deaths: list[str] = []
        while True:
            try:
                start(self._child)
                result: Artifact | Failure = self._child.request(
                    "build", job, timeout_s=job.timeout_s
                )
                return result
            except ChildTimeout:
                message = f"the build took longer than {job.timeout_s:g} s"
                return Failure(Status.TIMEOUT, message, build_s=job.timeout_s)
            except ChildError as error:
                if fault := fault_of(error.error):
                    raise WorkerLost(one_line(fault.message), fault.hint) from None
                if isinstance(error.error, TunerError | ImportError):
                    # By `workers.build.build`'s contract kernel or machine is at fault, no config.
                    raise WorkerLost(one_line(f"{error.error}")) from None
                return Failure(Status.COMPILE, one_line(f"{error}"), error.trace)
            except ChildDied as death:
                deaths.append(death.ended)
                if blamed(deaths):
                    raise_if_killed(deaths, "a builder")
                    cause = f"the compiler crashed ({death.ended}) {times(len(deaths))}"
                    return Failure(Status.COMPILE, explained(cause, death), death.output)

    def kill(self) -> None:
        """End the child at once and for good, also from another thread."""
        self._child.retire()

    def close(self) -> None:
        self._child.close()


class BuildService:
    """What lives in a builder's child process."""

    def __init__(self, cache_dir: Path, time_scale: float = 0.0) -> None:
        self._cache_dir, self._time_scale = cache_dir, time_scale

    def warm(self, kind: str) -> None:
        """Load the compilers for devices of a kind, which the first build would have to."""
        if kind == "cpu":
            importlib.import_module("torch._inductor.compile_fx")
            importlib.import_module("workers.build.inductor")
        if kind not in _WARM_TARGETS:
            return
        from search_spaces.registry import load
        from workers.build import build
        from workers.device import offline

        kernel, device = load("softmax"), offline(_WARM_TARGETS[kind])
        workload = kernel.workloads()[0]
        config = kernel.default_config(workload, device)
        job = BuildJob("warm-up", KernelRef("softmax"), workload, config, device)
        build(job, self._cache_dir / "warm-up")

    def build(self, job: BuildJob) -> Artifact | Failure:
        if job.device.kind == "simulated":
            from workers.backends.simulated import simulate_build

            return simulate_build(job, self._time_scale)
        from workers.build import build

        return build(job, self._cache_dir)


def _environment(cache_dir: Path) -> dict[str, str | None]:
    """Compilers write into the private folder, start no helpers and find no device."""
    folder = str(cache_dir)
    hidden = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"), "")
    return {
        **hidden,
        "TRITON_CACHE_DIR": folder,
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TRITON_INTERPRET": None,
    }


def start(child: SupervisedChild) -> None:
    """Start a child before its job, so that a death while starting is not taken for the job's."""
    try:
        try:
            child.start()
        except ChildDied:  # perhaps somebody's kill -9
            child.start()
    except (ChildDied, ChildTimeout, ChildError, OSError) as error:
        reason = explained(f"{error}", error) if isinstance(error, ChildDied) else f"{error}"
        fault = fault_of(error.error if isinstance(error, ChildError) else error)
        if isinstance(error, ChildDied):
            fault = printed_fault(error.output)
        message = f"the child process cannot be started: {one_line(reason)}"
        raise WorkerLost(message, fault.hint if fault else "") from None


def blamed(deaths: Sequence[str]) -> bool:
    """Whether a job is to blame for the deaths of its processes, given how each ended.

    SIGKILL comes from outside: from people, or from a system short of memory. A job that only ever
    dies of that is not to blame either, but has been tried often enough (see `raise_if_killed`).
    """
    crashes = sum(ended != "SIGKILL" for ended in deaths)
    return crashes >= _CRASHES or len(deaths) >= _DEATHS


def raise_if_killed(deaths: Sequence[str], whose: str) -> None:
    """Raise WorkerLost where nothing but SIGKILL ended the processes of a job."""
    if all(ended == "SIGKILL" for ended in deaths):
        message = f"{whose}'s process was killed (SIGKILL) {times(len(deaths))}"
        raise WorkerLost(message, remedy(errno.ENOMEM))


def remedy_of(error: BaseException) -> str:
    """What a user can do about what a worker raised; empty where it is no fault of the machine."""
    if isinstance(error, WorkerLost):
        return error.remedy
    fault = fault_of(error)
    return fault.hint if fault else ""


def times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"


def explained(cause: str, death: ChildDied) -> str:
    """The cause, with the last telling line the child printed."""
    words = death.last_words
    return one_line(f"{cause}: {words}" if words else cause)


def one_line(text: str, limit: int = 300) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 3]}..."
