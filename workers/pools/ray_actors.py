"""What lives in Ray's processes: thin shells around the builder and the runner roles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from search_spaces.records import Value
from workers.builder import ProcessBuilder
from workers.pools.moved import Moved
from workers.pools.plan import Seat
from workers.pools.ray_cluster import ray
from workers.records import Artifact, BuildJob, Failure, MeasureJob, Measurement, WorkerInfo
from workers.runner import DeviceRunner


class BuilderActor:
    """One builder; its child compiles, the actor only waits."""

    def __init__(
        self, name: str, options: Mapping[str, Value], paths: tuple[str, ...], cwd: str
    ) -> None:
        self._moved = _moved(cwd)
        paths, cwd = self._moved.paths(paths), self._moved.path(cwd)
        self._builder = ProcessBuilder(options, name, paths=paths, cwd=cwd)

    def ready(self) -> None:
        """Returns once the actor is up."""

    def build(self, job: BuildJob) -> Artifact | Failure:
        return self._builder.build(replace(job, kernel=self._moved.kernel(job.kernel)))

    def close(self) -> None:
        self._builder.close()

    def pids(self) -> tuple[int, int | None]:
        """The process ids of the actor and of its child, for tests and people."""
        return os.getpid(), self._builder.pid


class RunnerActor:
    """One runner. Ray gave this process its device; the child inherits it as number 0."""

    def __init__(self, seat: Seat, paths: tuple[str, ...], cwd: str) -> None:
        options = dict(seat.options)
        if "lost_dir" in options:
            options["supervisor_pid"] = os.getpid()
        index = 0 if seat.kind in ("cuda", "hip") else seat.index
        self._moved = _moved(cwd)
        paths, cwd = self._moved.paths(paths), self._moved.path(cwd)
        self._runner = DeviceRunner(seat.kind, index, seat.worker_id, options, paths, cwd)

    def ready(self) -> WorkerInfo:
        """The device, asked anew after a loss."""
        return self._runner.info

    def reset(self) -> None:
        self._runner.reset()

    def measure(self, job: MeasureJob, *entrants: Artifact) -> Measurement | Failure:
        """The job, whose entrants come as arguments of their own: Ray resolves references there."""
        kernel = self._moved.kernel(job.kernel)
        return self._runner.measure(replace(job, entrants=entrants, kernel=kernel))

    def close(self) -> None:
        self._runner.close()

    def pids(self) -> tuple[int, int | None]:
        """The process ids of the actor and of its child, for tests and people."""
        return os.getpid(), self._runner.pid


def _moved(cwd: str) -> Moved:
    """Where the driver's folder is, if it came here as a job's `working_dir`."""
    shipped = ray.get_runtime_context().runtime_env.get("working_dir")
    return Moved(cwd, os.getcwd() if shipped else cwd)
