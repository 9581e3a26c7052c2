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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_FOLDERS = ("/run/lock", "/var/lock", "/tmp")
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_POLL_S = 0.01
#: A wait of this length is logged.
_SAY_AFTER_S = 2.0
_COMMAND_CHARACTERS = 100
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


class DeviceLock:
    """The lock of one device, taken in turns by all who wait for it. For one thread at a time.

    Whoever waits holds a second lock, the turn, which the present holder needs before it can take
    the device again.

    name: as for `MachineLock`. what: the device in messages.
    """

    def __init__(self, name: str, what: str) -> None:
        self._what = what
        self._device, self._turn = MachineLock(name), MachineLock(f"{name}-turn")

    def take(self) -> bool:
        """Take the lock if nobody holds it or waits for it; returns at once."""
        if not self._turn.take():
            return False
        try:
            return self._device.take()
        finally:
            self._turn.release()

    def release(self) -> None:
        """Give the lock up. Does nothing without it."""
        self._device.release()

    def close(self) -> None:
        """Give the lock up and close its files."""
        self._turn.close()
        self._device.close()

    @contextmanager
    def hold(self, stopped: Callable[[], bool]) -> Iterator[None]:
        """A block in which nobody else holds the lock; entered without it once `stopped` is true.

        A long wait is logged, with the process it is for.
        """
        since, said = time.monotonic(), False
        try:
            for lock in (self._turn, self._device):
                while not lock.take() and not stopped():
                    if not said and time.monotonic() - since > _SAY_AFTER_S:
                        said = True
                        _log.warning("waiting for %s, in use by %s", self._what, self.holder())
                    time.sleep(_POLL_S)
            self._turn.release()
            yield
        finally:
            self.close()

    def holder(self) -> str:
        """The process that holds the lock."""
        return self._device.holder()


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
