"""What lives in Ray's processes: thin shells around the builder and the runner roles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from search_spaces.records import Value
from workers.build.process_builder import ProcessBuilder
from workers.measure.device_runner import DeviceRunner
from workers.pools import ray_nodes
from workers.pools.cores import LAUNCHED, Share, number, shares
from workers.pools.moved_paths import Moved
from workers.pools.plan import Seat
from workers.pools.ray_cluster import ray
from workers.records import Artifact, BuildJob, Failure, MeasureJob, Measurement, WorkerInfo


class BuilderActor:
    """One builder; its child compiles, the actor only waits."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Value],
        paths: tuple[str, ...],
        cwd: str,
        kinds: tuple[str, ...] = (),
    ) -> None:
        self._moved = _moved(cwd)
        paths, cwd = self._moved.paths(paths), self._moved.path(cwd)
        others = frozenset[int]()
        if any(kind in LAUNCHED for kind in kinds):
            launch, rest = shares(range(_gpus()))
            others = rest if launch else others
        self._builder = ProcessBuilder(
            options, name, paths=paths, cwd=cwd, kinds=kinds, cores=others
        )

    def ready(self) -> None:
        """Returns once the actor is up."""

    def warm_up(self) -> bool:
        """One step of warming up; whether it was the last."""
        self._builder.warm_up()
        return self._builder.warm

    def build(self, job: BuildJob) -> tuple[Artifact | Failure, bool]:
        """The result, and whether the builder is warm after it."""
        result = self._builder.build(replace(job, kernel=self._moved.kernel(job.kernel)))
        return result, self._builder.warm

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
        share = _share(seat.kind) if seat.kind in LAUNCHED else Share()
        self._runner = DeviceRunner(seat.kind, index, seat.worker_id, options, paths, cwd, share)

    def ready(self) -> WorkerInfo:
        """The device, asked anew after a loss."""
        return self._runner.info

    def reset(self) -> None:
        self._runner.reset()

    def measure(self, job: MeasureJob, *candidates: Artifact) -> Measurement | Failure:
        """The job, whose candidates come as arguments of their own: Ray resolves references
        there."""
        kernel = self._moved.kernel(job.kernel)
        return self._runner.measure(replace(job, candidates=candidates, kernel=kernel))

    def close(self) -> None:
        self._runner.close()

    def pids(self) -> tuple[int, int | None]:
        """The process ids of the actor and of its child, for tests and people."""
        return os.getpid(), self._runner.pid


def _gpus() -> int:
    """How many GPUs Ray has on this node."""
    here = ray.get_runtime_context().get_node_id()
    return sum(node.gpus for node in ray_nodes.alive() if node.node_id == here)


def _share(kind: str) -> Share:
    """The processors for the GPU that Ray gave this process."""
    gpus = max(1, _gpus())
    launch, rest = shares(range(gpus))
    return Share(launch.get(number(kind, 0) % gpus), rest) if launch else Share()


def _moved(cwd: str) -> Moved:
    """Where the driver's folder is, if it came here as a job's `working_dir`."""
    shipped = ray.get_runtime_context().runtime_env.get("working_dir")
    return Moved(cwd, os.getcwd() if shipped else cwd)
