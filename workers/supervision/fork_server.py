"""A process from which supervised children are forked, with what they need already loaded.

    server = ForkServer("runner-0", preload=("torch",))
    child = SupervisedChild("package.module:Factory", server=server)

A child's libraries take seconds to import, torch alone three to five of them; a fork of a process
that has done so is ready within milliseconds. The server imports and nothing else: it opens no
device (a fork could not use one) and runs nothing of a job. The idea is that of Python's
`multiprocessing.forkserver`, whose children, though, are not supervised.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from workers.supervision.output import Output

#: where the package lies, for children that find nothing by their own paths
PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
#: set in the environment of every child and of what it starts
IN_WORKER = "TUNER_IN_WORKER"
_END_TIMEOUT_S = 10.0


class ForkServer:
    """One server at a time, started by the first fork and by the next one after every death.

    name: what its processes are called. paths: import paths, after all that Python has itself.
    cwd: their folder, if it is there, and no import path. preload: `module` or `module:callable`,
    imported and called before the first fork; what cannot be is left to the children, who will say
    why. For several threads.
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
        self._lock, self._hearing = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._output: Output | None = None
        self._loaded = False

    @property
    def pid(self) -> int | None:
        """The process id of the server, for tests and people."""
        process = self._process
        return process.pid if process is not None else None

    def fork(self, order: Mapping[str, object], descriptors: Sequence[int]) -> None:
        """Have a child forked (`workers.supervision.child_main` says what it makes of the order).

        Returns before it is. Raises OSError when no server can be started.
        """
        body = pickle.dumps(dict(order))
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            try:
                self._send(body, descriptors)
            except ConnectionError:  # it died just now
                self._start()
                self._send(body, descriptors)

    def interrupt(self) -> None:
        """Do not wait for a server that is still loading; it has no children yet."""
        process = self._process
        self._said()
        if process is not None and not self._loaded:
            process.kill()

    def obituary(self) -> tuple[str, str] | None:
        """How the server ended (`SIGSEGV`, `exit code 3`) and what it printed; None if it lives."""
        process, output = self._process, self._output
        if process is None or output is None or not self._gone():
            return None
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)
        output.finish()
        return ended_as(process.returncode), output.text()

    def close(self) -> None:
        """End the server. Its children should have been; a later fork starts another one."""
        with self._lock:
            process, control, output = self._process, self._control, self._output
            self._process = self._control = self._output = None
        if process is None or control is None or output is None:
            return
        control.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)
        process.kill()
        process.wait()
        output.finish()

    def _send(self, body: bytes, descriptors: Sequence[int]) -> None:
        assert self._control is not None
        message = len(body).to_bytes(8, "big") + body
        # In one piece, or a caller killed between two would leave a folder nobody knows of.
        sent = socket.send_fds(self._control, [message], list(descriptors))
        self._control.sendall(message[sent:])

    def _start(self) -> None:
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
                [sys.executable, "-u", "-m", "workers.supervision.child_main", *words],
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
        self._output = Output(output_read)

    def _gone(self) -> bool:
        if self._said() == b"":
            return True
        process = self._process
        return process is not None and process.poll() is not None

    def _said(self) -> bytes | None:
        """What the server has to say: its one byte, b"" after its end, None while nothing."""
        control = self._control
        if control is None:
            return b""
        with self._hearing:
            try:
                said = control.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError:
                return b""
            self._loaded = self._loaded or bool(said)
            return said


def ended_as(code: int | None) -> str:
    """A return code of `subprocess` in words: a signal's name or an exit code."""
    if code is None:
        return "SIGKILL"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _environ() -> dict[str, str]:
    """The environment of a server: no folder of a user's comes before the standard library.

    The working folder is no import path, of programs that children start neither.
    """
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = [] if "site-packages" in Path(PACKAGE_ROOT).parts else [PACKAGE_ROOT]
    path = os.pathsep.join(dict.fromkeys([*own, *inherited]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", IN_WORKER: "1"}
