"""A supervised child process: it may crash, hang or be killed, and its caller learns which.

    child = SupervisedChild("package.module:Factory", {"index": 0}, server=ForkServer("runner-0"))
    child.request("method", 1, 2, timeout_s=10.0)

The first request starts the process, forked from a server (`workers.processes.fork_server`). It
imports the factory and keeps the object that the factory returns; each request calls a method of
it. Messages use pipes of their own (`workers.processes.child.messages`), so printing does not
disturb them. The process ends with its parent, also after `kill -9`, and its reaper then kills its
descendants and removes its scratch folder (`workers.processes.child.reaper`).
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuner.base import tracing
from workers.processes.child.messages import Setup
from workers.processes.child_process import ChildProcess, ResponseDeadline, Server
from workers.processes.process_folders import unused_name

_log = logging.getLogger(__name__)
#: Seconds for a child to start and create its object; torch from a cold disk takes long to import.
START_TIMEOUT_S = 180.0

Environment = Callable[[Path], Mapping[str, str | None]]


class ChildTimeout(Exception):
    """The child did not answer in time and was killed."""

    def __init__(self, message: str, limit_s: float, silent_s: float, last_activity: str) -> None:
        super().__init__(message)
        #: The limit that was exceeded.
        self.limit_s = limit_s
        #: Seconds since the last heartbeat.
        self.silent_s = silent_s
        #: The activity of the last heartbeat; empty without one.
        self.last_activity = last_activity


class ChildDied(Exception):
    """The child ended instead of answering."""

    def __init__(self, name: str, exit_status: str, output: str, last_activity: str = "") -> None:
        super().__init__(f"{name} died ({exit_status})")
        #: `SIGSEGV` or `exit code 3`.
        self.exit_status = exit_status
        #: The end of its output, without control characters.
        self.output = output
        #: The activity of the last heartbeat during the request; empty without one.
        self.last_activity = last_activity

    @property
    def last_line(self) -> str:
        """The line of the output that most likely names the cause; empty without output."""
        # The fault handler prints after the cause, if the cause was printed at all.
        printed, marker, dump = self.output.partition("Fatal Python error:")
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        if not lines and marker:
            lines = [f"{marker}{dump.splitlines()[0]}"]
        return lines[-1] if lines else ""


class ChildError(Exception):
    """The object in the child raised an exception."""

    def __init__(self, error: BaseException | None, kind: str, message: str, trace: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        #: The exception; None if it could not be pickled.
        self.error = error
        #: Its traceback as text.
        self.trace = trace


class SupervisedChild:
    """One child process at a time, started on demand and again after every death.

    factory: `module:callable`, called with `kwargs` and `cache_dir`, a private folder that is
    removed when the process ends. environment: changes of the environment, given that folder (None
    unsets), which follow the server's preloads. paths: import paths, after the parent's own. cores:
    the processors it may use, empty for those of the parent. server: what it forks from; with
    `own_server` it ends with the child. One request at a time.
    """

    def __init__(
        self,
        factory: str,
        kwargs: Mapping[str, Any] | None = None,
        *,
        server: Server,
        own_server: bool = False,
        environment: Environment = lambda _: {},
        paths: tuple[str, ...] = (),
        name: str = "child",
        nice: int = 0,
        cores: frozenset[int] = frozenset(),
    ) -> None:
        self._factory, self._kwargs, self._environment = factory, dict(kwargs or {}), environment
        self._paths, self._name, self._nice = paths, name, nice
        self._cores = cores
        self._server, self._own_server = server, own_server
        self._lock = threading.RLock()
        self._process: ChildProcess | None = None
        self._retired = False
        self._last_activity = ""
        #: Guards what follows. Its holder waits for nothing else.
        self._standing = threading.Condition()
        self._suspended = False
        #: Of the request in hand.
        self._deadline: ResponseDeadline | None = None
        self._suspended_s = 0.0

    @property
    def pid(self) -> int | None:
        """The process id of the living child, for tests and people."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def alive(self) -> bool:
        """Whether there is a child and it has not ended since the last request."""
        process = self._process
        return process is not None and process.alive

    @property
    def retired(self) -> bool:
        """Whether it was told to end for good, so that its death is no news."""
        return self._retired

    @property
    def last_activity(self) -> str:
        """The activity of the last heartbeat of the last request; empty without one."""
        return self._last_activity

    @property
    def suspended_s(self) -> float:
        """Seconds of the last request in which the child stood still."""
        return self._suspended_s

    def suspend(self) -> None:
        """Stop the child and its helpers until `resume`, and start none. For any thread.

        The time limits of a request do not count the time. A child that is just starting goes on
        until it has started. A suspended child can be killed.
        """
        with self._standing:
            self._suspended = True
            if self._deadline is not None:
                self._deadline.suspend()
            if self._process is not None:
                self._process.suspend()

    def resume(self) -> None:
        """Let the child go on. For any thread."""
        with self._standing:
            self._suspended = False
            if self._process is not None:
                self._process.resume()
            if self._deadline is not None:
                self._deadline.resume()
            self._standing.notify_all()

    def request(
        self,
        method: str,
        *args: object,
        timeout_s: float,
        max_silence_s: float | None = None,
        max_silence_after: Mapping[str, float] | None = None,
        alone: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call a method of the child's object; start the child first if necessary.

        max_silence_s: the longest time between heartbeats, None for no limit; it applies from the
        first heartbeat on. max_silence_after: the same for activities that begin with a certain
        word. alone: gives the child the processors when it asks for them, before it times
        something; the wait counts for no limit. Raises ChildTimeout, ChildDied or ChildError; the
        child has ended after the first two.
        """
        with self._lock:
            body = pickle.dumps((method, args))
            process = self._process or self._start()
            deadline = ResponseDeadline(
                time.monotonic() + timeout_s, max_silence_s, max_silence_after
            )
            return self._exchange(process, body, timeout_s, deadline, alone)

    def start(self) -> None:
        """Start the child now, unless it is alive. Raises as `request` does."""
        with self._lock:
            if self._process is None:
                self._start()

    def kill(self) -> None:
        """Kill the child and its descendants. A request of another thread raises ChildDied."""
        process = self._process
        if process is None:
            return
        process.close_lifeline()
        with self._lock:
            if self._process is process:
                self._process = None
                process.end()

    def begin_kill(self) -> None:
        """Begin to retire: the child's reaper kills it while the caller continues."""
        self._retired = True
        process = self._process
        if process is not None:
            process.close_lifeline()
        with self._standing:
            self._standing.notify_all()

    def retire(self) -> None:
        """Kill the child and start no other. Present and later requests raise ChildDied."""
        self.begin_kill()
        self.kill()
        self._close_server()

    def close(self) -> None:
        """Close the child's object, then end the child; a later request starts a new child."""
        self.resume()
        with self._lock:
            if self._process is not None:
                self._process.close_requests()
            self.kill()
            self._close_server()

    def _close_server(self) -> None:
        if self._own_server:
            self._server.close()

    @tracing.trace_calls("start of a process", "waiting")
    def _start(self) -> ChildProcess:
        with self._standing:
            self._standing.wait_for(lambda: not self._suspended or self._retired)
        if self._retired:
            raise ChildDied(self._name, "retired", "")
        scratch = Path(unused_name())
        process = self._process = ChildProcess(
            scratch, server=self._server, environment=self._environment(scratch), name=self._name
        )
        if self._retired:  # by another thread, which saw no process to kill
            process.close_lifeline()
        setup = Setup(
            factory=self._factory,
            kwargs={**self._kwargs, "cache_dir": scratch},
            paths=[*(path or os.getcwd() for path in sys.path), *self._paths],
            nice=self._nice,
            cores=self._cores,
        )
        deadline = ResponseDeadline(time.monotonic() + START_TIMEOUT_S)
        try:
            process.pid = self._exchange(process, pickle.dumps(setup), START_TIMEOUT_S, deadline)
        except (ChildError, ChildDied, ChildTimeout):
            self.kill()
            self._close_server()
            raise
        with self._standing:
            if self._suspended:
                process.suspend()
        _log.debug("%s: process %s started", self._name, process.pid)
        return process

    def _exchange(
        self,
        process: ChildProcess,
        body: bytes,
        timeout_s: float,
        deadline: ResponseDeadline,
        alone: Callable[[], None] = lambda: None,
    ) -> Any:
        with self._standing:
            self._deadline = deadline
            if self._suspended:
                deadline.suspend()
        try:
            reply = process.exchange(body, deadline, alone)
        except TimeoutError:
            self.kill()
            raise self._timeout(timeout_s, deadline) from None
        except (EOFError, BrokenPipeError):
            raise self._death(process, deadline) from None
        except BaseException:  # a half-read reply would answer the next request
            self.kill()
            raise
        finally:
            with self._standing:
                self._deadline = None
            self._last_activity, self._suspended_s = deadline.last_activity, deadline.suspended_s
        return _result_of(reply)

    def _timeout(self, timeout_s: float, deadline: ResponseDeadline) -> ChildTimeout:
        limit_s, missed = timeout_s, f"answer within {timeout_s:g} s"
        if deadline.max_silence_s is not None and deadline.limited_by_silence:
            limit_s = deadline.max_silence_s
            missed = f"give a sign of life for {limit_s:g} s"
        activity = deadline.last_activity
        error = ChildTimeout(f"{self._name} did not {missed}", limit_s, deadline.silent_s, activity)
        _log.info("%s (last activity: %s); it was killed", error, activity or "none")
        return error

    def _death(self, process: ChildProcess, deadline: ResponseDeadline) -> ChildDied:
        self._process = None
        exit_status, activity = process.end(), deadline.last_activity
        death = ChildDied(self._name, exit_status, process.output, activity)
        if not self._retired:
            line, during = death.last_line, activity or "none"
            _log.info("%s (last activity: %s): %s", death, during, line or "no output")
        return death


class SingleChild:
    """A worker that is one supervised child, as its pool sees it."""

    def __init__(self, child: SupervisedChild) -> None:
        self._child = child

    @property
    def pid(self) -> int | None:
        """The process id of the living child."""
        return self._child.pid

    def suspend(self) -> None:
        """Stop the child with its helpers until `resume`. For any thread."""
        self._child.suspend()

    def resume(self) -> None:
        """Let the child go on. For any thread."""
        self._child.resume()

    def begin_kill(self) -> None:
        """Begin to end the child while the caller continues; `kill` waits for its end."""
        self._child.begin_kill()

    def kill(self) -> None:
        """End the child at once and for good. For any thread."""
        self._child.retire()

    def close(self) -> None:
        self._child.close()


def _result_of(reply: bytes) -> Any:
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
