"""One incarnation of a supervised child (`workers.child`): its processes, pipes and folder."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_TAIL_BYTES = 32 * 1024
_END_TIMEOUT_S = 10.0
_ENDED = os.WEXITED | os.WNOWAIT | os.WNOHANG


class Signs:
    """The signs of life of one request, and when waiting for more is in vain.

    quiet_in: the first words of the notes after which `quiet_s` holds, empty for all.
    """

    def __init__(
        self, deadline: float, quiet_s: float | None, quiet_in: tuple[str, ...] = ()
    ) -> None:
        self._deadline, self._quiet_s, self._quiet_in = deadline, quiet_s, quiet_in
        self._at = time.monotonic()
        self.last_note = ""

    def note(self, text: str) -> None:
        self.last_note, self._at = text, time.monotonic()

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._at

    @property
    def broken_by_silence(self) -> bool:
        return self.until < self._deadline

    @property
    def until(self) -> float:
        if self._quiet_s is None or not self.last_note:
            return self._deadline
        if self._quiet_in and self.last_note.partition(" ")[0] not in self._quiet_in:
            return self._deadline
        return min(self._deadline, self._at + self._quiet_s)


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


class Process:
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

    def exchange(self, body: bytes, signs: Signs) -> bytes:
        """Send and wait for the answer. Raises TimeoutError, EOFError or BrokenPipeError."""
        self.output.clear()
        message = memoryview(len(body).to_bytes(8, "big") + body)
        while message:
            _ready(self._requests, select.POLLOUT, signs.until)
            message = message[os.write(self._requests, message) :]
        while True:
            size = int.from_bytes(self._read(8, signs), "big")
            kind, content = self._read(1, signs), self._read(size - 1, signs)
            if kind == b"a":
                return content
            signs.note(content.decode())

    def _read(self, count: int, signs: Signs) -> bytes:
        got = bytearray()
        while len(got) < count:
            _ready(self._replies, select.POLLIN, signs.until)
            chunk = os.read(self._replies, min(count - len(got), 1 << 20))
            if not chunk:
                raise EOFError
            got += chunk
        return bytes(got)

    def lives(self) -> bool:
        """Whether the front has not ended; it is not reaped, so that `end` can still kill all."""
        if self._front.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self._front.pid, _ENDED) is None
        except ChildProcessError:  # reaped by another thread just now
            return False

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
        while self._front.returncode is None and time.monotonic() < deadline:
            if os.waitid(os.P_PID, self._front.pid, _ENDED) is not None:
                return
            time.sleep(0.002)


def _ready(descriptor: int, event: int, deadline: float) -> None:
    poller = select.poll()
    poller.register(descriptor, event)
    if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
