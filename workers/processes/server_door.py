"""The fork servers of one process, for others on its machine, which get branches of them.

A local Ray starts its actors late. The libraries of their workers are loaded by then, in servers
of the driver. A branch belongs to the actor that asked for it and ends with it or with the driver.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from workers.processes.fork_server import ForkServer
from workers.processes.pool_servers import PoolServers
from workers.processes.preload import Step, WorkerRole

#: Control socket, output and exit status of a branch.
_DESCRIPTORS = 3
_MOST_BYTES = 4096


class ServerDoor:
    """A socket at which other processes ask for branches. Its folder is to be private."""

    def __init__(self, servers: PoolServers, path: Path) -> None:
        self._servers, self.path = servers, str(path)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, name="server door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more. Branches live on."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        os.unlink(self.path)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # it is closed
                return
            with connection, suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        asked, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, _DESCRIPTORS)
        try:
            if len(descriptors) == _DESCRIPTORS:
                role, kind, name = json.loads(asked)
                server = self._servers.find(WorkerRole(role), kind)
                environ = server.order_branch(name, descriptors)
                connection.sendall(json.dumps(environ).encode())
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


class DistantServers:
    """Branches of the servers of another process, by the path of its door."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._of: dict[tuple[WorkerRole, str], ForkServer] = {}

    def find(self, role: WorkerRole, kind: str = "") -> ForkServer:
        """As `PoolServers.find`."""
        if (role, kind) not in self._of:
            trunk = _DistantServer(self._path, role, kind)
            self._of[role, kind] = ForkServer(f"{kind} {role}".strip(), shared=True, trunk=trunk)
        return self._of[role, kind]

    def close(self) -> None:
        """End the branches after their workers."""
        for server in self._of.values():
            server.close()


class _DistantServer:
    """The trunk of such a branch."""

    def __init__(self, path: str, role: WorkerRole, kind: str) -> None:
        self._path, self._role, self._kind = path, role, kind

    def order_branch(self, name: str, descriptors: Sequence[int]) -> dict[str, str]:
        asked = json.dumps([self._role, self._kind, name]).encode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            socket.send_fds(connection, [asked], list(descriptors))
            with connection.makefile("rb") as answer:
                received = answer.read()
        if not received:
            raise ConnectionError("the driver's fork server cannot be started")
        environ: dict[str, str] = json.loads(received)
        return environ

    def loads(self, _step: Step) -> bool:
        return False

    def exit_report(self) -> None:
        """Unknown here."""
