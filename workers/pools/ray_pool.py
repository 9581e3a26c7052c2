"""The pool `ray`: builder actors on processors, one runner actor per device, on any cluster.

An actor has one call in flight: when its process dies, Ray fails every queued call alike, and which
job was to blame could not be told. Restarts are Ray's (`max_restarts=-1`), retries of jobs are the
caller's (`max_task_retries=0`). Nodes that join later are staffed where a count was left open.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.records import config_key
from workers.build.process_builder import WorkerLost, one_line, remedy_of
from workers.host import cpu_device
from workers.pools import ray_nodes
from workers.pools.plan import Plan, Seat
from workers.pools.ray_actors import BuilderActor, RunnerActor
from workers.pools.ray_cluster import Cluster, connect, ray
from workers.records import (
    Artifact,
    BuildJob,
    Built,
    JobLost,
    Measured,
    MeasureJob,
    PoolEvent,
    PoolSpec,
    WorkerGone,
    WorkerReady,
)

#: A runner that fails this often in a row to find its device is given up.
_ATTEMPTS = 3
_CLOSE_TIMEOUT_S = 10.0
#: Beyond twice its own limit (a crash is tried again) an actor gets this long, and is then killed.
_GRACE_S = 240.0
#: Artifacts of this size are put into the object store once instead of sent with every job.
_SHARED_BYTES = 64 * 1024
_SHARED_COUNT = 64
#: What Ray will not restart: it is hired anew.
_FOR_GOOD = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError)
#: Runners without a device that Ray knows; times are disturbed where two share processors.
_EVENLY = ("cpu", "simulated")
#: How often to look whether nodes have joined.
_LOOK_S = 5.0
#: Builds wait so many times the time to connect for a first or another builder.
_PATIENCE = 4.0


@dataclass(slots=True)
class _Post:
    """An actor and where it stands. seat is None for a builder. home: the node it was given."""

    name: str
    actor: Any
    seat: Seat | None = None
    ready: bool = False
    busy: bool = False
    failures: int = 0
    retry_at: float = 0.0
    home: str = ""
    warm: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in flight: a job, or (job_id empty) the question whether the actor is ready; warming:
    that a builder take a step of warming up."""

    post: _Post
    job_id: str = ""
    deadline: float = float("inf")
    warming: bool = False


class RayPool:
    """Builders and runners on a Ray cluster; implements `workers.roles.Pool`."""

    def __init__(self, spec: PoolSpec) -> None:
        self._spec = spec
        self._plan = Plan(spec)
        self._cluster: Cluster | None = None
        self._posts: list[_Post] = []
        self._calls: dict[Any, _Call] = {}
        self._builds: deque[BuildJob] = deque()
        self._events: deque[PoolEvent] = deque()
        self._shared: OrderedDict[tuple[str, str, str], Any] = OrderedDict()
        self._known: set[str] = set()
        self._builder_cpus = 1
        self._look_at = float("inf")
        self._building_at = 0.0

    @property
    def builders(self) -> int:
        return sum(post.seat is None for post in self._posts)

    @property
    def runners(self) -> int:
        return sum(post.seat is not None for post in self._posts)

    @property
    def warm(self) -> bool:
        return all(post.warm for post in self._posts if post.seat is None)

    @property
    def actors(self) -> dict[str, Any]:
        """The actors' handles by name, for tests and people."""
        return {post.name: post.actor for post in self._posts}

    # -- life --------------------------------------------------------------------------------------
    def start(self) -> None:
        spec = self._spec
        asked = sum(count or 1 for count in spec.runners.values()) + (spec.builders or 1)
        cpus = max(len(os.sched_getaffinity(0)), asked)
        self._cluster = connect(spec.address, spec.connect_timeout_s, cpus)
        self._staff(ray_nodes.alive())
        self._building_at = time.monotonic()
        counts = [spec.builders, *(spec.runners[kind] for kind in spec.runners)]
        if not self._cluster.owned and None in counts:
            self._look_at = time.monotonic() + _LOOK_S

    def _staff(self, nodes: Sequence[ray_nodes.Node]) -> None:
        """Hire whom the nodes have room for and who was not hired before."""
        assert self._cluster is not None
        seats = list(self._plan.seats(lambda kind: ray_nodes.count(kind, nodes)))
        measuring = sum(seat.kind != "simulated" for seat in seats)
        if self._cluster.owned:
            cpus, memory_bytes = len(os.sched_getaffinity(0)), cpu_device().memory_bytes
        else:
            cpus = sum(node.cpus for node in nodes)
            memory_bytes = sum(node.memory_bytes for node in nodes)
            self._builder_cpus = ray_nodes.builder_cpus(cpus, measuring)
        builders = self._plan.builders(cpus, memory_bytes, measuring)
        posts = [
            *(_Post(seat.worker_id, None, seat) for seat in seats),
            *(_Post(f"builder-{index}", None) for index in range(builders)),
        ]
        for post in posts:
            if post.name not in self._known:
                self._known.add(post.name)
                self._posts.append(post)
                self._hire(post)

    def close(self, *, kill: bool = False) -> None:
        if self._cluster is None:
            return
        self._builds.clear()
        while not kill and any(call.job_id for call in self._calls.values()):
            self.poll(1.0)
        if ray.is_initialized():
            self._dismiss(kill)
        self._posts.clear()
        self._calls.clear()
        self._shared.clear()
        self._cluster.leave()
        self._cluster = None
        self._plan.close()

    def _dismiss(self, kill: bool) -> None:
        if not kill:
            goodbyes = [post.actor.close.remote() for post in self._posts if post.ready]
            if goodbyes:
                ray.wait(goodbyes, num_returns=len(goodbyes), timeout=_CLOSE_TIMEOUT_S)
        for post in self._posts:
            if post.actor is not None:
                ray.kill(post.actor)

    # -- jobs --------------------------------------------------------------------------------------
    def submit_build(self, job: BuildJob) -> None:
        self._builds.append(job)
        self._dispatch()

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        post = next((p for p in self._posts if p.seat is not None and p.name == worker_id), None)
        if post is None or not post.ready or post.busy:
            state = "busy" if post is not None and post.busy else "not there"
            self._events.append(JobLost(job.job_id, f"worker {worker_id} is {state}"))
            return
        candidates = [self._share(artifact) for artifact in job.candidates]
        reference = post.actor.measure.remote(replace(job, candidates=()), *candidates)
        # A job whose candidates take their process down is repeated without them, one by one.
        each_s = min(job.timeout_s, job.candidate_timeout_s)
        self._fly(reference, post, job.job_id, job.timeout_s + len(job.candidates) * each_s)

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        deadline = time.monotonic() + timeout_s
        while True:
            left = 0.0 if self._events else max(0.0, deadline - time.monotonic())
            if self._cluster is not None:
                self._cluster.check()
            self._collect(left)
            self._expire()
            self._revive()
            self._look_around()
            self._dispatch()
            if self._events or time.monotonic() >= deadline:
                events = list(self._events)
                self._events.clear()
                return events

    # -- inside ------------------------------------------------------------------------------------
    def _hire(self, post: _Post) -> None:
        """Create the post's actor and ask it to report for work."""
        assert self._cluster is not None
        common: dict[str, Any] = {"max_restarts": -1, "max_task_retries": 0, "max_concurrency": 1}
        if self._cluster.runtime_env:
            common["runtime_env"] = self._cluster.runtime_env
        plan = self._plan
        if post.seat is None:
            common["num_cpus"] = self._builder_cpus
            make = ray.remote(BuilderActor).options(num_gpus=0, **common)
            kinds = tuple(sorted({other.seat.kind for other in self._posts if other.seat}))
            post.actor = make.remote(post.name, plan.build_options, plan.paths, plan.cwd, kinds)
        else:
            needs = ray_nodes.needs(post.seat.kind)
            where = self._place(post) if post.seat.kind in _EVENLY else "SPREAD"
            make = ray.remote(RunnerActor).options(scheduling_strategy=where, **needs, **common)
            post.actor = make.remote(post.seat, plan.paths, plan.cwd)
        self._ask(post)

    def _place(self, post: _Post) -> Any:
        """The node with the fewest of such runners; when it dies, they are hired anew elsewhere."""
        taken = [other.home for other in self._posts if other is not post]
        node = ray_nodes.home(ray_nodes.alive(), taken)
        if node is None:
            return "SPREAD"
        post.home = node.node_id
        return ray_nodes.on(node)

    def _look_around(self) -> None:
        """Staff nodes that have joined; give up when builds wait and no builder comes."""
        now = time.monotonic()
        if self._look_at <= now:
            self._look_at = now + _LOOK_S
            self._staff(ray_nodes.alive())
        if not self._builds or any(post.seat is None and post.ready for post in self._posts):
            self._building_at = now
        elif now - self._building_at > (limit_s := _PATIENCE * self._spec.connect_timeout_s):
            raise TunerError(
                f"builds wait, and no builder has come up for {limit_s:.0f} s",
                "see `ray status`: a builder needs a free CPU; start again when there is one",
            )

    def _ask(self, post: _Post) -> None:
        post.busy = True
        self._calls[post.actor.ready.remote()] = _Call(post)

    def _fly(self, reference: Any, post: _Post, job_id: str, timeout_s: float) -> None:
        post.busy = True
        deadline = time.monotonic() + 2 * timeout_s + _GRACE_S
        self._calls[reference] = _Call(post, job_id, deadline)

    def _dispatch(self) -> None:
        """Builds for idle builders; those left idle and cold warm up, a step at a time."""
        for post in self._posts:
            if post.seat is not None or not post.ready or post.busy:
                continue
            if self._builds:
                job = self._builds.popleft()
                self._fly(post.actor.build.remote(job), post, job.job_id, job.timeout_s)
            elif not post.warm:
                post.busy = True
                self._calls[post.actor.warm_up.remote()] = _Call(post, warming=True)

    def _share(self, artifact: Artifact) -> Any:
        """The artifact itself if small, else a reference to its one copy in the object store."""
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
        """Take in finished calls; wait for the first, but not past the next thing to do."""
        soon = min((post.retry_at for post in self._posts if post.retry_at), default=float("inf"))
        timeout_s = min(timeout_s, max(0.0, soon - time.monotonic()), 5.0)
        if not self._calls:
            time.sleep(timeout_s)
            return
        first, _ = ray.wait(list(self._calls), num_returns=1, timeout=timeout_s)
        if first:
            done, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
            for reference in done:
                self._land(reference, self._calls.pop(reference))

    def _land(self, reference: Any, call: _Call) -> None:
        try:
            result = ray.get(reference)
        except Exception as error:
            self._fail(call, error)
            return
        post = call.post
        post.busy = False
        if call.warming:
            post.warm = result
            return
        if call.job_id and post.seat is None:
            built, post.warm = result
            self._events.append(Built(call.job_id, built))
        elif call.job_id:
            self._events.append(Measured(call.job_id, post.name, result))
        else:
            post.ready, post.failures = True, 0
            if post.seat is not None:
                self._events.append(WorkerReady(result))

    def _fail(self, call: _Call, error: Exception) -> None:
        """The actor died, or could not do its part: give up the job, not the actor."""
        post, reason = call.post, _reason(error)
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        remedy = remedy_of(cause)
        if not call.job_id:
            post.failures += 1
        # Asked again and again whether it is back, it is gone only once.
        hopeless = isinstance(error, ray.exceptions.RayTaskError) and post.failures >= _ATTEMPTS
        if post.seat is not None and (post.ready or hopeless):
            self._events.append(WorkerGone(post.name, reason, remedy))
        if call.job_id:
            self._events.append(JobLost(call.job_id, reason, remedy))
        post.ready = post.warm = False
        if isinstance(error, _FOR_GOOD):
            ray.kill(post.actor)
            post.actor = None
        if post.seat is not None and hopeless:
            ray.kill(post.actor)
            self._posts.remove(post)
        else:
            # Of which there may be thousands, while a node is away.
            post.retry_at = time.monotonic() + 0.1 * 2 ** min(post.failures, 6)

    def _revive(self) -> None:
        """Ask actors that failed whether they are back, or replace them."""
        now = time.monotonic()
        for post in self._posts:
            if post.retry_at and post.retry_at <= now:
                post.retry_at = 0.0
                if post.actor is None:
                    self._hire(post)
                    continue
                if post.seat is not None:
                    post.actor.reset.remote()
                self._ask(post)

    def _expire(self) -> None:
        """Restart actors that have not answered long after their job's own limits."""
        now = time.monotonic()
        for reference, call in list(self._calls.items()):
            if call.deadline <= now:
                del self._calls[reference]
                ray.kill(call.post.actor, no_restart=False)
                self._fail(call, WorkerLost("the worker stopped answering and was restarted"))


def _reason(error: Exception) -> str:
    """One line; of an exception in an actor, what it said there."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        kind = "" if isinstance(cause, WorkerLost) else f"{type(cause).__name__}: "
        return one_line(f"{kind}{cause}")
    if isinstance(error, ray.exceptions.RayActorError):
        return "the actor's process died"
    return one_line(f"{error}")
