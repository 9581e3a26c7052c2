"""The parent's side of a fork server: a process with libraries loaded, from which children fork.

    server = ForkServer("workers", preload=Preload.of("torch"))
    builders = server.branch("builders", Preload.of("triton", "workers.compiling.gpu"))
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from workers.environment import for_workers
from workers.processes import process_folders
from workers.processes.child.messages import EXIT_STATUS, BranchOrder, ForkOrder, Order, frame
from workers.processes.child_process import CapturedOutput, exit_name, is_readable
from workers.processes.preload import Preload, Step

_log = logging.getLogger(__name__)
#: The folder of the packages, for children whose own import paths lack it.
PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
#: An environment variable that every child and its descendants have.
IN_WORKER = "TUNER_IN_WORKER"
_PROGRAM = "workers.processes.server_process"
_EXIT_TIMEOUT_S = 10.0
_POLL_S = 0.005


class Trunk(Protocol):
    """What a branch is a fork of."""

    def order_branch(self, name: str, descriptors: Sequence[int]) -> dict[str, str]:
        """Order a fork that serves a control socket; the environment that the server has.

        descriptors: that socket, and where output and exit status go. Raises OSError.
        """
        ...

    def loads(self, step: Step) -> bool: ...

    def exit_report(self) -> tuple[str, str] | None: ...


class ForkServer:
    """A server. One process at a time; an order after its death starts another.

    name: the name of its processes. paths: import paths, after Python's own. cwd: their working
    folder, if it exists; it is no import path. preload: a step that fails is left to the children,
    which report it. shared: whether children of several owners fork from it, so that the end of one
    does not interrupt the loading; these children also share a folder. trunk: for `branch`. For
    several threads.
    """

    def __init__(
        self,
        name: str = "child",
        *,
        paths: Sequence[str] = (),
        cwd: str | None = None,
        preload: Preload = Preload(),  # noqa: B008 (immutable)
        shared: bool = False,
        trunk: Trunk | None = None,
    ) -> None:
        self._name, self._preload, self._trunk = name, preload, trunk
        self._paths, self._cwd, self._shared = tuple(paths), cwd, shared
        self._lock, self._loaded_lock = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen[bytes] | _BranchProcess | None = None
        self._control: socket.socket | None = None
        self._output: CapturedOutput | None = None
        #: Whether the present process has carried out the preload.
        self._loaded = False
        #: The environment in which the present process was started.
        self._environ: dict[str, str] = {}
        #: The folder that all children share, also those of a later process; empty for none.
        self._folder = ""

    @property
    def pid(self) -> int | None:
        """The process id, for tests and people; None before the start, and for a branch."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def loading(self) -> bool:
        """Whether the server's process still loads libraries, so that a fork has to wait."""
        self._receive_loaded()
        return self._process is not None and not self._loaded

    @property
    def alive(self) -> bool:
        """Whether the server's process has been started and has not ended."""
        process = self._process
        return process is not None and process.poll() is None

    def start(self) -> None:
        """Start the process and let it load, unless it runs. Returns at once. Raises OSError."""
        with self._lock:
            self._ensure()

    def loads(self, step: Step) -> bool:
        """Whether the step is among those that the server loads, or has forked with."""
        return step in self._preload.steps or (self._trunk is not None and self._trunk.loads(step))

    def fork(self, order: ForkOrder, descriptors: Sequence[int]) -> None:
        """Order a child, and return before it is forked. Raises OSError if no server starts."""
        with self._lock:
            self._ensure()
            changed = {**_changes(self._environ), **order["environment"]}
            self._order({**order, "environment": changed}, descriptors)

    def branch(self, name: str, preload: Preload) -> ForkServer:
        """A server that will be a fork of this one, and ends with its process."""
        return ForkServer(name, preload=preload, shared=True, trunk=self)

    def order_branch(self, name: str, descriptors: Sequence[int]) -> dict[str, str]:
        """As `Trunk` has it."""
        with self._lock:
            self._ensure()
            self._order(BranchOrder(branch=name), descriptors)
            return self._environ

    def interrupt(self) -> None:
        """Kill a server that is still loading, if no other child waits for it."""
        if not self._shared and self.loading:
            self.kill()

    def kill(self) -> None:
        """Kill the server, and with it its branches and waiting orders. Its children live on."""
        process = self._process
        if isinstance(process, subprocess.Popen):
            process.kill()

    def exit_report(self) -> tuple[str, str] | None:
        """How the server ended (`SIGSEGV`, `exit code 3`) and what it printed; None if alive.

        Of a branch that has printed nothing, how its trunk ended, if it did.
        """
        process, output = self._process, self._output
        if process is None or output is None or (self._receive_loaded() and self.alive):
            return None
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_EXIT_TIMEOUT_S)
        output.finish()
        own = exit_name(code), output.text()
        return own if own[1] or self._trunk is None else self._trunk.exit_report() or own

    def close(self) -> None:
        """End the server after its children; a later order starts another one.

        Returns at once for a branch: its trunk waits for it.
        """
        with self._lock:
            process, control, output = self._process, self._control, self._output
            self._process = self._control = self._output = None
        if process is None or control is None or output is None:
            return
        control.close()
        if isinstance(process, _BranchProcess):
            process.forget()
            return
        _await_exit(process, _EXIT_TIMEOUT_S)
        process.kill()
        process.wait()
        process_folders.remove(self._folder)
        output.finish()

    # -- with the lock held ------------------------------------------------------------------------
    def _ensure(self) -> None:
        if not self.alive:
            self._start()

    def _order(self, order: Order, descriptors: Sequence[int]) -> None:
        try:
            self._send(order, descriptors)
        except ConnectionError:  # the server died a moment ago
            self._start()
            self._send(order, descriptors)

    def _send(self, order: Order | Preload, descriptors: Sequence[int]) -> None:
        assert self._control is not None
        message = frame(pickle.dumps(order))
        # One system call: a caller killed between two would leave a folder that no reaper removes.
        sent = socket.send_fds(self._control, [message], list(descriptors))
        self._control.sendall(message[sent:])

    def _start(self) -> None:
        if self._process is not None:
            ended = exit_name(self._process.poll())
            _log.info("%s: the fork server has ended (%s), another one starts", self._name, ended)
        if self._control is not None:
            self._control.close()
            self._control = None
        self._loaded = False
        output_read, output_write = os.pipe()
        try:
            self._control, theirs = socket.socketpair()
        except OSError:
            os.close(output_read)
            os.close(output_write)
            raise
        try:
            launch = self._launch if self._trunk is None else self._launch_branch
            launch(theirs, output_write)
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
            self._send(self._preload, ())
        _log.debug("%s: fork server started", self._name)

    def _launch(self, control: socket.socket, output: int) -> None:
        """Start a process that serves `control`."""
        environ = _environ()
        if self._shared:
            self._folder = self._folder or process_folders.unused_name()
        self._process = subprocess.Popen(
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
        self._environ = environ

    def _launch_branch(self, control: socket.socket, output: int) -> None:
        """The same by a fork of the trunk, which reports the exit status."""
        trunk = self._trunk
        assert trunk is not None
        status_read, status_write = os.pipe()
        try:
            descriptors = (control.fileno(), output, status_write)
            self._environ = trunk.order_branch(self._name, descriptors)
        except OSError:
            os.close(status_read)
            raise
        finally:
            os.close(status_write)
        self._process = _BranchProcess(status_read)

    # -- without it --------------------------------------------------------------------------------
    def _receive_loaded(self) -> bool:
        """Take note of the server's word that it has loaded; False where it has ended."""
        control = self._control
        if control is None:
            return False
        with self._loaded_lock:
            try:
                received = control.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._loaded = self._loaded or bool(received)
            return bool(received)


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
