"""The actors of the pool `ray`: builders or one runner, with paths as their node has them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces import log_file
from search_spaces.records import Value
from tuner.base import tracing
from workers import backend_kinds
from workers.compiling.process_builder import ProcessBuilder
from workers.job_records import (
    Artifact,
    BuildJob,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    WorkerInfo,
)
from workers.measure.device_runner import DeviceRunner
from workers.pools import ray_nodes
from workers.pools.ray_cluster import ray
from workers.pools.worker_slots import WorkerSlot, number, shares
from workers.processes.pool_servers import PoolServers
from workers.processes.preload import WorkerRole
from workers.processes.server_door import DistantServers
from workers.quiet_processors import Yielder

_RECORDED = "recorded:"


class BuilderActor:
    """The builders of some names, which fork from one server. Children compile, the actor waits.

    door: that of a driver on this machine, whose servers the workers fork from; empty for none.
    """

    def __init__(
        self,
        names: Sequence[str],
        options: Mapping[str, Mapping[str, Value]],
        paths: tuple[str, ...],
        cwd: str,
        kinds: tuple[str, ...] = (),
        torch_free: bool = False,
        door: str = "",
    ) -> None:
        log_file.join(f"actor of {names[0]}")
        tracing.join(f"actor of {names[0]}")
        self._moved = _find_moved_folder(cwd)
        paths, cwd = self._moved.paths(paths), self._moved.path(cwd)
        others = frozenset[int]()
        if any(backend_kinds.spec(kind).accelerator for kind in kinds):
            launch, rest = shares(range(_gpus()))
            others = rest if launch else others
        # The servers of runners are not started: these are in other processes.
        self._servers = (
            DistantServers(door) if door else PoolServers(kinds, paths, cwd, torch_free=torch_free)
        )
        server = self._servers.find(WorkerRole.BUILDER)
        server.start()
        self._builders = {
            name: ProcessBuilder(options, name, paths=paths, cores=others, server=server)
            for name in names
        }
        self._yielder = Yielder()
        self._yielder.start(self._builders.values())

    def ready(self) -> tuple[str, None]:
        """Ray's id of the node. The answer says that the actor has started."""
        return ray_nodes.own_id(), None

    def warm_up(self, name: str) -> bool:
        """Warm a builder up; whether it is warm."""
        self._builders[name].warm_up()
        return self._builders[name].warm

    def build(self, name: str, job: BuildJob) -> tuple[Artifact | Failure, bool]:
        """The result, and whether the builder is warm afterwards."""
        moved = replace(job, kernel=self._moved.kernel(job.kernel))
        with tracing.span("build", "waiting", job=job.job_id):
            result = self._builders[name].build(moved)
        return result, self._builders[name].warm

    def close(self) -> None:
        self._yielder.close()
        for builder in self._builders.values():
            builder.begin_kill()
        for builder in self._builders.values():
            builder.kill()
        self._servers.close()


class RunnerActor:
    """One runner. A device that Ray assigns to this process is its number 0, as its child's.

    door: as for `BuilderActor`.
    """

    def __init__(self, slot: WorkerSlot, paths: tuple[str, ...], cwd: str, door: str = "") -> None:
        log_file.join(f"actor of {slot.worker_id}")
        tracing.join(f"actor of {slot.worker_id}")
        options = dict(slot.options)
        if "lost_dir" in options:
            options["supervisor_pid"] = os.getpid()
        backend = backend_kinds.spec(slot.kind)
        self._moved = _find_moved_folder(cwd)
        paths, cwd = self._moved.paths(paths), self._moved.path(cwd)
        launch, cores = _processors(slot) if backend.accelerator else (None, frozenset())
        # The server of builders is not started: these are in other processes.
        self._servers = DistantServers(door) if door else PoolServers((slot.kind,), paths, cwd)
        server = self._servers.find(WorkerRole.RUNNER, slot.kind)
        standbys = self._servers.find(WorkerRole.STANDBY, slot.kind)
        standbys.start()
        self._runner = DeviceRunner(
            slot.kind,
            slot.index,
            slot.worker_id,
            options,
            paths,
            cwd,
            launch_core=launch,
            cores=cores,
            server=server,
            standby_server=standbys,
            priority=slot.priority,
        )
        self._yielder = Yielder()
        self._yielder.start([] if backend.timed else [self._runner])

    def ready(self) -> tuple[str, WorkerInfo]:
        """Ray's id of the node, and the runner's device; determined again after a loss."""
        with tracing.span("open the device", "waiting"):
            return ray_nodes.own_id(), self._runner.info

    def reset(self) -> None:
        """End the child and forget the device."""
        self._runner.reset()

    def measure(self, job: MeasureJob, *candidates: Artifact) -> Measurement | Failure:
        """Measure a job. Its candidates are separate arguments, where Ray resolves references."""
        kernel = self._moved.kernel(job.kernel)
        moved = replace(job, candidates=candidates, kernel=kernel)
        with tracing.span(f"{job.mode}", "waiting", job=job.job_id):
            return self._runner.measure(moved)

    def close(self) -> None:
        self._yielder.close()
        self._runner.close()
        self._servers.close()


def _gpus() -> int:
    """The number of GPUs that Ray has on this node."""
    here = ray.get_runtime_context().get_node_id()
    return sum(node.gpus for node in ray_nodes.alive() if node.node_id == here)


def _processors(slot: WorkerSlot) -> tuple[int | None, frozenset[int]]:
    """The launching processor of the slot's GPU, and the others."""
    gpus = max(1, _gpus())
    launch, rest = shares(range(gpus))
    return (
        (launch.get(number(slot.kind, slot.index) % gpus), rest) if launch else (None, frozenset())
    )


def _find_moved_folder(cwd: str) -> MovedFolder:
    """The driver's folder on this node, if a job shipped it as its `working_dir`."""
    shipped = ray.get_runtime_context().runtime_env.get("working_dir")
    return MovedFolder(cwd, os.getcwd() if shipped else cwd)


@dataclass(frozen=True, slots=True)
class MovedFolder:
    """The driver's working folder and its copy on this node.

    Ray unpacks a job's `working_dir` on every node, at a path that may differ. Paths stay as they
    are if the driver's folder exists here too.
    """

    #: The folder's path on the driver's node.
    there: str
    #: The path of its copy here.
    here: str

    def path(self, path: str) -> str:
        """The path on this node."""
        inside = path == self.there or path.startswith(f"{self.there}{os.sep}")
        if not inside or os.path.isdir(self.there):
            return path
        return f"{self.here}{path[len(self.there) :]}"

    def paths(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The paths on this node."""
        return tuple(map(self.path, paths))

    def kernel(self, kernel: KernelRef) -> KernelRef:
        """The reference as this node resolves it; its spec may begin with a path or contain one."""
        place = kernel.spec.removeprefix(_RECORDED)
        spec = f"{kernel.spec[: len(kernel.spec) - len(place)]}{self.path(place)}"
        sources = tuple((self.path(file), found) for file, found in kernel.sources)
        return replace(kernel, spec=spec, paths=self.paths(kernel.paths), sources=sources)
