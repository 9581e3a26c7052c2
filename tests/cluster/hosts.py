"""Hosts of a cluster on one machine: network namespaces that a bridge connects."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache


@dataclass
class Network:
    """Hosts with addresses of their own; a context manager. The machine has the first address."""

    #: Part of the names of its devices, which have at most fifteen letters.
    name: str = field(default_factory=lambda: f"t{random.randrange(36**4):04x}"[:6])
    #: The first three numbers of all addresses.
    prefix: str = field(
        default_factory=lambda: f"10.{random.randrange(64, 250)}.{random.randrange(1, 250)}"
    )
    hosts: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Network:
        _ip("link", "add", self.name, "type", "bridge")
        _ip("addr", "add", f"{self.prefix}.1/24", "dev", self.name)
        _ip("link", "set", self.name, "up")
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self.hosts:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._space(host))
        _ip("link", "del", self.name)

    def add(self, host: str) -> str:
        """Add a host; its address."""
        number = len(self.hosts) + 2
        self.hosts[host] = f"{self.prefix}.{number}"
        space, outside = self._space(host), self._link(host)
        _ip("netns", "add", space)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outside, "master", self.name, "up")
        inside = ("-n", space)
        _ip(*inside, "addr", "add", f"{self.hosts[host]}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "link", "set", "lo", "up")
        return self.hosts[host]

    def place(self, host: str, command: Sequence[str]) -> list[str]:
        """The command on a host."""
        return ["ip", "netns", "exec", self._space(host), *command]

    def cut(self, host: str) -> None:
        """No packet reaches the host, or leaves it."""
        _ip("link", "set", self._link(host), "down")

    def mend(self, host: str) -> None:
        _ip("link", "set", self._link(host), "up")

    def slow_down(self, host: str, rate: str) -> None:
        """Limit what reaches the host, such as `2mbit` per second."""
        limit = ("rate", rate, "burst", "64kbit", "latency", "400ms")
        add = ["tc", "qdisc", "add", "dev", self._link(host), "root", "tbf", *limit]
        subprocess.run(add, check=True, capture_output=True)

    def _space(self, host: str) -> str:
        return f"{self.name}-{host}"

    def _link(self, host: str) -> str:
        return f"{self.name}v{[*self.hosts].index(host)}"


@cache
def may_make_hosts() -> bool:
    """Whether this process may make network namespaces, and packets pass between two of them."""
    server = "import socket; s = socket.create_server(('', 7007)); print(flush=True); s.accept()"
    try:
        with Network() as network:
            address = network.add("one")
            network.add("two")
            command = network.place("one", [sys.executable, "-c", server])
            with subprocess.Popen(command, stdout=subprocess.PIPE) as listening:
                assert listening.stdout is not None
                listening.stdout.readline()
                call = f"import socket; socket.create_connection(('{address}', 7007), 10)"
                try:
                    subprocess.run(
                        network.place("two", [sys.executable, "-c", call]),
                        check=True, capture_output=True, timeout=60,
                    )  # fmt: skip
                finally:
                    listening.kill()
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _ip(*arguments: str) -> None:
    try:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise
