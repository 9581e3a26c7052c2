"""A supervised child process: it may crash, hang or be killed, and the caller learns which.

    child = SupervisedChild("package.module:Factory", {"index": 0}, name="runner-0")
    child.request("method", 1, 2, timeout_s=10.0)

The first request starts the process, which imports the factory and keeps what it returns; every
request calls a method of that object. Messages are length-prefixed pickles over pipes of their own,
so nothing the child prints disturbs them. The process dies with its parent, `kill -9` included, and
takes its descendants and its scratch folder along (see `workers.child_main`).
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_TAIL_BYTES = 32 * 1024
_END_TIMEOUT_S = 10.0
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[1])

#: Seconds a child may take to start and build its object: importing torch from a cold disk is slow.
START_TIMEOUT_S = 180.0

Environment = Callable[[Path], Mapping[str, str | None]]


class ChildTimeout(Exception):
    """The child did not answer in time and was killed."""


class ChildDied(Exception):
    """The child ended instead of answering.

    ended: `SIGSEGV` or `exit code 3`. output: the last of what it printed, cleaned for display.
    """

    def __init__(self, name: str, ended: str, output: str) -> None:
        super().__init__(f"{name} died ({ended})")
        self.ended = ended
        self.output = output

    @property
    def last_words(self) -> str:
        """The line of the output that most likely names the cause."""
        # What the fault handler prints comes after the cause, if the cause was printed at all.
        said, handler, dump = self.output.partition("Fatal Python error:")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        if not lines and handler:
            lines = [f"{handler}{dump.splitlines()[0]}"]
        return lines[-1] if lines else ""


class ChildError(Exception):
    """The object in the child raised. error: the exception, None when it could not be pickled."""

    def __init__(self, error: BaseException | None, kind: str, message: str, trace: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.error = error
        self.trace = trace


class SupervisedChild:
    """One child process at a time, started on demand and after every death.

    factory: `module:callable`, called with `kwargs` and `cache_dir`, a private folder removed when
    the process ends. environment: what to change in the environment, given that folder (None
    unsets). paths: import paths, before the parent's own. Not for two requests at once.
    """

    def __init__(
        self,
        factory: str,
        kwargs: Mapping[str, Any] | None = None,
        *,
        environment: Environment = lambda _: {},
        paths: tuple[str, ...] = (),
        cwd: str | None = None,
        name: str = "child",
        nice: int = 0,
    ) -> None:
        self._factory, self._kwargs, self._environment = factory, dict(kwargs or {}), environment
        self._paths, self._cwd, self._name, self._nice = paths, cwd, name, nice
        self._lock = threading.RLock()
        self._process: _Process | None = None
        self._retired = False

    @property
    def pid(self) -> int | None:
        """The process id of the living child, for tests and people."""
        process = self._process
        return process.pid if process is not None else None

    def request(self, method: str, *args: object, timeout_s: float) -> Any:
        """Call a method of the child's object, starting the child if need be.

        Raises ChildTimeout, ChildDied or ChildError; after the first two the child is gone.
        """
        with self._lock:
            body = pickle.dumps((method, args))
            process = self._process or self._start()
            return self._exchange(process, body, timeout_s)

    def start(self) -> None:
        """Start the child now, unless it lives. Raises as `request` does."""
        with self._lock:
            if self._process is None:
                self._start()

    def kill(self) -> None:
        """Kill the child and its descendants; a request under way in another thread sees it die."""
        process = self._process
        if process is None:
            return
        process.cut()
        with self._lock:
            if self._process is process:
                self._process = None
                process.end()

    def retire(self) -> None:
        """Kill the child and start no other; a request under way or to come raises ChildDied."""
        self._retired = True
        self.kill()

    def close(self) -> None:
        """Let the child's object close itself, then end the child. A later request starts anew."""
        with self._lock:
            if self._process is not None:
                self._process.hang_up()
            self.kill()

    def _start(self) -> _Process:
        if self._retired:
            raise ChildDied(self._name, "retired", "")
        scratch = Path(tempfile.mkdtemp(prefix="tuner-"))
        paths = [*self._paths, _PACKAGE_ROOT]
        process = _Process(
            scratch,
            env=_environ(self._environment(scratch), paths),
            cwd=self._cwd if self._cwd and os.path.isdir(self._cwd) else None,
            name=self._name,
        )
        self._process = process
        if self._retired:  # by another thread, which saw no process to kill
            process.cut()
        setup = {
            "factory": self._factory,
            "kwargs": {**self._kwargs, "cache_dir": scratch},
            "paths": paths + [path for path in sys.path if path and path not in paths],
            "nice": self._nice,
        }
        try:
            process.pid = self._exchange(process, pickle.dumps(setup), START_TIMEOUT_S)
        except ChildError:
            self.kill()
            raise
        return process

    def _exchange(self, process: _Process, body: bytes, timeout_s: float) -> Any:
        try:
            reply = process.exchange(body, time.monotonic() + timeout_s)
        except TimeoutError:
            self.kill()
            raise ChildTimeout(f"{self._name} did not answer within {timeout_s:g} s") from None
        except (EOFError, BrokenPipeError):
            self._process = None
            raise ChildDied(self._name, process.end(), process.output.text()) from None
        except BaseException:  # a half-read reply would answer the next request
            self.kill()
            raise
        return _opened(reply)


def _environ(changes: Mapping[str, str | None], paths: list[str]) -> dict[str, str]:
    env = dict(os.environ)
    inherited = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*paths, *inherited]))
    for key, value in changes.items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = value
    return env


def _opened(reply: bytes) -> Any:
    try:
        kind, *content = pickle.loads(reply)
    except Exception as error:
        raise ChildError(error, "the reply cannot be read", f"{error}", "") from error
    if kind == "result":
        return content[0]
    portable, name, message, trace = content
    raised: BaseException | None = None
    with suppress(Exception):
        raised = pickle.loads(portable) if portable is not None else None
    raise ChildError(raised, name, message, trace)


class _Output:
    """The end of what a child prints, drained by a thread so that it can never block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="child-output", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while chunk := os.read(self._descriptor, 65536):
            with self._lock:
                self._kept += chunk
                del self._kept[:-_TAIL_BYTES]
        os.close(self._descriptor)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def finish(self) -> None:
        self._thread.join(timeout=2.0)

    def text(self) -> str:
        with self._lock:
            raw = bytes(self._kept)
        clean = raw.decode("utf-8", "replace").replace("\r", "\n")
        return "".join(c for c in clean if c in "\n\t" or c.isprintable())


class _Process:
    """One incarnation of a child: its front process, four pipes and scratch folder."""

    def __init__(self, scratch: Path, *, env: dict[str, str], cwd: str | None, name: str) -> None:
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        lifeline_read, self._lifeline = os.pipe()
        output_read, output_write = os.pipe()
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        theirs = (request_read, reply_write, lifeline_read)
        numbers = [str(descriptor) for descriptor in theirs]
        self.pid: int | None = None
        self._cut = threading.Lock()
        self._scratch = scratch
        try:
            self._front = subprocess.Popen(
                [sys.executable, "-u", "-m", "workers.child_main", *numbers, str(scratch), name],
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=theirs,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError:
            os.rmdir(scratch)
            for mine in (self._requests, self._replies, self._lifeline, output_read):
                os.close(mine)
            raise
        finally:
            for descriptor in (*theirs, output_write):
                os.close(descriptor)
        self.output = _Output(output_read)

    def exchange(self, body: bytes, deadline: float) -> bytes:
        """Send and wait for the answer. Raises TimeoutError, EOFError or BrokenPipeError."""
        self.output.clear()
        message = memoryview(len(body).to_bytes(8, "big") + body)
        while message:
            _ready(self._requests, select.POLLOUT, deadline)
            message = message[os.write(self._requests, message) :]
        return self._read(int.from_bytes(self._read(8, deadline), "big"), deadline)

    def _read(self, count: int, deadline: float) -> bytes:
        got = bytearray()
        while len(got) < count:
            _ready(self._replies, select.POLLIN, deadline)
            chunk = os.read(self._replies, min(count - len(got), 1 << 20))
            if not chunk:
                raise EOFError
            got += chunk
        return bytes(got)

    def hang_up(self) -> None:
        """End the requests and give the child a moment to leave by itself."""
        os.close(self._requests)
        self._requests = -1
        with suppress(subprocess.TimeoutExpired):
            self._front.wait(timeout=_END_TIMEOUT_S)

    def cut(self) -> None:
        """Close the lifeline, so that the guard kills everything; from any thread, repeatedly."""
        with self._cut:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1

    def end(self) -> str:
        """Make sure of the end and say what it was: a signal's name or an exit code."""
        self.cut()
        for descriptor in (self._requests, self._replies):
            if descriptor >= 0:
                os.close(descriptor)
        self._await_end()
        # The guard has killed all, unless it was killed itself. The front, not yet reaped, still
        # owns the number of the process group, so the signal cannot go astray.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._front.pid, signal.SIGKILL)
        code = self._front.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)
        self.output.finish()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def _await_end(self) -> None:
        deadline = time.monotonic() + _END_TIMEOUT_S
        ended = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while self._front.returncode is None and time.monotonic() < deadline:
            if os.waitid(os.P_PID, self._front.pid, ended) is not None:
                return
            time.sleep(0.002)


def _ready(descriptor: int, event: int, deadline: float) -> None:
    poller = select.poll()
    poller.register(descriptor, event)
    if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
