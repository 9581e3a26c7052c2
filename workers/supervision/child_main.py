"""The far side of `workers.supervision.supervised_child`: a fork server, forked from it guards,
from each the worker.

The worker runs the caller's object and may crash, hang or be killed. The guard runs nothing of the
caller's: it waits for the worker's end, or for the caller's (end of file on the lifeline, which
works for `kill -9` too), then kills whatever the worker left behind, removes the scratch folder
and writes down how the worker ended. As a child subreaper it finds even descendants that detached.
The server (`workers.supervision.fork_server`) has loaded what workers need. It kills the group of
a guard that was itself killed, and is killed in the guards' place by callers that kill their
direct children when they leave, as Ray's processes do; guards and workers live on without it.

An order for a child is a pickled mapping of scratch (its folder), name, environment (changes; None
unsets). With it come five descriptors: requests, replies, lifeline, what it prints, its epitaph.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from workers.supervision import heartbeat

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_REAP_TIMEOUT_S = 5.0
_DESCRIPTORS = 5

#: What a guard writes when all is over: its worker's exit code, negative for a signal.
EPITAPH = struct.Struct("=i")


def _prctl(option: int, value: int | bytes) -> None:
    """Linux's prctl; elsewhere there is none, and the guard alone has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _woken_by_children() -> tuple[int, int]:
    """The ends of a pipe that can be read when a child has ended."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read, write


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
    wake_read, _ = _woken_by_children()
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


def _guard(worker: int, lifeline: int, epitaph: int, scratch: str) -> None:
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
    if status is not None:
        os.write(epitaph, EPITAPH.pack(os.waitstatus_to_exitcode(status)))


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


def _append_paths(paths: Sequence[str]) -> None:
    """Import paths that come after those there are: a `random.py` of a user's hides no library."""
    sys.path += [path for path in dict.fromkeys(paths) if path and path not in sys.path]


def _create(setup: dict[str, Any]) -> Any:
    _append_paths(setup["paths"])
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
        with heartbeat.sent_by(send_note):
            answer = _answer(handle, body)
        _write(replies, b"a", answer)
        handle = call
    if hasattr(target, "close"):
        target.close()


def _work(requests: int, replies: int, guard: int, name: str) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        return
    _prctl(_PR_SET_NAME, name.encode()[:15])
    faulthandler.enable()
    _serve(os.fdopen(requests, "rb"), os.fdopen(replies, "wb"))
    sys.stdout.flush()
    sys.stderr.flush()


# -- the server ------------------------------------------------------------------------------------
def _preload(entry: str) -> None:
    module, _, name = entry.partition(":")
    with suppress(Exception):  # whoever needs it will say what is wrong
        loaded = importlib.import_module(module)
        if name:
            getattr(loaded, name)()


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    header, descriptors, _, _ = socket.recv_fds(control, 8, _DESCRIPTORS)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    body = _exactly(control, int.from_bytes(header, "big")) if len(header) == 8 else b""
    return (pickle.loads(body), descriptors) if body else None


def _exactly(control: socket.socket, count: int) -> bytes:
    """That many bytes, none at the end of file."""
    got = b""
    while len(got) < count:
        chunk = control.recv(count - len(got))
        if not chunk:
            return b""
        got += chunk
    return got


def _keep_files_in(scratch: str) -> None:
    """Have temporary files of the worker and of what it starts go when its folder does.

    Set in both places: `tempfile` remembers the server's folder, and where the disk is full it
    would look for another one.
    """
    folder = os.path.join(scratch, "tmp")
    os.makedirs(folder, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def _start_guard(
    order: dict[str, Any], requests: int, replies: int, lifeline: int, output: int, epitaph: int
) -> None:
    """Become a guard and then, in a fork of that, its worker; returns when either is done."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    for variable, value in order["environment"].items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    _keep_files_in(order["scratch"])
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(lifeline)
        os.close(epitaph)
        _work(requests, replies, guard, order["name"])
    else:
        os.close(requests)
        os.close(replies)
        _guard(worker, lifeline, epitaph, order["scratch"])


def _fork(order: dict[str, Any], descriptors: list[int], private: Sequence[int]) -> None:
    """Fork the guard of a child. private: the server's own descriptors."""
    try:
        guard = os.fork()
    except OSError as error:
        os.write(descriptors[3], f"no process can be forked: {error}\n".encode())
        guard = -1
    if guard == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in private:
                os.close(descriptor)
            _start_guard(order, *descriptors)
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            # Without the interpreter's own end: threads of a library must not keep a worker alive.
            os._exit(code)
    for descriptor in descriptors:
        os.close(descriptor)


def _bury() -> bool:
    """Collect guards that ended, with what is left of the group of one; whether any lives."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return False
        if ended is None:
            return True
        # Not yet reaped, it still owns the number of the group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(ended.si_pid, signal.SIGKILL)
        os.waitpid(ended.si_pid, 0)


def main(argv: list[str]) -> None:
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _append_paths(argv[1].split(os.pathsep))
    for entry in argv[2:-1]:
        _preload(entry)
    # What is loaded stays: forks need neither look through it nor copy its pages.
    gc.collect()
    gc.freeze()
    ends = _woken_by_children()
    with suppress(OSError):  # a caller that is gone has left orders, and folders to remove
        control.sendall(b"r")
    while _bury() or control.fileno() >= 0:
        listened: list[Any] = [ends[0], control] if control.fileno() >= 0 else [ends[0]]
        ready, _, _ = select.select(listened, [], [])
        if ends[0] in ready:
            os.read(ends[0], 4096)
        if control not in ready:
            continue
        order = _receive(control)
        if order is None:
            control.close()
        else:
            _fork(*order, private=(*ends, control.fileno()))


if __name__ == "__main__":
    main(sys.argv[1:])
