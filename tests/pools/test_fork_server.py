from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import alive, below, kill, named, wait_until

from workers.supervision.fork_server import ForkServer
from workers.supervision.supervised_child import ChildDied, SupervisedChild

LIMIT_S = 30.0
NAME = "forked-3"
PATHS = (str(Path(__file__).parent),)


@pytest.fixture
def servers() -> Iterator[list[ForkServer]]:
    made: list[ForkServer] = []
    yield made
    for server in made:
        server.close()
    assert not named(os.getpid(), NAME)


def server_with(servers: list[ForkServer], *preload: str) -> ForkServer:
    servers.append(ForkServer(NAME, paths=PATHS, preload=preload))
    return servers[-1]


def child_of(server: ForkServer) -> SupervisedChild:
    return SupervisedChild("child_targets:Target", paths=PATHS, name=NAME, server=server)


def test_children_have_the_modules_that_their_server_loaded_once(servers):
    server = server_with(servers, "child_targets:load")
    first, second = child_of(server), child_of(server)
    for child in (first, second):
        assert child.request("loaded_in", timeout_s=LIMIT_S) == [server.pid]
    with pytest.raises(ChildDied):
        first.request("leave", 3, timeout_s=LIMIT_S)
    assert first.request("loaded_in", timeout_s=LIMIT_S) == [server.pid]
    first.retire()
    assert second.request("echo", 1, timeout_s=LIMIT_S) == 1
    second.retire()


def test_a_preload_that_fails_is_left_to_the_children(servers):
    server = server_with(servers, "no_such_module", "child_targets:fail_to_load", "child_targets:x")
    child = child_of(server)
    assert child.request("echo", 1, timeout_s=LIMIT_S) == 1
    child.retire()


def test_a_server_that_dies_while_it_loads_is_named_with_its_last_line(servers):
    child = child_of(server_with(servers, "child_targets:load_and_die"))
    with pytest.raises(ChildDied, match="SIGSEGV") as death:
        child.start()
    assert death.value.last_line == "no such library"
    assert child.pid is None


def test_a_killed_server_is_replaced_and_its_children_live_on(servers):
    server = server_with(servers)
    first, second = child_of(server), child_of(server)
    first.start()
    before = server.pid
    assert before is not None
    kill(before)
    wait_until(lambda: not alive(before))
    assert first.alive
    assert first.request("echo", 1, timeout_s=LIMIT_S) == 1
    assert second.request("echo", 2, timeout_s=LIMIT_S) == 2
    assert server.pid not in (None, before)
    pid = first.pid
    assert pid is not None
    first.retire()
    assert not alive(pid)
    second.retire()


def test_retiring_a_child_interrupts_a_server_that_loads_for_ever(servers):
    server = server_with(servers, "child_targets:load_for_ever")
    child = child_of(server)
    ends: list[str] = []

    def start() -> None:
        try:
            child.start()
        except ChildDied as death:
            ends.append(death.exit_status)

    starter = threading.Thread(target=start)
    starter.start()
    wait_until(lambda: bool(named(os.getpid(), NAME)))
    child.retire()
    starter.join()
    assert ends == ["SIGKILL"]


def test_the_server_kills_the_process_group_of_a_killed_reaper(servers):
    server = server_with(servers)
    child = child_of(server)
    child.start()
    assert child.pid is not None
    family = below(os.getpid())
    _, reaper, worker = named(os.getpid(), NAME)
    spawned = child.request("spawn_near", timeout_s=LIMIT_S)
    kill(reaper)
    wait_until(lambda: not any(map(alive, (reaper, worker, spawned))))
    assert not child.alive
    assert server.pid in family
    child.retire()


def test_a_server_can_be_closed_twice_and_used_again(servers):
    server = server_with(servers)
    server.close()
    child = child_of(server)
    child.start()
    child.close()
    server.close()
    server.close()
    assert server.pid is None
    assert child.request("echo", 1, timeout_s=LIMIT_S) == 1
    child.retire()
