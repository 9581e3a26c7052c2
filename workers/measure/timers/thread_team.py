"""The OpenMP threads that are timed, each on a processor of its own, before other programs.

Where another program occupies a processor, Linux may run all threads of a team on those that are
left, one after the other: two threads then take as long as one, in every sample. Therefore each
thread of a team is bound to a processor while it is timed, and has precedence over other programs
where the system permits it (root, `CAP_SYS_NICE` or `RLIMIT_NICE`): without, calls of a few ms are
interrupted in nearly every sample. Where Linux groups processes by session, precedence is that of
the group (`sched(7)`, autogroup). What interruptions are left is known from how long the threads
were ready while others ran: the second field of `/proc/PID/task/TID/schedstat`, see
`Documentation/scheduler/sched-stats.rst` of Linux. `benchmarks/busy_processors.py` measures it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workers.host import affinity, group_by_core

#: The nice value of threads that are timed; the system gives them ten times as much as one of 0.
_NICE = -10
_AUTOGROUP = Path("/proc/self/autogroup")
_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class ThreadTeam:
    """The threads of this process's OpenMP, which is GNU's, and how long they wait.

    With another OpenMP or another system nothing is bound, and no thread is known to wait.
    """

    def __init__(self) -> None:
        self._usable = affinity()
        cores = group_by_core(self._usable)
        depth = max(map(len, cores), default=0)
        #: One processor of each physical core, then their siblings.
        self._places = [core[n] for n in range(depth) for core in cores if n < len(core)]
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._threads = 0
        #: Open files of the times that threads have waited, by thread.
        self._waits: dict[int, int] = {}

    def enter(self) -> None:
        """Bind the threads of the team that the calling thread would start now; a single thread
        goes where it likes.

        OpenMP ends and starts threads where the size of its team changes.
        """
        threads = _team_size()
        if threads == self._threads or not self._places:
            return
        self._forget()
        _prefer_session(_NICE)
        if threads == 1:
            self._place(self._usable)
        else:
            _run_in_team(threads, lambda number: self._place({self._place_of(number)}))
        self._threads = threads

    def leave(self) -> None:
        """Undo what `enter` did to the calling thread, which starts other threads and programs."""
        if self._threads:
            self._forget()
            with suppress(OSError):
                os.sched_setaffinity(0, self._usable)
            os.setpriority(os.PRIO_PROCESS, 0, self._nice)
            _prefer_session(0)

    def waited_us(self) -> float:
        """For how long its threads have been ready and did not run, all together, in us."""
        return sum(map(_waited_ns, self._waits.values())) / 1000

    @contextmanager
    def left_afterwards(self) -> Iterator[None]:
        """Whatever team is entered inside is left at the end."""
        try:
            yield
        finally:
            self.leave()

    def _place_of(self, number: int) -> int:
        return self._places[number % len(self._places)]

    def _place(self, processors: set[int]) -> None:
        """Bind the calling thread, and watch how long it waits."""
        thread = threading.get_native_id()
        with suppress(OSError):  # the container may have lost a processor since
            os.sched_setaffinity(0, processors)
        with suppress(OSError):
            path = f"/proc/self/task/{thread}/schedstat"
            self._waits[thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # not permitted
            os.setpriority(os.PRIO_PROCESS, 0, min(_NICE, self._nice))

    def _forget(self) -> None:
        self._threads = 0
        while self._waits:
            os.close(self._waits.popitem()[1])


def _waited_ns(file: int) -> int:
    try:
        return int(os.pread(file, 100, 0).split()[1])
    except (OSError, IndexError):  # the thread has ended
        return 0


def _openmp() -> ctypes.CDLL | None:
    """GNU's OpenMP, which torch loads so that all see it."""
    loaded = ctypes.CDLL(None)
    return loaded if hasattr(loaded, "GOMP_parallel") else None


def _team_size() -> int:
    openmp = _openmp()
    return 1 if openmp is None else int(openmp.omp_get_max_threads())


def _run_in_team(threads: int, run: Callable[[int], None]) -> None:
    """Call `run(number)` in each thread of a parallel region, as compiled code has it."""
    openmp = _openmp()
    assert openmp is not None
    region = _REGION(lambda _: run(openmp.omp_get_thread_num()))
    openmp.GOMP_parallel(region, None, ctypes.c_uint(threads), ctypes.c_uint(0))


def _prefer_session(nice: int) -> None:
    """Give the group of this process's session a nice value, where there are such groups."""
    with suppress(OSError):  # no groups, or not permitted
        _AUTOGROUP.write_text(f"{nice}")
