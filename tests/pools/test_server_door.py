"""Processes that fork their workers from the servers of another process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import LIMIT_S, alive, below, wait_until

from workers.processes.fork_server import ForkServer
from workers.processes.preload import Call, Preload, WorkerRole
from workers.processes.server_door import DistantServers, ServerDoor
from workers.processes.supervised_child import ChildDied, SupervisedChild

HERE = str(Path(__file__).parent)
#: Another process: it prints the process in which its worker's libraries were loaded, and its pid.
OTHER = """
import sys
from workers.processes.preload import WorkerRole
from workers.processes.server_door import DistantServers
from workers.processes.supervised_child import SupervisedChild

server = DistantServers(sys.argv[1]).find(WorkerRole.RUNNER, "cpu")
child = SupervisedChild("child_targets:Target", paths=(sys.argv[2],), name="distant", server=server)
print(*child.request("loaded_in", timeout_s=60.0), child.pid, flush=True)
child.request("hang", timeout_s=600.0)
"""


@pytest.fixture
def trunk() -> Iterator[ForkServer]:
    preload = Preload.of(Call("child_targets", "load"))
    server = ForkServer("trunk", paths=(HERE,), preload=preload, shared=True)
    yield server
    server.close()


@pytest.fixture
def door(trunk: ForkServer) -> Iterator[ServerDoor]:
    servers = SimpleNamespace(find=lambda role, kind: trunk)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        door = ServerDoor(servers, Path(folder, "door"))
        yield door
        door.close()


def test_a_worker_has_the_libraries_of_the_server_and_the_environment_of_its_owner(
    trunk, door, monkeypatch
):
    trunk.start()
    monkeypatch.setenv("TUNER_TEST", "7")
    distant = DistantServers(door.path)
    server = distant.find(WorkerRole.STANDBY, "cpu")
    assert server is distant.find(WorkerRole.STANDBY, "cpu")
    child = SupervisedChild("child_targets:Target", paths=(HERE,), name="distant", server=server)
    assert child.request("loaded_in", timeout_s=LIMIT_S) == [trunk.pid]
    assert child.request("facts", timeout_s=LIMIT_S)["variable"] == "7"
    child.retire()
    distant.close()


def test_workers_end_with_a_killed_owner_and_the_server_goes_on(trunk, door):
    command = [sys.executable, "-c", OTHER, door.path, HERE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        loaded_in, pid = map(int, other.stdout.readline().split())
        assert loaded_in == trunk.pid
        branch = below(trunk.pid)
        assert pid in branch
        other.kill()
    wait_until(lambda: not any(map(alive, branch)))
    assert trunk.alive


def test_a_door_that_is_gone_is_reported(tmp_path):
    server = DistantServers(f"{tmp_path}/none").find(WorkerRole.BUILDER)
    child = SupervisedChild("child_targets:Target", paths=(HERE,), name="distant", server=server)
    with pytest.raises((ChildDied, OSError)):
        child.request("echo", 1, timeout_s=LIMIT_S)
