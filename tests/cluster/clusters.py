"""A private Ray cluster of several nodes on this machine.

It shares nothing with another Ray: it has its own ports, token and temporary folders, and ends only
its own processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hosts import Network
from processes import LIMIT_S, alive, below, named, wait_until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@dataclass
class Node:
    """A `ray start --block` and all processes below it."""

    name: str
    process: subprocess.Popen[bytes]

    def has(self, worker: str) -> bool:
        """Whether this builder or runner is on this node."""
        return bool(named(self.process.pid, worker))

    def kill(self) -> None:
        """Kill all processes at once, as a power failure does."""
        family = [self.process.pid, *below(self.process.pid)]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not any(map(alive, family)))


@dataclass
class Cluster:
    """Nodes with a private token; a context manager.

    network: where each node is a host of its own; by default all are on this machine.
    """

    network: Network | None = None
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="rc", dir="/tmp")))
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    nodes: dict[str, Node] = field(default_factory=dict)
    gcs_port: int = 0
    dashboard_port: int = 0
    client_port: int = 0

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        for node in reversed(self.nodes.values()):
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self) -> str:
        return f"{self.network.hosts['head'] if self.network else '127.0.0.1'}:{self.gcs_port}"

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that may connect."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "TUNER_"))}
        return {
            **kept,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
        }

    @property
    def shared(self) -> Path:
        """A folder that all nodes share."""
        folder = self.folder / "shared"
        folder.mkdir(exist_ok=True)
        return folder

    def head(
        self, *, cpus: int, replaced: Mapping[Path, Path] | None = None, **variables: str
    ) -> Node:
        """Start the first node, with a dashboard that takes jobs and a port for `ray://`.

        replaced, variables: as for `add`.
        """
        self.gcs_port, self.dashboard_port, self.client_port = free_ports(3)
        options = [
            "--head",
            f"--port={self.gcs_port}",
            "--include-dashboard=true",
            f"--dashboard-port={self.dashboard_port}",
            f"--ray-client-server-port={self.client_port}",
        ]
        return self._start("head", options, cpus, 0, bound(replaced), variables)

    def add(
        self,
        name: str,
        *,
        cpus: int,
        gpus: int = 0,
        blind: Sequence[Path] = (),
        disk: str = "",
        replaced: Mapping[Path, Path] | None = None,
        **variables: str,
    ) -> Node:
        """Start another node.

        gpus: the number that Ray is given. blind: folders that are empty on the node, besides the
        head's. disk: options of a file system of its own for temporary files, as
        `size=64m,nr_inodes=9k`. replaced: files and folders in whose place it has others.
        variables: of its environment.
        """
        options = [f"--address={self.address}"]
        mounts = {folder: "-t tmpfs none" for folder in [*blind, self.folder / "head"]}
        mounts |= bound(replaced)
        if disk:
            (self.folder / name).mkdir()
            mounts[self.folder / name] = f"-t tmpfs -o {disk} none"
            variables = {"TMPDIR": str(self.folder / name), **variables}
        return self._start(name, options, cpus, gpus, mounts, variables)

    def _start(
        self,
        name: str,
        options: Sequence[str],
        cpus: int,
        gpus: int,
        mounts: Mapping[Path, str],
        variables: Mapping[str, str],
    ) -> Node:
        if self.network is not None:
            options = [*options, f"--node-ip-address={self.network.add(name)}"]
        command = [
            str(BIN / "ray"),
            "start",
            "--block",
            "--disable-usage-stats",
            f"--node-name={name}",
            f"--num-cpus={cpus}",
            f"--num-gpus={gpus}",
            f"--object-store-memory={80 * 2**20}",
            f"--temp-dir={self.folder / name}",
            # The default is a fixed port, which another Ray of this machine may use.
            f"--dashboard-agent-listen-port={free_ports(1)[0]}",
            *options,
        ]
        path = self.folder / f"{name}.log"
        own = {"RAY_worker_niceness": "0", "TMPDIR": str(self.folder)}
        command = with_mounts(command, mounts)
        with path.open("wb") as log:
            process = subprocess.Popen(
                command if self.network is None else self.network.place(name, command),
                env={**self.environment, **own, **variables},
                cwd="/",
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = self.nodes[name] = Node(name, process)

        def up() -> bool:
            text = path.read_text(errors="replace")
            assert process.poll() is None, text
            return "This command will now block" in text

        wait_until(up)
        return node

    # -- commands ------------------------------------------------------------------------------
    def tuner(
        self, folder: Path, *arguments: str, code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `tuner ...` in a folder, as a user on a machine of the cluster does."""
        done = subprocess.run(
            [sys.executable, "-m", "tuner", *arguments],
            cwd=folder,
            env={**self.environment, "TUNER__POOL__ADDRESS": self.address, **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def submit(self, folder: Path, *command: str, runtime_env: str = "{}") -> subprocess.Popen[str]:
        """`ray job submit` of a folder and a command; ends when the job does."""
        where = ["--address", self.dashboard, "--working-dir", str(folder)]
        return subprocess.Popen(
            ["ray", "job", "submit", *where, "--runtime-env-json", runtime_env, "--", *command],
            cwd="/",
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def bound(replaced: Mapping[Path, Path] | None) -> dict[Path, str]:
    return {place: f"--bind {other}" for place, other in (replaced or {}).items()}


def with_mounts(command: list[str], mounts: Mapping[Path, str]) -> list[str]:
    """The command in a mount namespace of its own, if that is allowed.

    mounts: what is at these folders there, in the words of `mount`.
    """
    if not mounts or not _may_unshare():
        return command
    mount = 'while [ "$1" != -- ]; do mount $1 "$2"; shift 2; done; shift'
    places = [word for folder, what in mounts.items() for word in (what, str(folder))]
    return ["unshare", "--mount", "sh", "-ec", f'{mount}; exec "$@"', "sh", *places, "--", *command]


@cache
def _may_unshare() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
