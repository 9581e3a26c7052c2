"""The parent's view of one child process: its pipes, its scratch folder and its exit status."""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tuner.base import tracing
from workers.processes.child.messages import (
    ALONE,
    EXIT_STATUS,
    LENGTH_BYTES,
    REPLY,
    ForkOrder,
    frame,
    length_of,
)


# -- the end of the wait for a reply: the request's deadline, or too long without a heartbeat ------
# While the process is suspended, both stand still.
class ResponseDeadline:
    """The deadline of one request, moved by the heartbeats that arrive.

    deadline: on `time.monotonic`, in seconds. max_silence_s: the longest time without a heartbeat
    after the first one, None for no limit. max_silence_after: other limits, in seconds, by the
    first word of the last activity.
    """

    def __init__(
        self,
        deadline: float,
        max_silence_s: float | None = None,
        max_silence_after: Mapping[str, float] | None = None,
    ) -> None:
        self._deadline, self._default_silence_s = deadline, max_silence_s
        self._max_silence_after = max_silence_after or {}
        self._last_at = time.monotonic()
        self.last_activity = ""
        #: Seconds of the request in which the process was suspended, until the last `resume`.
        self.suspended_s = 0.0
        self._lock = threading.Lock()
        self._suspended_at: float | None = None

    def heartbeat(self, activity: str) -> None:
        """Take in a heartbeat that has just arrived."""
        self.last_activity, self._last_at = activity, time.monotonic()

    def suspend(self) -> None:
        """Count no time until `resume`. For any thread."""
        with self._lock:
            if self._suspended_at is None:
                self._suspended_at = time.monotonic()

    def resume(self) -> None:
        """Count time again. For any thread."""
        with self._lock:
            if self._suspended_at is not None:
                stood_s = time.monotonic() - self._suspended_at
                self._suspended_at = None
                self._deadline += stood_s
                self._last_at += stood_s
                self.suspended_s += stood_s

    @property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat, or since the request."""
        with self._lock:
            return (self._suspended_at or time.monotonic()) - self._last_at

    @property
    def max_silence_s(self) -> float | None:
        """The longest silence after the last activity; None for no limit."""
        if not self.last_activity:
            return None
        return self._max_silence_after.get(
            self.last_activity.partition(" ")[0], self._default_silence_s
        )

    @property
    def limited_by_silence(self) -> bool:
        """Whether the limit on silence ends before the request's own deadline."""
        with self._lock:
            return self._ends_at < self._deadline

    @property
    def until(self) -> float:
        """The time at which waiting ends unless it is moved meanwhile, on `time.monotonic`."""
        with self._lock:
            stood_s = time.monotonic() - self._suspended_at if self._suspended_at else 0.0
            return self._ends_at + stood_s

    @property
    def _ends_at(self) -> float:
        silence_s = self.max_silence_s
        if silence_s is None:
            return self._deadline
        return min(self._deadline, self._last_at + silence_s)


# -- the output of a supervised process: read at once, so that printing never blocks; end kept -----
_KEPT_BYTES = 32 * 1024
_FINISH_TIMEOUT_S = 2.0


class CapturedOutput:
    """The last 32 KiB that arrive at a descriptor. A thread reads it and closes it."""

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
                del self._kept[:-_KEPT_BYTES]
        os.close(self._descriptor)

    def clear(self) -> None:
        """Forget what has arrived so far."""
        with self._lock:
            self._kept.clear()

    def finish(self) -> None:
        """Wait for the end of the output, at most two seconds."""
        self._thread.join(timeout=_FINISH_TIMEOUT_S)

    def text(self) -> str:
        """What is kept, without control characters."""
        with self._lock:
            raw = bytes(self._kept)
        clean = raw.decode("utf-8", "replace").replace("\r", "\n")
        return "".join(c for c in clean if c in "\n\t" or c.isprintable())


# -- the parent's view of one child process --------------------------------------------------------
_EXIT_TIMEOUT_S = 10.0
_CHUNK_BYTES = 1 << 20


class Server(Protocol):
    """What children fork from (`workers.processes.fork_server`)."""

    @property
    def loading(self) -> bool: ...

    def fork(self, order: ForkOrder, descriptors: Sequence[int]) -> None: ...

    def interrupt(self) -> None: ...

    def exit_report(self) -> tuple[str, str] | None: ...

    def close(self) -> None: ...


class ChildProcess:
    """One process that a fork server started, until its end. Raises OSError if it cannot be."""

    def __init__(
        self,
        scratch: Path,
        *,
        server: Server,
        environment: Mapping[str, str | None],
        name: str,
    ) -> None:
        (
            (request_read, self._requests),
            (self._replies, reply_write),
            (lifeline_read, self._lifeline),
            (output_read, output_write),
            (self._exit_status, exit_status_write),
        ) = _pipes(5)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        #: The worker's process id, known from the reply to its setup.
        self.pid: int | None = None
        self._server = server
        self._lifeline_lock = threading.Lock()
        self._scratch = scratch
        theirs = (request_read, reply_write, lifeline_read, output_write, exit_status_write)
        # The server may have started before the trace, or with another one.
        traced = {tracing.VARIABLE: os.environ.get(tracing.VARIABLE)}
        order = ForkOrder(scratch=str(scratch), name=name, environment={**environment, **traced})
        try:
            server.fork(order, theirs)
        except OSError:
            ours = (self._requests, self._replies, self._lifeline, output_read, self._exit_status)
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._output = CapturedOutput(output_read)

    @property
    def output(self) -> str:
        """The end of what the worker printed; of what the server printed if no worker started."""
        return self._output.text() or self._server_exit()[1]

    @property
    def alive(self) -> bool:
        """Whether the reaper is alive and has not reported the worker's end."""
        return self._exit_status >= 0 and not is_readable(self._exit_status, 0.0)

    def exchange(
        self, body: bytes, deadline: ResponseDeadline, alone: Callable[[], None] = lambda: None
    ) -> bytes:
        """Send a request and return the reply. Raises TimeoutError, EOFError or BrokenPipeError.

        alone: gives the worker the processors when it asks; the deadline does not count the time.
        """
        self._output.clear()
        self._write(body, deadline)
        while True:
            size = length_of(self._read(LENGTH_BYTES, deadline))
            kind, content = self._read(1, deadline), self._read(size - 1, deadline)
            if kind == REPLY:
                return content
            if kind == ALONE:
                deadline.suspend()
                try:
                    alone()
                finally:
                    deadline.resume()
                self._write(b"", deadline)
            else:
                deadline.heartbeat(content.decode())

    def _write(self, body: bytes, deadline: ResponseDeadline) -> None:
        message = memoryview(frame(body))
        while message:
            _wait_for(self._requests, select.POLLOUT, deadline)
            message = message[os.write(self._requests, message) :]

    def _read(self, count: int, deadline: ResponseDeadline) -> bytes:
        received = bytearray()
        while len(received) < count:
            _wait_for(self._replies, select.POLLIN, deadline)
            chunk = os.read(self._replies, min(count - len(received), _CHUNK_BYTES))
            if not chunk:
                raise EOFError
            received += chunk
        return bytes(received)

    def close_requests(self) -> None:
        """Close the request pipe and wait some seconds for the worker to end by itself."""
        os.close(self._requests)
        self._requests = -1
        is_readable(self._exit_status, _EXIT_TIMEOUT_S)

    def close_lifeline(self) -> None:
        """Have the reaper kill everything. For any thread, also repeatedly.

        A server that is still loading has no reaper to do it. It is killed if the child is its only
        one; else it forks the child once it has loaded, and the reaper ends that child at once.
        """
        with self._lifeline_lock:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1
                self._server.interrupt()

    def suspend(self) -> None:
        """Stop the worker and its helpers, at once. For any thread."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on. For any thread."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker's process group, to which its reaper does not belong."""
        with self._lifeline_lock:
            if self._lifeline >= 0 and self.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def end(self) -> str:
        """Kill what is left, and return the worker's exit: `SIGSEGV` or `exit code 3`."""
        self.close_lifeline()
        exit_status, self._exit_status = self._exit_status, -1
        written = b""
        forked = self.pid is not None or not self._server.loading
        if is_readable(exit_status, _EXIT_TIMEOUT_S if forked else 0.0):
            written = os.read(exit_status, EXIT_STATUS.size)
        for descriptor in (self._requests, self._replies, exit_status):
            if descriptor >= 0:
                os.close(descriptor)
        tracing.process_ended(self.pid)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._output.finish()
        if len(written) == EXIT_STATUS.size:
            return exit_name(EXIT_STATUS.unpack(written)[0])
        # There was no reaper, or it was killed and its worker with it.
        return self._server_exit()[0]

    def _server_exit(self) -> tuple[str, str]:
        """How the server ended and what it printed, if it ended before a worker started.

        Otherwise SIGKILL without output.
        """
        return (self._server.exit_report() if self.pid is None else None) or ("SIGKILL", "")


def exit_name(code: int | None) -> str:
    """A return code of `subprocess` as a signal's name or an exit code; None means SIGKILL."""
    if code is None:
        return "SIGKILL"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _pipes(count: int) -> list[tuple[int, int]]:
    """That many pipes. If there are too few descriptors for all, none is left open."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            made.append(os.pipe())  # noqa: PERF401 (the ones made before an error must be closed)
    except OSError:
        for ends in made:
            os.close(ends[0])
            os.close(ends[1])
        raise
    return made


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Whether data or the end of file arrives within that time."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))


def _wait_for(descriptor: int, event: int, deadline: ResponseDeadline) -> None:
    poller = select.poll()
    poller.register(descriptor, event)
    while not poller.poll(max(0.0, deadline.until - time.monotonic()) * 1000):
        if time.monotonic() >= deadline.until:
            raise TimeoutError
