"""The parent's side of a fork server: a process with libraries loaded, from which children fork.

    server = ForkServer("runner-0", preload=("torch",))
    child = SupervisedChild("package.module:Factory", server=server)

Importing torch takes three to five seconds; a fork of a process that has done so is ready within
milliseconds. The server imports and does nothing else: it opens no device, because a fork could not
use one, and it runs no job. Python's `multiprocessing.forkserver` has the same idea. It is not used
because its children have no reaper: a killed parent would leave compilers and folders behind.
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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from workers.supervision.captured_output import CapturedOutput
from workers.supervision.child.messages import ForkOrder, framed

_log = logging.getLogger(__name__)
#: The folder of the packages, for children whose own import paths lack it.
PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
#: An environment variable that every child and its descendants have.
IN_WORKER = "TUNER_IN_WORKER"
_PROGRAM = "workers.supervision.child.fork_server_main"
_EXIT_TIMEOUT_S = 10.0


class ForkServer:
    """One server at a time; the first fork after a death starts another. For several threads.

    name: the name of its processes. paths: import paths, after Python's own. cwd: their working
    folder, if it exists; it is no import path. preload: `module` or `module:callable`, imported and
    called before the first fork. A preload that fails is left to the children, which report it.
    """

    def __init__(
        self,
        name: str = "child",
        *,
        paths: Sequence[str] = (),
        cwd: str | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        self._name, self._paths, self._cwd, self._preload = name, tuple(paths), cwd, tuple(preload)
        self._lock, self._ready_lock = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._output: CapturedOutput | None = None
        self._loaded = False

    @property
    def pid(self) -> int | None:
        """The process id of the server, for tests and people."""
        process = self._process
        return process.pid if process is not None else None

    def fork(self, order: ForkOrder, descriptors: Sequence[int]) -> None:
        """Order a child, and return before it is forked. Raises OSError if no server starts."""
        message = framed(pickle.dumps(order))
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            try:
                self._send(message, descriptors)
            except ConnectionError:  # the server died a moment ago
                self._start()
                self._send(message, descriptors)

    def interrupt(self) -> None:
        """Kill a server that is still loading; it has no children yet."""
        process = self._process
        self._receive_ready()
        if process is not None and not self._loaded:
            process.kill()

    def exit_report(self) -> tuple[str, str] | None:
        """How the server ended (`SIGSEGV`, `exit code 3`) and what it printed; None if alive."""
        process, output = self._process, self._output
        if process is None or output is None or not self._ended():
            return None
        with suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_TIMEOUT_S)
        output.finish()
        return exit_name(process.returncode), output.text()

    def close(self) -> None:
        """End the server, after its children. A later fork starts another one."""
        with self._lock:
            process, control, output = self._process, self._control, self._output
            self._process = self._control = self._output = None
        if process is None or control is None or output is None:
            return
        control.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_TIMEOUT_S)
        process.kill()
        process.wait()
        output.finish()

    def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        assert self._control is not None
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
        words = [f"{theirs.fileno()}", os.pathsep.join(self._paths), *self._preload, self._name]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", _PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=(theirs.fileno(),),
                env=_environ(),
                cwd=self._cwd if self._cwd and os.path.isdir(self._cwd) else None,
                start_new_session=True,
            )
        except OSError:
            os.close(output_read)
            self._control.close()
            self._control = None
            raise
        finally:
            theirs.close()
            os.close(output_write)
        self._output = CapturedOutput(output_read)
        _log.debug("%s: fork server %d started", self._name, self._process.pid)

    def _ended(self) -> bool:
        if self._receive_ready() == b"":
            return True
        process = self._process
        return process is not None and process.poll() is not None

    def _receive_ready(self) -> bytes | None:
        """The byte by which the server says that it has loaded; b"" after its end, None before."""
        control = self._control
        if control is None:
            return b""
        with self._ready_lock:
            try:
                received = control.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError:
                return b""
            self._loaded = self._loaded or bool(received)
            return received


def exit_name(code: int | None) -> str:
    """A return code of `subprocess` as a signal's name or an exit code; None means SIGKILL."""
    if code is None:
        return "SIGKILL"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _environ() -> dict[str, str]:
    """The environment of a server: the standard library comes before any folder of a user's.

    The working folder is no import path, also of programs that children start.
    """
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = [] if "site-packages" in Path(PACKAGE_ROOT).parts else [PACKAGE_ROOT]
    path = os.pathsep.join(dict.fromkeys([*own, *inherited]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", IN_WORKER: "1"}
