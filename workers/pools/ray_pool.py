"""The pool `ray`: builder actors on processors, one runner actor per device, on any cluster.

A worker has one call in flight. When its actor's process dies, Ray fails every queued call with the
same error, so that the job at fault could not be identified. The builders of a local Ray share one
actor, whose children compile: they load compilers once and start one process of Ray. Ray restarts
actors (`max_restarts=-1`); the caller retries jobs (`max_task_retries=0`). Nodes that join later
get workers of the kinds whose count is open.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.records import config_key
from workers import backend_kinds
from workers.host import cpu_device
from workers.job_records import (
    Artifact,
    BuildJob,
    Built,
    JobLost,
    Measured,
    MeasureJob,
    PoolEvent,
    PoolSpec,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)
from workers.pools import is_here, ray_nodes
from workers.pools.ray_actors import BuilderActor, RunnerActor
from workers.pools.ray_admission import Admission
from workers.pools.ray_cluster import Cluster, connect, ray
from workers.pools.ray_errors import is_rays_lasting, ray_reason, ray_remedy
from workers.pools.worker_slots import PoolPlan, WorkerSlot, describe_runners
from workers.processes.pool_servers import PoolServers, take_servers
from workers.processes.server_door import ServerDoor
from workers.processes.worker_lost import WorkerLost
from workers.roles import Pool

_log = logging.getLogger(__name__)
#: A runner that fails to find its device this many times in a row is given up.
_MAX_START_FAILURES = 3
_CLOSE_TIMEOUT_S = 10.0
#: An actor is killed this long after twice its job's limit; a crash is retried once.
_GRACE_S = 240.0
#: Artifacts of at least this size go into the object store once instead of with every job.
_SHARED_BYTES = 64 * 1024
_SHARED_COUNT = 64
#: Errors after which Ray does not restart the actor; the pool creates another.
_NOT_RESTARTED = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError)
#: Seconds between two looks for nodes that have joined or died.
_SURVEY_S = 5.0
#: Builds wait this many connect timeouts for a first or another builder.
_PATIENCE = 4.0


@dataclass(slots=True)
class _ActorState:
    """A worker in an actor, and what it is doing."""

    name: str
    #: The name of the actor, which it shares with others of that name.
    host: str
    #: Ray's handle; None while there is no actor.
    actor: Any
    #: The runner's slot; None for a builder.
    slot: WorkerSlot | None = None
    ready: bool = False
    #: Whether a call is in flight.
    busy: bool = False
    #: Failed starts in a row.
    failures: int = 0
    #: Jobs in a row that a fault of the machine took.
    faults: int = 0
    #: When to ask again whether it is ready; 0 for never.
    retry_at: float = 0.0
    #: Where the pool has placed it; None where Ray chooses.
    home: ray_nodes.Home | None = None
    #: Ray's id of the node from which the actor answered last.
    node: str = ""
    #: Whether a builder has loaded its compilers.
    warm: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in flight."""

    state: _ActorState
    #: The job; empty for a call that asks whether the actor is ready.
    job_id: str = ""
    deadline: float = float("inf")
    #: Whether a builder takes a step of its warm-up.
    warming: bool = False


class RayPool(Pool):
    """Builders and runners on a Ray cluster."""

    def __init__(self, spec: PoolSpec) -> None:
        self._spec = spec
        self._plan = PoolPlan(spec)
        self._cluster: Cluster | None = None
        #: Of a local Ray: the servers of its workers, which load while Ray starts.
        self._servers: PoolServers | None = None
        self._door: ServerDoor | None = None
        #: Of a cluster that this run did not start.
        self._admission: Admission | None = None
        self._states: list[_ActorState] = []
        self._calls: dict[Any, _Call] = {}
        self._builds: deque[BuildJob] = deque()
        self._events: deque[PoolEvent] = deque()
        self._shared: OrderedDict[tuple[str, str, str], Any] = OrderedDict()
        self._created: set[str] = set()
        self._builder_cpus = 1
        self._survey_at = float("inf")
        self._nodes_at = 0.0
        #: The nodes of calls in flight that were dead at the last look.
        self._dead: frozenset[str] = frozenset()
        self._builder_seen_at = 0.0
        self._ending: threading.Thread | None = None

    @property
    def builders(self) -> int:
        return sum(state.slot is None for state in self._states)

    @property
    def runners(self) -> int:
        return sum(state.slot is not None for state in self._states)

    @property
    def warm(self) -> bool:
        return all(state.warm for state in self._states if state.slot is None)

    @property
    def actors(self) -> dict[str, Any]:
        """The actors' handles by name, for tests and people."""
        return {state.name: state.actor for state in self._states}

    # -- life --------------------------------------------------------------------------------------
    def start(self) -> None:
        spec = self._spec
        asked = sum(count or 1 for count in spec.runners.values()) + (spec.builders or 1)
        cpus = max(len(os.sched_getaffinity(0)), asked)
        if is_here(spec.kind, spec.address):
            self._start_servers()
        self._cluster = connect(spec.address, spec.connect_timeout_s, cpus)
        if self._servers is not None and self._cluster.local is not None:
            self._door = ServerDoor(self._servers, self._cluster.local.folder / "door")
        nodes = ray_nodes.alive()
        if not self._cluster.owned:
            self._admission = Admission(self._cluster.runtime_env)
            nodes = self._admission.start(nodes)
        self._create_actors(nodes)
        self._builder_seen_at = time.monotonic()
        counts = [spec.builders, *(spec.runners[kind] for kind in spec.runners)]
        if not self._cluster.owned and None in counts:
            self._survey_at = time.monotonic() + _SURVEY_S

    def _start_servers(self) -> None:
        plan = self._plan
        kinds = [kind for kind, count in self._spec.runners.items() if count != 0]
        servers = take_servers(
            sorted(backend_kinds.present(kinds)),
            plan.paths,
            plan.cwd,
            torch_free=self._spec.torch_free,
        )
        if servers.heavy:
            servers.start()
            self._servers = servers

    def _create_actors(self, nodes: Sequence[ray_nodes.Node]) -> None:
        """Create the actors that the nodes have room for and that do not exist yet."""
        assert self._cluster is not None
        slots = list(self._plan.slots(lambda kind: backend_kinds.spec(kind).ray_count(nodes)))
        busy = sum(backend_kinds.spec(slot.kind).processors for slot in slots)
        if self._cluster.owned:
            cpus, memory_bytes = len(os.sched_getaffinity(0)), cpu_device().memory_bytes
        else:
            cpus = sum(node.cpus for node in nodes)
            memory_bytes = sum(node.memory_bytes for node in nodes)
            self._builder_cpus = ray_nodes.builder_cpus(cpus, busy)
        builders = self._plan.builders(cpus, memory_bytes, busy)
        names = [f"builder-{index}" for index in range(builders)]
        states = [
            *(_ActorState(slot.worker_id, slot.worker_id, None, slot) for slot in slots),
            *(
                _ActorState(name, "builders" if self._cluster.owned else name, None)
                for name in names
            ),
        ]
        new = [state for state in states if state.name not in self._created]
        self._created.update(state.name for state in new)
        self._states += new
        for state in new:
            self._create_actor(state)

    def begin_kill(self) -> bool:
        if self._ending is None:
            self._ending = threading.Thread(target=self._end, args=(True,), name="end of Ray")
            self._ending.start()
        return True

    def close(self, *, kill: bool = False) -> None:
        if self._ending is not None:
            self._ending.join()
        self._end(kill)

    def _end(self, kill: bool) -> None:
        if self._cluster is not None:
            self._end_cluster(self._cluster, kill)
        self._cluster = None
        if self._servers is not None:
            self._servers.kill_if_loading()
            self._servers.close()
        self._servers = None
        self._plan.close()

    def _end_cluster(self, cluster: Cluster, kill: bool) -> None:
        self._builds.clear()
        while not kill and any(call.job_id for call in self._calls.values()):
            self.poll(1.0)
        if ray.is_initialized():
            self._end_actors(kill)
        self._states.clear()
        self._calls.clear()
        self._shared.clear()
        if self._door is not None:
            self._door.close()
        self._door = None
        cluster.leave()

    def _end_actors(self, kill: bool) -> None:
        if not kill:
            ready = {state.host: state.actor for state in self._states if state.ready}
            closing = [actor.close.remote() for actor in ready.values()]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_TIMEOUT_S)
        for actor in {state.host: state.actor for state in self._states if state.actor}.values():
            ray.kill(actor)

    def describe_workers(self) -> Sequence[WorkerInfo] | None:
        """Those of a local Ray, if it cannot matter which device of a kind it gives to a runner."""
        if self._cluster is None or not self._cluster.owned:
            return None
        slots = [state.slot for state in self._states if state.slot is not None]
        kinds = {slot.kind for slot in slots}
        describe = {kind: backend_kinds.spec(kind).make_describe() for kind in sorted(kinds)}
        infos = describe_runners(slots, describe)
        alike = {info.device.fingerprint for info in infos or ()}
        return infos if len(alike) == len(kinds) else None

    # -- jobs --------------------------------------------------------------------------------------
    def submit_build(self, job: BuildJob) -> None:
        self._builds.append(job)
        self._dispatch()

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        state = next((p for p in self._states if p.slot is not None and p.name == worker_id), None)
        if state is None or not state.ready or state.busy:
            why = "busy" if state is not None and state.busy else "not ready"
            self._events.append(JobLost(job.job_id, f"worker {worker_id} is {why}"))
            return
        candidates = [self._share(artifact) for artifact in job.candidates]
        reference = state.actor.measure.remote(replace(job, candidates=()), *candidates)
        # A job is repeated without each candidate that crashes its process.
        each_s = min(job.timeout_s, job.candidate_timeout_s)
        self._call_job(reference, state, job.job_id, job.timeout_s + len(job.candidates) * each_s)

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        deadline = time.monotonic() + timeout_s
        while True:
            left = 0.0 if self._events else max(0.0, deadline - time.monotonic())
            if self._cluster is not None:
                self._cluster.check()
            self._collect(left)
            self._restart_silent()
            self._fail_calls_of_dead_nodes()
            self._retry_failed()
            self._survey_nodes()
            self._dispatch()
            if self._events or time.monotonic() >= deadline:
                events = list(self._events)
                self._events.clear()
                return events

    # -- inside ------------------------------------------------------------------------------------
    def _create_actor(self, state: _ActorState) -> None:
        """Create an actor, unless another worker of it has, and ask whether it is ready."""
        mates = [other for other in self._states if other.host == state.host]
        state.actor = next((mate.actor for mate in mates if mate.actor is not None), None)
        if state.actor is None:
            self._make_actor(state, tuple(mate.name for mate in mates))
        self._ask_ready(state)

    def _make_actor(self, state: _ActorState, names: tuple[str, ...]) -> None:
        """names: those of the actor's builders."""
        assert self._cluster is not None
        common: dict[str, Any] = {"max_restarts": -1, "max_task_retries": 0, "max_concurrency": 1}
        if self._cluster.runtime_env:
            common["runtime_env"] = self._cluster.runtime_env
        plan, door = self._plan, self._door.path if self._door is not None else ""
        if state.slot is None:
            # One CPU also for the builders of a local Ray, which nobody else uses.
            cpus = self._builder_cpus if self._spec.reserve else 0
            common |= {"num_cpus": cpus, "max_concurrency": len(names) + 1}
            make = ray.remote(BuilderActor).options(num_gpus=0, **self._elsewhere(), **common)
            kinds = tuple(kind for kind, count in sorted(self._spec.runners.items()) if count != 0)
            free = self._spec.torch_free
            state.actor = make.remote(
                names, plan.build_options, plan.paths, plan.cwd, kinds, free, door
            )
        else:
            backend, slot = backend_kinds.spec(state.slot.kind), state.slot
            needs, reserve = backend.ray_resources(), self._spec.reserve
            # Ray places the devices it reserves. Of the others, two on one node would disturb each
            # other's times, so the pool spreads them.
            where = "SPREAD"
            if backend.timed and not (backend.ray_gpus and reserve):
                where = self._place(state, gpus=backend.ray_gpus > 0)
            common |= self._elsewhere() if where == "SPREAD" else {}
            if backend.ray_gpus:
                slot = replace(slot, index=0 if reserve or state.home is None else state.home[1])
            if not reserve:
                needs = dict.fromkeys(needs, 0.0)
                common["runtime_env"] = ray_nodes.show_devices(self._cluster.runtime_env)
            make = ray.remote(RunnerActor).options(scheduling_strategy=where, **needs, **common)
            state.actor = make.remote(slot, plan.paths, plan.cwd, door)

    def _elsewhere(self) -> dict[str, Any]:
        """The option of an actor that keeps it from nodes that are refused."""
        selector = self._admission.elsewhere if self._admission is not None else {}
        return {"label_selector": selector} if selector else {}

    def _find_nodes(self) -> list[ray_nodes.Node]:
        """The living nodes that may have workers."""
        nodes = ray_nodes.alive()
        return self._admission.admit(nodes) if self._admission is not None else nodes

    def _place(self, state: _ActorState, *, gpus: bool) -> Any:
        """The place with the fewest such runners; when its node dies, they move to another one."""
        alike = [
            other
            for other in self._states
            if other.slot is not None and gpus == (backend_kinds.spec(other.slot.kind).ray_gpus > 0)
        ]
        taken = [other.home for other in alike if other is not state and other.home is not None]
        state.home = ray_nodes.home(self._find_nodes(), taken, gpus=gpus)
        return "SPREAD" if state.home is None else ray_nodes.on(state.home[0])

    def _survey_nodes(self) -> None:
        """Create actors for nodes that have joined.

        Raises TunerError if builds wait and no builder has started for too long.
        """
        now = time.monotonic()
        if self._survey_at <= now:
            self._survey_at = now + _SURVEY_S
            self._create_actors(self._find_nodes())
        if not self._builds or any(state.slot is None and state.ready for state in self._states):
            self._builder_seen_at = now
        elif now - self._builder_seen_at > (limit_s := _PATIENCE * self._spec.connect_timeout_s):
            raise TunerError(
                f"builds wait, and no builder has come up for {limit_s:.0f} s",
                "see `ray status`: a builder needs a free CPU; start again when there is one",
            )

    def _ask_ready(self, state: _ActorState) -> None:
        state.busy = True
        self._calls[state.actor.ready.remote()] = _Call(state)

    def _call_job(self, reference: Any, state: _ActorState, job_id: str, timeout_s: float) -> None:
        state.busy = True
        deadline = time.monotonic() + 2 * timeout_s + _GRACE_S
        self._calls[reference] = _Call(state, job_id, deadline)

    def _dispatch(self) -> None:
        """Give builds to idle builders. A cold builder without a build takes a step of warm-up."""
        for state in self._states:
            if state.slot is not None or not state.ready or state.busy:
                continue
            if self._builds:
                job = self._builds.popleft()
                reference = state.actor.build.remote(state.name, job)
                self._call_job(reference, state, job.job_id, job.timeout_s)
            elif not state.warm:
                state.busy = True
                self._calls[state.actor.warm_up.remote(state.name)] = _Call(state, warming=True)

    def _share(self, artifact: Artifact) -> Any:
        """The artifact if it is small, else a reference to its copy in the object store."""
        if sum(map(len, artifact.files.values())) < _SHARED_BYTES:
            return artifact
        key = (artifact.binary_hash, artifact.target, config_key(artifact.config))
        if key not in self._shared:
            self._shared[key] = ray.put(artifact)
        self._shared.move_to_end(key)
        if len(self._shared) > _SHARED_COUNT:
            self._shared.popitem(last=False)
        return self._shared[key]

    def _collect(self, timeout_s: float) -> None:
        """Handle finished calls. Wait for the first one, but no longer than for the next retry."""
        retries = (state.retry_at for state in self._states if state.retry_at)
        next_retry = min(retries, default=float("inf"))
        timeout_s = min(timeout_s, max(0.0, next_retry - time.monotonic()), 5.0)
        if not self._calls:
            time.sleep(timeout_s)
            return
        first, _ = ray.wait(list(self._calls), num_returns=1, timeout=timeout_s)
        if first:
            done, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
            for reference in done:
                self._finish(reference, self._calls.pop(reference))

    def _finish(self, reference: Any, call: _Call) -> None:
        try:
            result = ray.get(reference)
        except Exception as error:
            self._fail(call, error)
            return
        state = call.state
        state.busy = False
        if call.warming:
            state.warm = result
            return
        state.faults = 0 if call.job_id else state.faults
        if call.job_id and state.slot is None:
            built, state.warm = result
            self._events.append(Built(call.job_id, built))
        elif call.job_id:
            self._events.append(Measured(call.job_id, state.name, result))
        elif self._admission is not None and self._admission.refuses(result[0]):
            # Ray restarted it on a node that has joined.
            ray.kill(state.actor)
            state.actor, state.retry_at = None, time.monotonic()
        else:
            state.ready, state.failures = True, 0
            state.node, info = result
            _log.info("%s is ready", state.name)
            if info is not None:
                self._events.append(WorkerReady(info))

    def _fail(self, call: _Call, error: Exception) -> None:
        """Report the job as lost, and retry the actor, which died or raised an exception."""
        state, remedy = call.state, ray_remedy(error)
        where = self._admission.find_host(error, state.node) if self._admission is not None else ""
        reason = f"{where}{ray_reason(error)}"
        if not call.job_id:
            state.failures += 1
        # Otherwise a builder that fails at once would get most builds.
        state.faults += bool(call.job_id and remedy)
        # A worker that is asked several times whether it is back is gone only once.
        raised = isinstance(error, ray.exceptions.RayTaskError)
        given_up = raised and state.slot is not None and state.failures >= _MAX_START_FAILURES
        if state.slot is not None and (state.ready or given_up):
            self._events.append(WorkerGone(state.name, reason, remedy))
        if call.job_id:
            lasting = is_rays_lasting(error)
            self._events.append(JobLost(call.job_id, reason, remedy, lasting))
        event = f"job {call.job_id} is lost" if call.job_id else f"start {state.failures} failed"
        _log.info("%s: %s: %s", state.name, event, reason)
        if given_up:
            _log.info("%s is given up", state.name)
        actor, state.ready, state.warm = state.actor, False, False
        dead = isinstance(error, _NOT_RESTARTED)
        if actor is not None and (dead or given_up):
            ray.kill(actor)
        if given_up:
            self._states.remove(state)
            return
        others = () if raised or actor is None else self._states
        lost = [other for other in others if other.actor is actor] or [state]
        for mate in lost:
            if dead:
                mate.actor = None
            # Those with a call in flight fail by that.
            if not mate.busy or mate is state:
                mate.ready = mate.warm = False
                # Seconds at most: a node may stay away for long, and each attempt fails at once.
                fails = max(mate.failures, mate.faults)
                mate.retry_at = time.monotonic() + 0.1 * 2 ** min(fails, 6)

    def _retry_failed(self) -> None:
        """Ask failed actors whether they are back; replace those that Ray does not restart."""
        now = time.monotonic()
        for state in self._states:
            if state.retry_at and state.retry_at <= now:
                state.retry_at = 0.0
                if state.actor is None:
                    self._create_actor(state)
                    continue
                if state.slot is not None:
                    state.actor.reset.remote()
                self._ask_ready(state)

    def _restart_silent(self) -> None:
        """Restart actors whose answer is long overdue by their job's limits."""
        now = time.monotonic()
        for reference, call in list(self._calls.items()):
            if call.deadline <= now:
                del self._calls[reference]
                ray.kill(call.state.actor, no_restart=False)
                self._fail(call, WorkerLost("the worker stopped answering and was restarted"))

    def _fail_calls_of_dead_nodes(self) -> None:
        """Fail jobs and steps of a warm-up whose node was dead at two looks in a row.

        Ray fails the calls of a dead node, but under load it has left one unanswered.
        """
        now = time.monotonic()
        if now < self._nodes_at:
            return
        self._nodes_at = now + _SURVEY_S
        # Not those that ask whether an actor is back, which Ray may start on another node.
        work = {key: call for key, call in self._calls.items() if call.job_id or call.warming}
        asked = {call.state.node for call in work.values()}
        dead = frozenset(asked - {node.node_id for node in ray_nodes.alive()} if asked else ())
        lost, self._dead = dead & self._dead, dead
        for reference, call in work.items():
            if call.state.node in lost:
                del self._calls[reference]
                self._fail(call, WorkerLost("its node has left the cluster"))
