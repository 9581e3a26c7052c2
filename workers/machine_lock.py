"""Locks that all processes of a machine share, of whichever user, campaign and program.

A lock is a file that the system locks for an open descriptor (`flock`), so it ends with its
process and no file is ever stale. The files lie in a folder that every user may write to and that
no variable of the environment changes. They are empty: the system itself says which process holds
a lock (`/proc/locks`). Processes of containers share a lock only where they share that folder.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

_FOLDERS = ("/run/lock", "/var/lock", "/tmp")
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_POLL_S = 0.01
#: A wait of this length is logged.
_SAY_AFTER_S = 2.0
_COMMAND_CHARACTERS = 100
#: Of `struct flock`: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
#: Bytes of a file that may be marked.
_BYTES = 2**62
#: Priorities are from -10 to 10.
MOST_PRIORITY = 10
_LEVELS = 2 * MOST_PRIORITY + 1
#: Later jobs that pass an earlier one whose priority is lower by one.
MOST_PASSES = 8
#: So long the device is kept for a higher priority between two of its jobs.
_RETURN_S = 0.1
_log = logging.getLogger(__name__)
#: Paths of locks that cannot be used, which were reported.
_reported: set[str] = set()


class MachineLock:
    """One lock; a lock that cannot be used never excludes anybody. For one thread at a time.

    name: letters, digits and hyphens.
    """

    def __init__(self, name: str) -> None:
        self.path = f"{_folder()}/tuner-{name}.lock"
        self._descriptor = -1

    def take(self, *, shared: bool = False) -> bool:
        """Take the lock unless another holder prevents it; returns at once."""
        while True:
            if self._descriptor < 0:
                self._descriptor = _open(self.path)
            if self._descriptor < 0:
                return True
            try:
                kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            except OSError:
                return False
            if os.fstat(self._descriptor).st_nlink:
                return True
            self.close()  # the file was deleted: others lock a new one

    def release(self) -> None:
        """Give the lock up. Does nothing without it."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the lock up and close its file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def mark(self, byte: int, *, free: bool = False) -> None:
        """Mark a byte for as long as the file is open, or free it. A mark excludes nobody."""
        kind = fcntl.F_UNLCK if free else fcntl.F_RDLCK
        with suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, 0, byte, 1, 0))

    def list_marks(self) -> list[int]:
        """The bytes that others have marked."""
        if self._descriptor < 0:
            self._descriptor = _open(self.path)
        found: list[int] = []
        gaps = [(0, _BYTES)]
        while gaps:
            low, high = gaps.pop()
            ask = _FLOCK.pack(fcntl.F_WRLCK, 0, low, high - low, 0)
            try:
                answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, ask)
            except OSError:
                return []
            kind, _, first, size, _ = _FLOCK.unpack(answer)
            if kind == fcntl.F_UNLCK:
                continue
            end = first + size if size else _BYTES
            # A mark that is moved covers both bytes where they are neighbours.
            found += range(first, end) if size in (1, 2) else ()
            gaps += [gap for gap in ((low, first), (end, high)) if gap[0] < gap[1]]
        return found

    @property
    def taken(self) -> bool:
        """Whether somebody else holds the lock alone. Not for its holder."""
        free = self.take(shared=True)
        self.release()
        return not free

    def holder(self) -> str:
        """The process that holds the lock alone: `process 17 (tuner run nightly)`."""
        with suppress(OSError, ValueError):
            status = os.stat(self.path, follow_symlinks=False)
            place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
            with open("/proc/locks", encoding="ascii") as locks:
                for line in locks:
                    fields = line.split()
                    if fields[1] == "FLOCK" and fields[3] == "WRITE" and fields[5] == place:
                        return _name_process(int(fields[4]))
        return "another process"


class Place(NamedTuple):
    """A place in the line for a device, by one byte of a file."""

    #: In the order of arrival.
    number: int
    priority: int
    #: Whether its owner has had the device since, and has not come back.
    away: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """The smallest one gets the device first."""
        return self.number - MOST_PASSES * self.priority, -self.priority

    @property
    def byte(self) -> int:
        return 2 * (self.number * _LEVELS + self.priority + MOST_PRIORITY) + self.away

    @classmethod
    def of_byte(cls, byte: int) -> Place:
        number, level = divmod(byte // 2, _LEVELS)
        return cls(number, level - MOST_PRIORITY, bool(byte % 2))


class DeviceLock:
    """The lock of one device, which all who wait for it get in turns. For one thread at a time.

    Equal priorities are served as they come. A higher one goes first, and the device is kept for
    its next job for a moment, but for each step of priority at most `MOST_PASSES` later jobs pass
    another. A place in the line is the lock of one byte of a file, so whoever ends has lost it.

    name: as for `MachineLock`. what: the device in messages. priority: to +-`MOST_PRIORITY`.
    """

    def __init__(self, name: str, what: str, priority: int = 0) -> None:
        self._what, self._priority = what, priority
        self._device, self._line = MachineLock(name), MachineLock(f"{name}-turn")
        self._place: Place | None = None
        #: When those of higher priority who are ahead were first seen to be away.
        self._away: dict[Place, float] = {}

    def take(self) -> bool:
        """Take the lock if nobody holds it or waits for it; returns at once."""
        return not self.waiting and self._device.take()

    def release(self) -> None:
        """Give the lock up. Does nothing without it."""
        self._device.release()

    def close(self) -> None:
        """Give the lock and the place in the line up, and close the files."""
        self._line.close()
        self._device.close()
        self._place = None

    @property
    def waiting(self) -> int:
        """How many others wait, or hold the lock and have waited."""
        return sum(not place.away for place in self._list_others())

    def join(self) -> bool:
        """Take a place at the end of the line; false while another one is taken."""
        if not self._line.take():
            return False
        last = max(each.number for each in (self._place or Place(0, 0), *self._list_others()))
        self._move(Place(last + 1, self._priority))
        self._line.release()
        return True

    def advance(self) -> bool:
        """Take the lock if it is the turn of this place; returns at once."""
        assert self._place is not None
        now, own = time.monotonic(), self._place.rank
        ahead = [each for each in self._list_others() if each.rank < own]
        away = [each for each in ahead if each.away]
        self._away = {
            each: self._away.get(each, now) for each in away if each.priority > self._priority
        }
        awaited = any(now < since_s + _RETURN_S for since_s in self._away.values())
        return len(away) == len(ahead) and not awaited and self._device.take()

    def leave(self) -> None:
        """Give the lock up, and keep the place, by which those of lower priority wait a moment."""
        if self._place is not None:
            self._move(self._place._replace(away=True))
        self._device.release()

    @contextmanager
    def hold(self, stopped: Callable[[], bool]) -> Iterator[None]:
        """A block in which nobody else holds the lock; entered without it once `stopped` is true.

        A long wait is logged, with the process it is for.
        """
        since, said = time.monotonic(), False
        try:
            for step in (self.join, self.advance):
                while not stopped() and not step():
                    if not said and time.monotonic() - since > _SAY_AFTER_S:
                        said = True
                        _log.warning("waiting for %s, in use by %s", self._what, self.holder())
                    time.sleep(_POLL_S)
            yield
        finally:
            self.leave()

    def holder(self) -> str:
        """The process that holds the lock."""
        return self._device.holder()

    def _move(self, place: Place) -> None:
        """Have this place, and no longer the one before."""
        old, self._place = self._place, place
        self._line.mark(place.byte)
        if old is not None:
            self._line.mark(old.byte, free=True)

    def _list_others(self) -> list[Place]:
        return [Place.of_byte(byte) for byte in self._line.list_marks()]


def _folder() -> str:
    """The first folder in which every user may make files and nobody may delete those of others.

    Its state alone decides, so all processes agree.
    """
    for folder in _FOLDERS:
        with suppress(OSError):
            mode = os.stat(folder).st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_ISVTX and mode & stat.S_IWOTH:
                return folder
    return _FOLDERS[-1]


def _open(path: str) -> int:
    """A descriptor of the file, made if it is missing; -1 where it cannot be used.

    Only an ordinary file is, never what a link leads to. Nothing is written into it.
    """
    problem = "it is no ordinary file"
    for _ in range(3):
        try:
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:
            try:
                descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
                os.fchmod(descriptor, 0o644)  # whatever the umask: others lock it as well
            except FileExistsError:
                continue
            except OSError as error:
                problem = error.strerror or f"{error}"
                break
        except OSError as error:
            problem = error.strerror or f"{error}"
            break
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        break
    if path not in _reported:
        _reported.add(path)
        _log.warning(
            "%s cannot be locked (%s), so measurements of other processes may disturb; delete it",
            path, problem,
        )  # fmt: skip
    return -1


def _name_process(pid: int) -> str:
    """A process in messages, with its command where that can be read."""
    command = ""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as line:
        words = line.read(4096).decode(errors="replace").split("\0")
        words[:2] = map(os.path.basename, words[:2])
        if words[0].startswith("python") and len(words) > 1:
            del words[0]
        text = " ".join(filter(None, (word.partition("\n")[0] for word in words)))
        command = "".join(c if c.isprintable() else "?" for c in text)
    return f"process {pid} ({command[:_COMMAND_CHARACTERS]})" if command else f"process {pid}"
