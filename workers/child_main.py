"""The far side of `workers.child`: a front, forked from it a guard, and from that the worker.

The worker runs the caller's object and may crash, hang or be killed. The guard runs nothing of the
caller's: it waits for the worker's end, or for the caller's (end of file on the lifeline, which
works for `kill -9` too), then kills whatever the worker left behind, removes the scratch folder
and ends the way the worker ended. As a child subreaper it finds even descendants that detached.
The front only passes that end on; it is there to be killed in the guard's place by callers that
kill their direct children when they leave, as Ray's processes do.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import pickle
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from workers import notes

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_REAP_TIMEOUT_S = 5.0


def _prctl(option: int, value: int | bytes) -> None:
    """Linux's prctl; elsewhere there is none, and the guard alone has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


# -- the guard -------------------------------------------------------------------------------------
def _parents() -> Iterator[tuple[int, int]]:
    """(pid, parent's pid) of every process that can be seen."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
                # The name is in brackets and may hold anything; the fields follow the last one.
                yield int(entry), int(stat.read().rpartition(b")")[2].split()[1])


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _reap(worker: int) -> tuple[bool, int | None]:
    """Collect ended children: is any left, and the status of the worker if it was among them."""
    status = None
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, status
        if pid == 0:
            return True, status
        if pid == worker:
            status = code


def _wait(worker: int, lifeline: int) -> int | None:
    """Until the worker ends (its status) or the parent does (None)."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        _, status = _reap(worker)
        if status is not None:
            return status
        ready, _, _ = select.select([lifeline, wake_read], [], [])
        if lifeline in ready:
            return None
        os.read(wake_read, 4096)


def _let_go() -> None:
    """Hold no end of the pipe the worker prints to, which ends with the worker."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _end_as(status: int | None) -> None:
    """End the way another process did; by SIGKILL where that is not known."""
    if status is not None and os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    ended_by = os.WTERMSIG(status) if status is not None else signal.SIGKILL
    if ended_by != signal.SIGKILL:
        signal.signal(ended_by, signal.SIG_DFL)
    os.kill(os.getpid(), ended_by)


def _guard(worker: int, lifeline: int, scratch: str) -> None:
    _let_go()
    status = _wait(worker, lifeline)
    deadline = time.monotonic() + _REAP_TIMEOUT_S
    left = True
    while left and time.monotonic() < deadline:
        for pid in _descendants(os.getpid()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        left, late = _reap(worker)
        status = late if status is None else status
        if left:
            time.sleep(0.002)
    shutil.rmtree(scratch, ignore_errors=True)
    _end_as(status)


# -- the worker ------------------------------------------------------------------------------------
def _read(stream: BinaryIO) -> bytes | None:
    header = stream.read(8)
    return stream.read(int.from_bytes(header, "big")) if len(header) == 8 else None


def _write(stream: BinaryIO, kind: bytes, body: bytes) -> None:
    stream.write((len(body) + 1).to_bytes(8, "big") + kind + body)
    stream.flush()


def _pickled_error(error: Exception) -> bytes:
    """An error reply: the exception where it survives the trip, and in any case its text."""
    text = "".join(traceback.format_exception(error))
    # Frames would pin what they hold, such as tensors.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        portable: bytes | None = pickle.dumps(error)
        pickle.loads(portable)  # type: ignore[arg-type]
    except Exception:
        portable = None
    return pickle.dumps(("error", portable, type(error).__name__, _text(error), text))


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} whose text cannot be had>"


def _answer(handle: Callable[[bytes], Any], body: bytes) -> bytes:
    try:
        return pickle.dumps(("result", handle(body)))
    except Exception as error:
        return _pickled_error(error)


def _create(setup: dict[str, Any]) -> Any:
    sys.path[:] = setup["paths"] + [path for path in sys.path if path not in setup["paths"]]
    os.nice(setup["nice"])
    if setup["cores"]:
        with suppress(OSError):  # taken away meanwhile
            os.sched_setaffinity(0, setup["cores"])
    module, _, name = setup["factory"].partition(":")
    return getattr(importlib.import_module(module), name)(**setup["kwargs"])


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until end of file: the first creates the object, the others call it."""
    target: Any = None

    def create(body: bytes) -> int:
        nonlocal target
        target = _create(pickle.loads(body))
        return os.getpid()

    def call(body: bytes) -> Any:
        method, args = pickle.loads(body)
        return getattr(target, method)(*args)

    def send_note(text: str) -> None:
        _write(replies, b"n", text.encode(errors="replace"))

    handle: Callable[[bytes], Any] = create
    while (body := _read(requests)) is not None:
        with notes.sent_by(send_note):
            answer = _answer(handle, body)
        _write(replies, b"a", answer)
        handle = call
    if hasattr(target, "close"):
        target.close()


def main(argv: list[str]) -> None:
    requests, replies, lifeline = map(int, argv[:3])
    scratch, name = argv[3:5]
    for descriptor in (requests, replies, lifeline):
        os.set_inheritable(descriptor, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    guard = os.fork()
    if guard:
        for descriptor in (requests, replies, lifeline):
            os.close(descriptor)
        _let_go()
        _end_as(os.waitpid(guard, 0)[1])
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    worker = os.fork()
    if worker:
        os.close(requests)
        os.close(replies)
        _guard(worker, lifeline, scratch)
        return
    os.close(lifeline)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    _prctl(_PR_SET_NAME, name.encode()[:15])
    faulthandler.enable()
    _serve(os.fdopen(requests, "rb"), os.fdopen(replies, "wb"))
    # Without the interpreter's own end: threads of a library must not keep the process alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
