"""The program of a fork server: loads libraries once, then forks a reaper and a worker per order.

    python -m workers.supervision.child.fork_server_main SOCKET PATHS PRELOAD... NAME

`workers.supervision.fork_server` starts it. The server outlives its children and they outlive it.
It kills the process group of a reaper that was itself killed. Callers that kill their direct
children when they end, as Ray's processes do, kill the server only; reapers and workers are its
children and clean up by themselves.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tuner import tracing
from workers.supervision.child.messages import DESCRIPTORS, LENGTH_BYTES, ForkOrder, length_of
from workers.supervision.child.process_control import adopt_orphans, wake_on_child_exit
from workers.supervision.child.reaper import supervise
from workers.supervision.child.worker_loop import append_paths, work


def main(argv: list[str]) -> None:
    """Serve fork orders from a socket until its other end is closed and all reapers have ended."""
    tracing.join(f"fork server of {argv[-1]}")
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    append_paths(argv[1].split(os.pathsep))
    for entry in argv[2:-1]:
        _preload(entry)
    # Forks then neither scan these objects nor copy their pages.
    gc.collect()
    gc.freeze()
    wake = wake_on_child_exit()
    with suppress(OSError):  # the caller has ended; its orders still have folders to remove
        control.sendall(b"r")
    while _collect_reapers() or control.fileno() >= 0:
        listened: list[Any] = [wake[0], control] if control.fileno() >= 0 else [wake[0]]
        ready, _, _ = select.select(listened, [], [])
        if wake[0] in ready:
            os.read(wake[0], 4096)
        if control not in ready:
            continue
        order = _receive(control)
        if order is None:
            control.close()
        else:
            _fork(*order, private=(*wake, control.fileno()))


def _preload(entry: str) -> None:
    module, _, name = entry.partition(":")
    with suppress(Exception):  # the child that needs it reports the error
        loaded = importlib.import_module(module)
        if name:
            getattr(loaded, name)()


def _receive(control: socket.socket) -> tuple[ForkOrder, list[int]] | None:
    """The next order with its descriptors; None at the end of file."""
    header, descriptors, _, _ = socket.recv_fds(control, LENGTH_BYTES, DESCRIPTORS)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    body = _exactly(control, length_of(header)) if len(header) == LENGTH_BYTES else b""
    return (pickle.loads(body), descriptors) if body else None


def _exactly(control: socket.socket, count: int) -> bytes:
    """That many bytes; none when the file ends before."""
    received = b""
    while len(received) < count:
        chunk = control.recv(count - len(received))
        if not chunk:
            return b""
        received += chunk
    return received


def _fork(order: ForkOrder, descriptors: list[int], private: Sequence[int]) -> None:
    """Fork the reaper of a child. private: the server's own descriptors."""
    try:
        reaper = os.fork()
    except OSError as error:
        os.write(descriptors[3], f"no process can be forked: {error}\n".encode())
        reaper = -1
    if reaper == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in private:
                os.close(descriptor)
            _become_reaper(order, *descriptors)
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            # Skips the interpreter's shutdown: threads of a library must not keep a worker alive.
            os._exit(code)
    for descriptor in descriptors:
        os.close(descriptor)


def _become_reaper(
    order: ForkOrder, requests: int, replies: int, lifeline: int, output: int, exit_status: int
) -> None:
    """Run the reaper and, in a fork of it, the worker; returns when either is done."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    for variable, value in order["environment"].items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    _use_temporary_folder_in(order["scratch"])
    adopt_orphans()
    reaper = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(lifeline)
        os.close(exit_status)
        work(requests, replies, reaper, order["name"])
    else:
        os.close(requests)
        os.close(replies)
        supervise(worker, lifeline, exit_status, order["scratch"])


def _use_temporary_folder_in(scratch: str) -> None:
    """Put temporary files of the worker and its helpers where the reaper removes them.

    Both settings are needed: `tempfile` remembers the server's folder, and it would choose another
    folder on a full disk.
    """
    folder = os.path.join(scratch, "tmp")
    os.makedirs(folder, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def _collect_reapers() -> bool:
    """Collect ended reapers and kill the rest of their process groups; whether any is alive."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return False
        if ended is None:
            return True
        # Until it is collected, no other process group can have its number.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(ended.si_pid, signal.SIGKILL)
        os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
