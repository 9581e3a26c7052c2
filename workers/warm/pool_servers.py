"""The fork servers of one local pool: every library is imported once for all of its processes.

The preloads of builders and of each kind of runner are lists. A server loads what all lists begin
with; where they differ, branches of it load the rest. For `cuda` alone:

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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from workers.warm.fork_server import IN_WORKER, ForkServer, Server

if TYPE_CHECKING:
    from search_spaces.records import Device, Value
    from workers.backend_spec import Describe

#: The key of the builders' preload, and the end of the keys of standbys; no kind has such a name.
_BUILDERS, _STANDBY = "builders", " standby"
_ROOT = "workers"
#: By this variable Triton interprets all kernels of a process.
_INTERPRETS = "TRITON_INTERPRET=1"


class PoolServers:
    """The servers from which builders and runners of some kinds fork. All are shared.

    kinds: those of the runners. paths, cwd: as for `ForkServer`. torch_free: as in `PoolSpec`.
    """

    def __init__(
        self, kinds: Iterable[str], paths: Sequence[str], cwd: str, *, torch_free: bool = False
    ) -> None:
        from workers import backend_kinds
        from workers.backend_spec import WORKERS

        self.kinds, self.cwd, self.torch_free = frozenset(kinds), cwd, torch_free
        #: The process that owns the servers; a fork of it must not use them.
        self.pid = os.getpid()
        specs = {kind: backend_kinds.spec(kind) for kind in sorted(self.kinds)}
        # What builders share with a runner of kind `cpu` comes first, and is loaded once.
        ordered = sorted(specs.values(), key=lambda spec: spec.accelerator or not spec.timed)
        for_builders = [
            entry
            for spec in ordered
            for entry in (
                spec.torch_free_builder_preload() if torch_free else spec.builder_preload()
            )
        ]
        preloads = {kind: spec.preload() for kind, spec in specs.items()}
        #: Whether there is anything to load before the first worker forks.
        self.heavy = bool(for_builders or any(preloads.values()))
        #: The kinds for which each builder has to warm up by itself.
        self.cold_kinds = [kind for kind, spec in specs.items() if not spec.builder_preload()]
        self._root = ForkServer(_ROOT, paths=paths, cwd=cwd, shared=True)
        self._of: dict[str, Server] = {}
        self._branches: list[Server] = []
        standbys = {
            kind + _STANDBY: spec.standby_preload()
            for kind, spec in specs.items()
            if spec.standby and spec.standby_preload() != preloads[kind]
        }
        wanted = {_BUILDERS: for_builders, **preloads, **standbys}
        self._assign(
            self._root,
            {
                name: tuple(
                    dict.fromkeys(entries if WORKERS[0] in entries else (*WORKERS, *entries))
                )
                for name, entries in wanted.items()
            },
        )
        self._describing = {kind: spec.make_describe for kind, spec in specs.items()}
        self._describe: dict[str, Describe] = {}
        self._started = False

    @property
    def builders(self) -> Server:
        """The server from which builders fork."""
        return self._of[_BUILDERS]

    def runners(self, kind: str) -> Server:
        """The server from which runners of a kind fork."""
        return self._of[kind]

    def fits(self, kinds: Iterable[str], cwd: str, *, torch_free: bool) -> bool:
        """Whether a pool of this process with these kinds of runners can use them."""
        here = os.path.realpath(cwd) == os.path.realpath(self.cwd)
        loaded = torch_free or not self.torch_free
        return here and loaded and self.kinds >= set(kinds) and self.pid == os.getpid()

    def standbys(self, kind: str) -> Server:
        """The server from which their standby processes fork."""
        return self._of.get(kind + _STANDBY) or self._of[kind]

    @property
    def with_torch(self) -> Server | None:
        """A server that has torch, and no Triton that interprets; None if there is none."""
        servers = (self._root, *self._branches)
        fit = (one for one in servers if one.loads("torch") and not one.loads(_INTERPRETS))
        return next(fit, None)

    def start(self) -> None:
        """Start all servers and let them load. Returns at once, and does nothing if called again.

        A server that cannot be started is left to its first worker, which reports it.
        """
        if self._started:
            return
        self._started = True
        with suppress(OSError):
            for server in (self._root, *self._branches):
                server.start()
        self._describe = {kind: begin() for kind, begin in self._describing.items()}

    def describe_device(self, kind: str, index: int, options: Mapping[str, Value]) -> Device | None:
        """The device of a runner as known without opening it; None if its kind does not say."""
        describe = self._describe.get(kind)
        return describe(index, options) if describe is not None else None

    @property
    def loading(self) -> bool:
        """Whether a living server still loads libraries."""
        return any(one.loading and one.alive for one in (self._root, *self._branches))

    def kill_if_loading(self) -> None:
        """Kill servers that still load libraries, which no worker needs any more."""
        if self.loading:
            self._root.kill()

    def close(self) -> None:
        """End all servers after their workers."""
        for branch in self._branches:
            branch.close()
        self._root.close()

    def _assign(self, server: Server, wanted: Mapping[str, Sequence[str]]) -> None:
        """Have `server` load what all of `wanted` begin with, and branches of it the rest."""
        rows = zip(*wanted.values(), strict=False)
        common = [row[0] for row in itertools.takewhile(lambda row: len(set(row)) == 1, rows)]
        server.load(*common)
        groups: dict[str | None, dict[str, Sequence[str]]] = {}
        for name, entries in wanted.items():
            rest = entries[len(common) :]
            groups.setdefault(rest[0] if rest else None, {})[name] = rest
        for first, group in groups.items():
            if first is None:
                self._of.update(dict.fromkeys(group, server))
            else:
                branch = server.branch("+".join(group))
                self._branches.append(branch)
                self._assign(branch, group)


_lock = threading.Lock()
_prestarted: PoolServers | None = None


def prestart(
    kinds: Sequence[str],
    paths: Sequence[str] = (),
    cwd: str | None = None,
    *,
    torch_free: bool = False,
) -> None:
    """Begin to load the libraries of workers for these kinds of devices, and return at once.

    The next local pool of this process with no other kinds, and the same working folder `cwd` (by
    default the present one), forks its workers from there. Does nothing for kinds that load
    nothing, for unknown kinds, in a worker, or if these libraries are loading already. What no pool
    takes ends by `end_prestarted` or with this process. paths: import paths of plug-ins' preloads.
    torch_free: as in `PoolSpec`.
    """
    global _prestarted
    from search_spaces.errors import TunerError

    folder = cwd or os.getcwd()
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
