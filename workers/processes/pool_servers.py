"""The fork servers of one local pool: every library is imported once for all of its processes.

A server loads what all preloads begin with; where they differ, branches of it load the rest. For
`cuda` alone:

    workers             Triton, the digest of its files, torch, workers.backends.cuda.backend
      +-- builders      workers.compiling.gpu, one small compilation
      +-- cuda standby  Inductor

and where no kernel needs torch for its builds:

    workers
      +-- builders               Triton, the digest, workers.compiling.gpu, one small compilation
      +-- cuda+cuda standby      Triton, the digest, torch, workers.backends.cuda.backend
            +-- cuda standby     Inductor

`prestart` starts the servers of a pool that does not exist yet, so that libraries are imported
while the driver imports its own.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from workers.processes.fork_server import IN_WORKER, ForkServer
from workers.processes.preload import WORKERS, Import, Preload, Step, Variable, WorkerRole

if TYPE_CHECKING:
    from workers.backend_spec import BackendSpec, Describe

#: The key of the builders' preload, and the end of the keys of standbys; no kind has such a name.
_BUILDERS, _STANDBY = "builders", " standby"
_TORCH = Import("torch")
#: By this variable Triton interprets all kernels of a process.
_INTERPRETS = Variable("TRITON_INTERPRET", "1")


class PoolServers:
    """The servers from which builders and runners of some kinds fork. All are shared.

    kinds: those of the runners. paths, cwd: as for `ForkServer`. torch_free: as in `PoolSpec`.
    """

    def __init__(
        self, kinds: Iterable[str], paths: Sequence[str], cwd: str, *, torch_free: bool = False
    ) -> None:
        from workers import backend_kinds

        self.kinds, self.cwd, self.torch_free = frozenset(kinds), cwd, torch_free
        #: The process that owns the servers; a fork of it must not use them.
        self.pid = os.getpid()
        specs = {kind: backend_kinds.spec(kind) for kind in sorted(self.kinds)}
        wanted = _preloads(specs, torch_free=torch_free)
        #: Whether there is anything to load before the first worker forks.
        self.heavy = any(preload.steps for preload in wanted.values())
        self._of: dict[str, ForkServer] = {}
        #: All servers, each before its branches.
        self._servers: list[ForkServer] = []
        self._assign(
            {
                name: (
                    preload if WORKERS.steps[0] in preload.steps else Preload.of(WORKERS, preload)
                ).steps
                for name, preload in wanted.items()
            },
            lambda common: ForkServer("workers", paths=paths, cwd=cwd, shared=True, preload=common),
        )
        self._describing = {kind: spec.make_describe for kind, spec in specs.items()}
        #: By kind, what describes a runner's device without opening it, once started.
        self.describe: Mapping[str, Describe] = {}
        self._started = False

    def find(self, role: WorkerRole, kind: str = "") -> ForkServer:
        """The server from which builders fork, or the runners or standbys of a kind."""
        if role is WorkerRole.STANDBY:
            return self._of.get(kind + _STANDBY) or self._of[kind]
        return self._of[_BUILDERS if role is WorkerRole.BUILDER else kind]

    def fits(self, kinds: Iterable[str], cwd: str, *, torch_free: bool) -> bool:
        """Whether a pool of this process with these kinds of runners can use them."""
        here = os.path.realpath(cwd) == os.path.realpath(self.cwd)
        loaded = torch_free or not self.torch_free
        return here and loaded and self.kinds >= set(kinds) and self.pid == os.getpid()

    @property
    def with_torch(self) -> ForkServer | None:
        """A server that has torch, and no Triton that interprets; None if there is none."""
        fit = (one for one in self._servers if one.loads(_TORCH) and not one.loads(_INTERPRETS))
        return next(fit, None)

    def start(self) -> None:
        """Start all servers and let them load. Returns at once, and does nothing if called again.

        A server that cannot be started is left to its first worker, which reports it.
        """
        if self._started:
            return
        self._started = True
        with suppress(OSError):
            for server in self._servers:
                server.start()
        self.describe = {kind: begin() for kind, begin in self._describing.items()}

    @property
    def loading(self) -> bool:
        """Whether a living server still loads libraries."""
        return any(one.loading and one.alive for one in self._servers)

    def kill_if_loading(self) -> None:
        """Kill servers that still load libraries, which no worker needs any more."""
        if self.loading:
            self._servers[0].kill()

    def close(self) -> None:
        """End all servers after their workers."""
        for server in reversed(self._servers):
            server.close()

    def _assign(
        self,
        wanted: Mapping[str, Sequence[Step]],
        make: Callable[[Preload], ForkServer],
    ) -> None:
        """Have a server load what all of `wanted` begin with, and branches of it the rest."""
        rows = zip(*wanted.values(), strict=False)
        common = [row[0] for row in itertools.takewhile(lambda row: len(set(row)) == 1, rows)]
        server = make(Preload.of(*common))
        self._servers.append(server)
        groups: dict[Step | None, dict[str, Sequence[Step]]] = {}
        for name, steps in wanted.items():
            rest = steps[len(common) :]
            groups.setdefault(rest[0] if rest else None, {})[name] = rest
        self._of.update(dict.fromkeys(groups.pop(None, ()), server))
        for group in groups.values():
            self._assign(group, partial(server.branch, "+".join(group)))


def _preloads(specs: Mapping[str, BackendSpec], *, torch_free: bool) -> dict[str, Preload]:
    """What builders load, the runners of each kind, and their standbys where they load more."""
    # What builders share with a runner of kind `cpu` comes first, and is loaded once.
    ordered = sorted(specs.values(), key=lambda spec: spec.accelerator or not spec.timed)
    builders = (spec.preload(WorkerRole.BUILDER, torch_free=torch_free) for spec in ordered)
    runners = {kind: spec.preload(WorkerRole.RUNNER) for kind, spec in specs.items()}
    standbys = {
        kind: spec.preload(WorkerRole.STANDBY) for kind, spec in specs.items() if spec.standby
    }
    return {
        _BUILDERS: Preload.of(*builders),
        **runners,
        **{kind + _STANDBY: one for kind, one in standbys.items() if one != runners[kind]},
    }


_lock = threading.Lock()
_prestarted: PoolServers | None = None


def prestart(
    kinds: Sequence[str],
    paths: Sequence[str] = (),
    *,
    torch_free: bool = False,
) -> None:
    """Begin to load the libraries of workers for these kinds of devices, and return at once.

    The next local pool of this process with no other kinds, and the same working folder as this
    process has now, forks its workers from there. Does nothing for kinds that load nothing, for
    unknown kinds, in a worker, or if these libraries are loading already. What no pool takes ends
    by `end_prestarted` or with this process. paths: import paths of plug-ins' preloads. torch_free:
    as in `PoolSpec`.
    """
    global _prestarted
    from search_spaces.errors import TunerError

    folder = os.getcwd()
    with _lock:
        if IN_WORKER in os.environ or (
            _prestarted and _prestarted.fits(kinds, folder, torch_free=torch_free)
        ):
            return
        try:
            absolute = [os.path.abspath(path) for path in paths]
            servers = PoolServers(kinds, absolute, folder, torch_free=torch_free)
        except TunerError:  # the pool reports it
            return
        if servers.heavy:
            _drop()
            servers.start()
            _prestarted = servers


def end_prestarted() -> None:
    """End what `prestart` began and no pool has taken."""
    with _lock:
        _drop()


def take_servers(
    kinds: Sequence[str], paths: Sequence[str], cwd: str, *, torch_free: bool
) -> PoolServers:
    """The servers that were started in advance if they fit, else others that are not started."""
    global _prestarted
    with _lock:
        servers = _prestarted
        if servers is not None and servers.fits(kinds, cwd, torch_free=torch_free):
            _prestarted = None
            return servers
        _drop()
    return PoolServers(kinds, paths, cwd, torch_free=torch_free)


def _drop() -> None:
    """End servers that no pool has taken."""
    global _prestarted
    servers, _prestarted = _prestarted, None
    if servers is not None and servers.pid == os.getpid():
        servers.kill_if_loading()
        servers.close()


atexit.register(_drop)
