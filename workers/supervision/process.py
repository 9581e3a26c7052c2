"""One incarnation of a supervised child (`workers.supervision.supervised_child`): its pipes,
folder and end."""

from __future__ import annotations

import os
import select
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from workers.supervision.child_main import EPITAPH
from workers.supervision.fork_server import ForkServer, ended_as
from workers.supervision.output import Output

_END_TIMEOUT_S = 10.0


class Signs:
    """The signs of life of one request, and when waiting for more is in vain.

    quiet_s: the longest silence after any note, None for no limit. quiet_after: other limits, in
    seconds, by the first word of the note.
    """

    def __init__(
        self,
        deadline: float,
        quiet_s: float | None = None,
        quiet_after: Mapping[str, float] | None = None,
    ) -> None:
        self._deadline, self._quiet_s, self._quiet_after = deadline, quiet_s, quiet_after or {}
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
    def quiet_s(self) -> float | None:
        """The longest silence after the last note; None for no limit."""
        if not self.last_note:
            return None
        return self._quiet_after.get(self.last_note.partition(" ")[0], self._quiet_s)

    @property
    def until(self) -> float:
        quiet_s = self.quiet_s
        return self._deadline if quiet_s is None else min(self._deadline, self._at + quiet_s)


class Process:
    """One incarnation of a child: what a server forked, five pipes and a scratch folder."""

    def __init__(
        self,
        scratch: Path,
        *,
        server: ForkServer,
        environment: Mapping[str, str | None],
        name: str,
    ) -> None:
        (
            (request_read, self._requests),
            (self._replies, reply_write),
            (lifeline_read, self._lifeline),
            (output_read, output_write),
            (self._epitaph, epitaph_write),
        ) = _pipes(5)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        self.pid: int | None = None
        self._server = server
        self._cut = threading.Lock()
        self._scratch = scratch
        theirs = (request_read, reply_write, lifeline_read, output_write, epitaph_write)
        try:
            order = {"scratch": str(scratch), "name": name, "environment": dict(environment)}
            server.fork(order, theirs)
        except OSError:
            mine = (self._requests, self._replies, self._lifeline, output_read, self._epitaph)
            for descriptor in mine:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._output = Output(output_read)

    @property
    def output(self) -> str:
        """The last of what was printed; before there was a worker, by the server."""
        return self._output.text() or self._servers_end()[1]

    def exchange(self, body: bytes, signs: Signs) -> bytes:
        """Send and wait for the answer. Raises TimeoutError, EOFError or BrokenPipeError."""
        self._output.clear()
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
        """Whether the guard is there and has not written that the worker ended."""
        return self._epitaph >= 0 and not _readable(self._epitaph, 0.0)

    def hang_up(self) -> None:
        """End the requests and give the child a moment to leave by itself."""
        os.close(self._requests)
        self._requests = -1
        _readable(self._epitaph, _END_TIMEOUT_S)

    def cut(self) -> None:
        """Close the lifeline, so that the guard kills everything; from any thread, repeatedly.

        Where there is no guard yet, for the server is loading, there will be none.
        """
        with self._cut:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1
                self._server.interrupt()

    def end(self) -> str:
        """Make sure of the end and say what it was: a signal's name or an exit code."""
        self.cut()
        epitaph, self._epitaph = self._epitaph, -1
        written = b""
        if _readable(epitaph, _END_TIMEOUT_S):
            written = os.read(epitaph, EPITAPH.size)
        for descriptor in (self._requests, self._replies, epitaph):
            if descriptor >= 0:
                os.close(descriptor)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._output.finish()
        if len(written) == EPITAPH.size:
            return ended_as(EPITAPH.unpack(written)[0])
        # No guard, or one that was killed and its worker with it.
        return self._servers_end()[0]

    def _servers_end(self) -> tuple[str, str]:
        """How a server ended that took this child with it, for there was no worker yet, and what it
        printed; else a SIGKILL without a word."""
        return (self._server.obituary() if self.pid is None else None) or ("SIGKILL", "")


def _pipes(count: int) -> list[tuple[int, int]]:
    """So many pipes; where there are too few descriptors for all, none is left open."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            made.append(os.pipe())  # noqa: PERF401 (what was made has to be closed)
    except OSError:
        for ends in made:
            os.close(ends[0])
            os.close(ends[1])
        raise
    return made


def _readable(descriptor: int, timeout_s: float) -> bool:
    """Whether there is something to read, or the end of file, within that time."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))


def _ready(descriptor: int, event: int, deadline: float) -> None:
    poller = select.poll()
    poller.register(descriptor, event)
    if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
