"""The workers that a pool spec asks for: a slot per runner, a number of builders, their options."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.records import Value
from workers import backend_kinds
from workers.backend_spec import Describe
from workers.host import affinity, group_by_core
from workers.job_records import PoolSpec, WorkerInfo

#: Memory of a child with torch loaded while it compiles.
_BUILDER_BYTES = 3 * 2**29


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """The place of one runner in a pool."""

    worker_id: str
    #: The backend's kind.
    kind: str
    #: The number of its device among those of the kind.
    index: int
    #: Keyword arguments of its backend.
    options: Mapping[str, Value] = field(default_factory=dict)
    #: Among the runners of all pools that wait for the device.
    priority: int = 0


def describe_runners(
    slots: Iterable[WorkerSlot], describe: Mapping[str, Describe]
) -> list[WorkerInfo] | None:
    """The runners of this machine as known before they are ready; None where one is not known.

    describe: by kind.
    """
    host, infos = socket.gethostname(), []
    for slot in slots:
        device = describe[slot.kind](slot.index, slot.options) if slot.kind in describe else None
        if device is None:
            return None
        toolchain = backend_kinds.spec(slot.kind).toolchain()
        infos.append(WorkerInfo(slot.worker_id, device, toolchain, host))
    return infos


class PoolPlan:
    """What a pool spec asks for, computed once per pool. `close` removes temporary files."""

    def __init__(self, spec: PoolSpec) -> None:
        self._spec = spec
        self._shared_dir = ""
        #: Import paths of the workers, absolute.
        self.paths = tuple(str(Path(path).resolve()) for path in spec.paths)
        #: The driver's working folder.
        self.cwd = os.getcwd()

    @property
    def build_options(self) -> Mapping[str, Mapping[str, Value]]:
        """The options of builds, by kind of device."""
        return self._spec.options

    def slots(self, count_devices: Callable[[str], int]) -> Iterator[WorkerSlot]:
        """A slot per runner. count_devices: the number of devices of a kind."""
        for kind, requested in sorted(self._spec.runners.items()):
            count = count_devices(kind) if requested is None else requested
            for index in range(count):
                name, options = f"{kind}-{index}", self._options(kind)
                yield WorkerSlot(name, kind, index, options, self._spec.priority)

    def builders(self, cpus: int, memory_bytes: int, runners: int, timed: int = 0) -> int:
        """The number of builders: as the spec says, else the processors that `runners` leave.

        At least 1, and no more than memory allows. timed: those of the runners' processors on which
        variants are timed, where builders run while nothing is. memory_bytes: 0 if unknown.
        """
        if self._spec.builders is not None:
            return self._spec.builders
        room = memory_bytes // _BUILDER_BYTES if memory_bytes else cpus
        return max(1, min(max(1, cpus - runners) + timed, cpus, room))

    def close(self) -> None:
        """Remove the folder that the runners share."""
        if self._shared_dir:
            shutil.rmtree(self._shared_dir, ignore_errors=True)

    def _options(self, kind: str) -> Mapping[str, Value]:
        return backend_kinds.spec(kind).runner_options(
            self._spec.options.get(kind, {}), self._folder
        )

    def _folder(self) -> str:
        """A folder that all runners share; made when it is first asked for."""
        self._shared_dir = self._shared_dir or tempfile.mkdtemp(prefix="tuner-lost-")
        return self._shared_dir


# -- processors: one per GPU for the thread that launches, the rest for compilers and other threads
# A launch takes a few microseconds of one processor. A compiler on the same physical core lengthens
# the measured times.
def shares(
    numbers: Collection[int], usable: Collection[int] | None = None, root: Path = Path("/")
) -> tuple[Mapping[int, int], frozenset[int]]:
    """The launching processor of each GPU, by the GPU's number, and the processors for the rest.

    GPU number i gets the i-th physical core, siblings included. If that leaves no processor, it
    gets one logical processor; if that still leaves none, nothing is reserved. numbers: those of
    the GPUs. usable: by default the process's affinity. root: of the file system with `sys`.
    """
    if usable is None:
        usable = affinity()
    cores = group_by_core(usable, root)
    if not numbers or max(numbers) >= len(cores):
        return {}, frozenset(usable)
    launch = {number: cores[number][0] for number in numbers}
    taken = {processor for number in numbers for processor in cores[number]}
    others = set(usable) - taken or set(usable) - set(launch.values())
    return (launch, frozenset(others)) if others else ({}, frozenset(usable))


def number(kind: str, index: int) -> int:
    """The machine's number of this process's GPU `index`, by the environment if it names numbers.

    Several processes with one GPU each must launch from different cores.
    """
    setting = os.environ.get(backend_kinds.spec(kind).visible_devices) or ""
    names = [part.strip() for part in setting.split(",")]
    if index < len(names) and names[index].isdecimal():
        return int(names[index])
    return index
