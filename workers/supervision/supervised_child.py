"""A supervised child process: it may crash, hang or be killed, and the caller learns which.

    child = SupervisedChild("package.module:Factory", {"index": 0}, name="runner-0")
    child.request("method", 1, 2, timeout_s=10.0)

The first request starts the process, forked from a server (`workers.supervision.fork_server`). It
imports the factory and keeps what that returns; every request calls a method of that object.
Messages are length-prefixed pickles over pipes of their own, so nothing the child prints disturbs
them; notes (`workers.supervision.heartbeat`) come before the reply. The process dies with its
parent, `kill -9` included, and takes its descendants and its scratch folder along (see
`workers.supervision.child_main`).
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from workers.supervision.fork_server import ForkServer
from workers.supervision.process import Process, Signs

#: Seconds a child may take to start and build its object: importing torch from a cold disk is slow.
START_TIMEOUT_S = 180.0

Environment = Callable[[Path], Mapping[str, str | None]]


class ChildTimeout(Exception):
    """The child did not answer in time and was killed.

    limit_s: the limit it broke. quiet_s: how long it had been silent. last_note: its last note.
    """

    def __init__(self, message: str, limit_s: float, quiet_s: float, last_note: str) -> None:
        super().__init__(message)
        self.limit_s, self.quiet_s, self.last_note = limit_s, quiet_s, last_note


class ChildDied(Exception):
    """The child ended instead of answering.

    ended: `SIGSEGV` or `exit code 3`. output: the last of what it printed, cleaned for display.
    last_note: the last note it gave during the request.
    """

    def __init__(self, name: str, ended: str, output: str, last_note: str = "") -> None:
        super().__init__(f"{name} died ({ended})")
        self.ended = ended
        self.output = output
        self.last_note = last_note

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
    unsets), after what the server preloads. paths: import paths, after the parent's own. cores:
    the processors it may use, empty for those of the parent. server: one that others use too and
    that somebody else closes, by default its own. Not for two requests at once.
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
        cores: frozenset[int] = frozenset(),
        server: ForkServer | None = None,
    ) -> None:
        self._factory, self._kwargs, self._environment = factory, dict(kwargs or {}), environment
        self._paths, self._name, self._nice = paths, name, nice
        self._cores = cores
        self._own_server = server is None
        self._server = server or ForkServer(name, paths=paths, cwd=cwd)
        self._lock = threading.RLock()
        self._process: Process | None = None
        self._retired = False
        self._last_note = ""

    @property
    def pid(self) -> int | None:
        """The process id of the living child, for tests and people."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def alive(self) -> bool:
        """Whether there is a child, and nobody has killed it behind our back."""
        process = self._process
        return process is not None and process.lives()

    @property
    def last_note(self) -> str:
        """The last note of the last request, empty when it gave none."""
        return self._last_note

    def request(
        self,
        method: str,
        *args: object,
        timeout_s: float,
        quiet_s: float | None = None,
        quiet_after: Mapping[str, float] | None = None,
    ) -> Any:
        """Call a method of the child's object, starting the child if need be.

        quiet_s: how long a method that gives notes may then be silent, None for no limit.
        quiet_after: the same for notes that begin with a certain word. A method that has not given
        any note yet has `timeout_s` alone. Raises ChildTimeout, ChildDied or ChildError; after the
        first two the child is gone.
        """
        with self._lock:
            body = pickle.dumps((method, args))
            process = self._process or self._start()
            return self._exchange(process, body, timeout_s, quiet_s, quiet_after)

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
        self._close_server()

    def close(self) -> None:
        """Let the child's object close itself, then end the child. A later request starts anew."""
        with self._lock:
            if self._process is not None:
                self._process.hang_up()
            self.kill()
            self._close_server()

    def _close_server(self) -> None:
        if self._own_server:
            self._server.close()

    def _start(self) -> Process:
        if self._retired:
            raise ChildDied(self._name, "retired", "")
        scratch = Path(tempfile.mkdtemp(prefix="tuner-"))
        try:
            environment = self._environment(scratch)
            process = Process(
                scratch, server=self._server, environment=environment, name=self._name
            )
        except OSError:
            scratch.rmdir()
            raise
        self._process = process
        if self._retired:  # by another thread, which saw no process to kill
            process.cut()
        setup = {
            "factory": self._factory,
            "kwargs": {**self._kwargs, "cache_dir": scratch},
            "paths": [*(path or os.getcwd() for path in sys.path), *self._paths],
            "nice": self._nice,
            "cores": self._cores,
        }
        try:
            process.pid = self._exchange(process, pickle.dumps(setup), START_TIMEOUT_S)
        except (ChildError, ChildDied, ChildTimeout):
            self.kill()
            self._close_server()
            raise
        return process

    def _exchange(
        self,
        process: Process,
        body: bytes,
        timeout_s: float,
        quiet_s: float | None = None,
        quiet_after: Mapping[str, float] | None = None,
    ) -> Any:
        signs = Signs(time.monotonic() + timeout_s, quiet_s, quiet_after)
        try:
            reply = process.exchange(body, signs)
        except TimeoutError:
            self.kill()
            did, limit_s = "answer within", timeout_s
            if signs.quiet_s is not None and signs.broken_by_silence:
                did, limit_s = "give a sign of life for", signs.quiet_s
            message = f"{self._name} did not {did} {limit_s:g} s"
            raise ChildTimeout(message, limit_s, signs.silent_s, signs.last_note) from None
        except (EOFError, BrokenPipeError):
            self._process = None
            ended = process.end()
            raise ChildDied(self._name, ended, process.output, signs.last_note) from None
        except BaseException:  # a half-read reply would answer the next request
            self.kill()
            raise
        finally:
            self._last_note = signs.last_note
        return _opened(reply)


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
