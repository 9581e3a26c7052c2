"""The program of a fork server: loads libraries once, then forks a reaper and a worker per order.

    python -m workers.processes.server_process SOCKET PATHS NAME

`workers.processes.fork_server` starts it. It may also fork a branch: a fork server that has
loaded what this one has, and then loads more. The server outlives its children and they outlive it;
a branch ends with its server. The server kills the session of a reaper that was itself
killed. Callers that kill their direct children when they end, as Ray's processes do, kill the
server only; reapers and workers are its children and clean up by themselves.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tuner.base import tracing
from workers.processes import process_folders
from workers.processes.child.messages import (
    DESCRIPTORS,
    EXIT_STATUS,
    LENGTH_BYTES,
    LOADED,
    ForkOrder,
    Order,
    adopt_orphans,
    die_with_parent,
    length_of,
    set_name,
    wake_on_child_exit,
)
from workers.processes.child.reaper import kill_session, supervise
from workers.processes.child.worker_loop import append_paths, work
from workers.processes.preload import Preload


def main(argv: list[str]) -> None:
    """Serve the orders that come over a socket."""
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    append_paths(argv[1].split(os.pathsep))
    # Nothing that a server loads becomes garbage that matters; workers collect as usual.
    gc.disable()
    try:
        ForkServerProcess(control, argv[2]).serve()
    finally:
        process_folders.remove(os.environ.get(process_folders.SHARED, ""))


class ForkServerProcess:
    """One fork server: a process that carries out orders until the other end of a socket closes."""

    def __init__(self, control: socket.socket, name: str) -> None:
        set_name(name)
        tracing.join(f"fork server {name}")
        self._control = control
        self._wake = wake_on_child_exit()
        #: Where the exit status of each living branch goes, by its process id.
        self._branches: dict[int, int] = {}

    def serve(self) -> None:
        """Return when the socket is closed and all children have ended."""
        control, wake = self._control, self._wake[0]
        while self._collect() or control.fileno() >= 0:
            listened: list[Any] = [wake, control] if control.fileno() >= 0 else [wake]
            ready, _, _ = select.select(listened, [], [])
            if wake in ready:
                os.read(wake, 4096)
            if control not in ready:
                continue
            received = _receive(control)
            if received is None:
                control.close()
            else:
                self._carry_out(*received)

    def _carry_out(self, order: Order | Preload, descriptors: list[int]) -> None:
        if isinstance(order, Preload):
            order.run()
            # Forks then neither scan these objects nor copy their pages.
            gc.freeze()
            with suppress(OSError):  # the caller has ended
                self._control.sendall(LOADED)
        elif "branch" in order:
            control, output, exit_status = descriptors
            name = order["branch"]
            pid = self._fork(
                lambda: self._become_branch(name, control, output, exit_status), output
            )
            if pid > 0:
                self._branches[pid] = os.dup(exit_status)
        else:
            fork_order = order
            self._fork(lambda: _become_reaper(fork_order, *descriptors), descriptors[3])
        for descriptor in descriptors:
            os.close(descriptor)

    def _fork(self, become: Callable[[], None], output: int) -> int:
        """Run `become` in a child; its process id, -1 where the system allows none."""
        try:
            child = os.fork()
        except OSError as error:
            os.write(output, f"no process can be forked: {error}\n".encode())
            return -1
        if child == 0:
            code = 1
            try:
                self._release()
                become()
                code = 0
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                # Skips the interpreter's shutdown: threads of a library must not keep a worker
                # alive.
                os._exit(code)
        return child

    def _release(self) -> None:
        """In a fork: give up what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (*self._wake, self._control.fileno(), *self._branches.values()):
            os.close(descriptor)
        self._control.detach()
        os.setsid()

    def _become_branch(self, name: str, control: int, output: int, exit_status: int) -> None:
        """Serve another socket in this fork, which ends with its server."""
        server = os.getppid()
        die_with_parent()
        if os.getppid() != server:
            return
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        os.close(exit_status)
        ForkServerProcess(socket.socket(fileno=control), name).serve()

    def _collect(self) -> bool:
        """Collect ended children, and kill what is left of those that were killed.

        Returns whether any lives.
        """
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:
                return False
            if ended is None:
                return True
            if ended.si_code != os.CLD_EXITED:
                # Until it is collected, no other session can have its number.
                kill_session(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            exit_status = self._branches.pop(ended.si_pid, -1)
            if exit_status >= 0:
                with suppress(OSError):
                    os.write(exit_status, EXIT_STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(exit_status)


def _receive(control: socket.socket) -> tuple[Order | Preload, list[int]] | None:
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


def _become_reaper(
    order: ForkOrder, requests: int, replies: int, lifeline: int, output: int, exit_status: int
) -> None:
    """Run the reaper and, in a fork of it, the worker; returns when either is done."""
    set_name(order["name"])
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    for variable, value in order["environment"].items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    process_folders.use_for_temporary_files(order["scratch"])
    adopt_orphans()
    reaper = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(lifeline)
        os.close(exit_status)
        gc.enable()
        work(requests, replies, reaper, order["name"])
    else:
        os.close(requests)
        os.close(replies)
        supervise(worker, lifeline, exit_status, order["scratch"])


if __name__ == "__main__":
    main(sys.argv[1:])
    # Skips the interpreter's shutdown, which takes a third of a second once torch is loaded.
    os._exit(0)
