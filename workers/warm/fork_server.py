"""The parent's side of a fork server: a process with libraries loaded, from which children fork.

    server = ForkServer("workers", preload=("torch",))
    builders = server.branch("builders")
    builders.load("triton", "workers.compiling.gpu")
    child = SupervisedChild("package.module:Factory", server=builders)

Importing torch takes three to five seconds; a fork of a process that has done so is ready within
milliseconds. The server loads libraries and runs no job. It opens no device, because a fork could
not use one, and no thread is alive in it when it forks. A branch is a fork of a server that is a
server itself, for children that need more libraries, or the same ones under another environment.
Python's `multiprocessing.forkserver` has the same idea. It is not used because its children have no
reaper: a killed parent would leave compilers and folders behind.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from workers.environment import for_workers
from workers.supervision import process_folders
from workers.supervision.captured_output import CapturedOutput
from workers.supervision.child.messages import (
    EXIT_STATUS,
    BranchOrder,
    ForkOrder,
    LoadOrder,
    Order,
    frame,
)
from workers.supervision.child_process import exit_name, is_readable

_log = logging.getLogger(__name__)
#: The folder of the packages, for children whose own import paths lack it.
PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
#: An environment variable that every child and its descendants have.
IN_WORKER = "TUNER_IN_WORKER"
_PROGRAM = "workers.warm.server_process"
_EXIT_TIMEOUT_S = 10.0
_POLL_S = 0.005


class _Process(Protocol):
    """What `subprocess.Popen` and the process of a branch have in common."""

    @property
    def pid(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...


class Server(ABC):
    """A fork server of either kind. One process at a time; an order after its death starts another.

    For several threads.
    """

    def __init__(self, name: str, preload: Sequence[str]) -> None:
        self._name, self._preload = name, list(preload)
        self._lock, self._loaded_lock = threading.Lock(), threading.Lock()
        self._process: _Process | None = None
        self._control: socket.socket | None = None
        self._output: CapturedOutput | None = None
        #: Load orders that were sent to the present process, and those that it has carried out.
        self._sent = self._loaded = 0
        #: The environment in which the present process was started.
        self._environ: dict[str, str] = {}

    @property
    def pid(self) -> int | None:
        """The process id of the server, for tests and people; None before its start."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def loading(self) -> bool:
        """Whether the server's process still loads libraries, so that a fork has to wait."""
        self._receive_loaded()
        return self._process is not None and self._loaded < self._sent

    @property
    def alive(self) -> bool:
        """Whether the server's process has been started and has not ended."""
        process = self._process
        return process is not None and process.poll() is None

    def start(self) -> None:
        """Start the process and let it load, unless it runs. Returns at once. Raises OSError."""
        with self._lock:
            self._ensure()

    def load(self, *entries: str) -> None:
        """Have the server load more before later forks. Returns at once.

        entries: `module`, `module:function`, `module:function argument` or `VARIABLE=value`; with
        `&` in front, in a thread while later entries of this call load. An entry that fails is left
        to the children, which report it. Starts no process.
        """
        with self._lock:
            self._preload += entries
            if self._control is not None:
                with suppress(OSError):  # it has ended; another process loads all of them
                    self._send_load(entries)

    def loads(self, entry: str) -> bool:
        """Whether the entry is among those that the server loads, or has forked with."""
        return entry in self._preload

    def fork(self, order: ForkOrder, descriptors: Sequence[int]) -> None:
        """Order a child, and return before it is forked. Raises OSError if no server starts."""
        with self._lock:
            self._ensure()
            changed = {**_changes(self._environ), **order["environment"]}
            self._order({**order, "environment": changed}, descriptors)

    def branch(self, name: str) -> Branch:
        """A server that will be a fork of this one, with all that is loaded by then."""
        return Branch(self, name)

    def fork_branch(self, name: str, descriptors: Sequence[int]) -> dict[str, str]:
        """For `Branch`: order its process; returns the environment that it will have."""
        with self._lock:
            self._ensure()
            self._order(BranchOrder(branch=name), descriptors)
            return self._environ

    @abstractmethod
    def interrupt(self) -> None:
        """Kill a server that is still loading, if no other child waits for it."""

    def exit_report(self) -> tuple[str, str] | None:
        """How the server ended (`SIGSEGV`, `exit code 3`) and what it printed; None if alive."""
        process, output = self._process, self._output
        if process is None or output is None or not self._ended():
            return None
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_EXIT_TIMEOUT_S)
        output.finish()
        return exit_name(code), output.text()

    @abstractmethod
    def close(self) -> None:
        """End the server, after its children. A later order starts another one."""

    # -- with the lock held ------------------------------------------------------------------------
    def _ensure(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()

    def _order(self, order: Order, descriptors: Sequence[int]) -> None:
        try:
            self._send(order, descriptors)
        except ConnectionError:  # the server died a moment ago
            self._start()
            self._send(order, descriptors)

    def _send(self, order: Order, descriptors: Sequence[int]) -> None:
        assert self._control is not None
        message = frame(pickle.dumps(order))
        # One system call: a caller killed between two would leave a folder that no reaper removes.
        sent = socket.send_fds(self._control, [message], list(descriptors))
        self._control.sendall(message[sent:])

    def _send_load(self, entries: Sequence[str]) -> None:
        self._send(LoadOrder(entries=list(entries)), ())
        self._sent += 1

    def _start(self) -> None:
        if self._process is not None:
            ended = exit_name(self._process.poll())
            _log.info("%s: the fork server has ended (%s), another one starts", self._name, ended)
        if self._control is not None:
            self._control.close()
            self._control = None
        self._sent = self._loaded = 0
        output_read, output_write = os.pipe()
        try:
            self._control, theirs = socket.socketpair()
        except OSError:
            os.close(output_read)
            os.close(output_write)
            raise
        try:
            self._process, self._environ = self._launch(theirs, output_write)
        except OSError:
            os.close(output_read)
            self._control.close()
            self._control = None
            raise
        finally:
            theirs.close()
            os.close(output_write)
        self._output = CapturedOutput(output_read)
        with suppress(ConnectionError):  # it has ended; its first child says how
            self._send_load(self._preload)
        _log.debug("%s: fork server started", self._name)

    @abstractmethod
    def _launch(self, control: socket.socket, output: int) -> tuple[_Process, dict[str, str]]:
        """Start a process that serves `control`; returns it and its environment."""

    def _take(self) -> tuple[_Process, CapturedOutput] | None:
        """Forget the process and close its control socket, which ends it after its children."""
        with self._lock:
            process, control, output = self._process, self._control, self._output
            self._process = self._control = self._output = None
        if process is None or control is None or output is None:
            return None
        control.close()
        return process, output

    # -- without it --------------------------------------------------------------------------------
    def _ended(self) -> bool:
        if self._receive_loaded() == b"":
            return True
        process = self._process
        return process is not None and process.poll() is not None

    def _receive_loaded(self) -> bytes | None:
        """Bytes by which the server says that it has loaded; b"" after its end, None before."""
        control = self._control
        if control is None:
            return b""
        with self._loaded_lock:
            try:
                received = control.recv(64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError:
                return b""
            self._loaded += len(received)
            return received


class ForkServer(Server):
    """A server with a process that this one starts.

    name: the name of its processes. paths: import paths, after Python's own. cwd: their working
    folder, if it exists; it is no import path. preload: as for `load`. shared: whether children of
    several owners fork from it, so that the end of one does not interrupt the loading; these
    children also share a folder.
    """

    def __init__(
        self,
        name: str = "child",
        *,
        paths: Sequence[str] = (),
        cwd: str | None = None,
        preload: Sequence[str] = (),
        shared: bool = False,
    ) -> None:
        super().__init__(name, preload)
        self._paths, self._cwd, self._shared = tuple(paths), cwd, shared
        self._popen: subprocess.Popen[bytes] | None = None
        #: The folder that all children share, also those of a later process; empty for none.
        self._folder = ""

    def interrupt(self) -> None:
        process = self._popen
        if process is not None and not self._shared and self.loading:
            process.kill()

    def kill(self) -> None:
        """Kill the server, and with it its branches and waiting orders. Its children live on."""
        process = self._popen
        if process is not None:
            process.kill()

    def close(self) -> None:
        taken, process = self._take(), self._popen
        if taken is None or process is None:
            return
        _await_exit(process, _EXIT_TIMEOUT_S)
        process.kill()
        process.wait()
        process_folders.remove(self._folder)
        taken[1].finish()

    def _launch(self, control: socket.socket, output: int) -> tuple[_Process, dict[str, str]]:
        environ = _environ()
        if self._shared:
            self._folder = self._folder or process_folders.unused_name()
        self._popen = subprocess.Popen(
            [
                *(sys.executable, "-u", "-m", _PROGRAM),
                *(f"{control.fileno()}", os.pathsep.join(self._paths), self._name),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(control.fileno(),),
            env={**environ, process_folders.SHARED: self._folder},
            cwd=self._cwd if self._cwd and os.path.isdir(self._cwd) else None,
            start_new_session=True,
        )
        return self._popen, environ


class Branch(Server):
    """A server whose process is a fork of another server's. It ends with that process."""

    def __init__(self, trunk: Server, name: str) -> None:
        super().__init__(name, ())
        self._trunk = trunk

    def loads(self, entry: str) -> bool:
        return super().loads(entry) or self._trunk.loads(entry)

    @property
    def loading(self) -> bool:
        return super().loading or (self._process is not None and self._trunk.loading)

    def interrupt(self) -> None:
        """Do nothing: a branch is shared."""

    def exit_report(self) -> tuple[str, str] | None:
        """As for any server; that of the trunk where the trunk ended before the branch began."""
        own = super().exit_report()
        return own and (own if own[1] else self._trunk.exit_report() or own)

    def close(self) -> None:
        """End the branch after its children. Returns at once; its trunk waits for it."""
        taken = self._take()
        if taken is not None and isinstance(taken[0], _BranchProcess):
            taken[0].forget()

    def _launch(self, control: socket.socket, output: int) -> tuple[_Process, dict[str, str]]:
        status_read, status_write = os.pipe()
        try:
            environ = self._trunk.fork_branch(self._name, (control.fileno(), output, status_write))
        except OSError:
            os.close(status_read)
            raise
        finally:
            os.close(status_write)
        return _BranchProcess(status_read), environ


class _BranchProcess:
    """The process of a branch, by the pipe on which its trunk reports the exit status."""

    #: The trunk's child; its number is not sent.
    pid: int | None = None

    def __init__(self, exit_status: int) -> None:
        self._exit_status = exit_status
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self._exit_status >= 0 and is_readable(self._exit_status, 0.0):
                self._finish()
            return self._code

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("branch", timeout)
            time.sleep(_POLL_S)
        return code

    def forget(self) -> None:
        """Close the pipe. The exit status is not needed any more."""
        with self._lock:
            if self._exit_status >= 0:
                os.close(self._exit_status)
                self._exit_status, self._code = -1, 0

    def _finish(self) -> None:
        written = os.read(self._exit_status, EXIT_STATUS.size)
        os.close(self._exit_status)
        self._exit_status = -1
        # Without a status the trunk was killed, and the kernel killed the branch with it.
        whole = len(written) == EXIT_STATUS.size
        self._code = EXIT_STATUS.unpack(written)[0] if whole else -signal.SIGKILL


def _await_exit(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait until a process ends, for at most that time. `Popen.wait` would look every 50 ms."""
    if process.poll() is not None:
        return
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        return
    try:
        is_readable(descriptor, timeout_s)
    finally:
        os.close(descriptor)


def _environ() -> dict[str, str]:
    """The environment of a server: the standard library comes before any folder of a user's.

    What would keep code from being compiled is left out (`workers.environment`). The working
    folder is no import path, also of programs that children start.
    """
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = [] if "site-packages" in Path(PACKAGE_ROOT).parts else [PACKAGE_ROOT]
    path = os.pathsep.join(dict.fromkeys([*own, *inherited]))
    return {**for_workers(os.environ), "PYTHONPATH": path, "PYTHONSAFEPATH": "1", IN_WORKER: "1"}


def _changes(before: Mapping[str, str]) -> dict[str, str | None]:
    """What this process has changed in its environment since a server started; None unsets."""
    now = _environ()
    changed: dict[str, str | None] = {
        name: value for name, value in now.items() if before.get(name) != value
    }
    return {**dict.fromkeys(before.keys() - now.keys()), **changed}
