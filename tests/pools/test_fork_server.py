from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from processes import LIMIT_S, alive, below, forked, kill, named, process_name, wait_until

from workers.processes.fork_server import ForkServer
from workers.processes.preload import Call, Preload, Step, Variable
from workers.processes.supervised_child import ChildDied, SupervisedChild

NAME = "forked-3"
PATHS = (str(Path(__file__).parent),)


@pytest.fixture
def servers() -> Iterator[list[ForkServer]]:
    made: list[ForkServer] = []
    yield made
    for server in made:
        server.close()
    assert not named(os.getpid(), NAME)


def server_with(servers: list[ForkServer], *steps: Step | str, shared: bool = False) -> ForkServer:
    preload = Preload.of(*steps)
    servers.append(ForkServer(NAME, paths=PATHS, preload=preload, shared=shared))
    return servers[-1]


def call(function: str, *arguments: str, beside: bool = False) -> Call:
    return Call("child_targets", function, arguments, beside=beside)


def child_of(server: ForkServer) -> SupervisedChild:
    return SupervisedChild("child_targets:Target", paths=PATHS, name=NAME, server=server)


def test_children_have_the_modules_that_their_server_loaded_once(servers):
    server = server_with(servers, call("load"))
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
    server = server_with(servers, "no_such_module", call("fail_to_load"), call("x"))
    child = child_of(server)
    assert child.request("echo", 1, timeout_s=LIMIT_S) == 1
    child.retire()


def test_a_server_that_dies_while_it_loads_is_named_with_its_last_line(servers):
    child = child_of(server_with(servers, call("load_and_die")))
    with pytest.raises(ChildDied, match="SIGSEGV") as death:
        child.start()
    assert death.value.last_line == "no such library"
    assert child.pid is None


@pytest.mark.parametrize("killed", [False, True])
def test_children_share_a_folder_that_goes_with_their_server(
    servers, tmp_path, monkeypatch, killed
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = server_with(servers, shared=True)
    branch = server.branch(f"{NAME}-b", Preload())
    first, second = child_of(server), child_of(branch)
    other = child_of(server_with(servers, shared=True))
    folder = Path(first.request("share", timeout_s=LIMIT_S))
    assert folder.stat().st_mode & 0o777 == 0o700
    first.retire()
    assert second.request("share", timeout_s=LIMIT_S) == f"{folder}"
    assert other.request("share", timeout_s=LIMIT_S) != f"{folder}"
    assert len(list(folder.iterdir())) == 2
    if killed:
        before = server.pid
        assert before is not None
        kill(before)
        wait_until(lambda: not alive(before))
        first = child_of(server)
        assert first.request("share", timeout_s=LIMIT_S) == f"{folder}"
        first.retire()
    for child in (second, other):
        child.retire()
    for made in (branch, *servers):
        made.close()
    assert not list(tmp_path.iterdir())


def test_retiring_a_child_interrupts_a_server_that_loads_for_ever(servers):
    server = server_with(servers, call("load_for_ever"))
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


def test_a_branch_has_what_its_server_loaded_and_more(servers):
    server = server_with(servers, call("add_loaded", "1"))
    more = Preload.of(Variable("TUNER_TEST_LOADED", "2"), call("load_variable"))
    branch = server.branch(f"{NAME}-b", more)
    of_branch, of_server = child_of(branch), child_of(server)
    assert of_branch.request("loaded_in", timeout_s=LIMIT_S) == [1, 2]
    assert of_server.request("loaded_in", timeout_s=LIMIT_S) == [1]
    of_branch.retire()
    of_server.retire()
    branch.close()


@pytest.mark.parametrize("killed", [NAME, f"{NAME}-b"])
def test_a_killed_server_or_branch_is_replaced_and_its_children_live_on(servers, killed):
    kept = set(forked(os.getpid()))  # by a pool that an earlier test in this process kept warm
    server = server_with(servers, call("add_loaded", "1"))
    branch = server.branch(f"{NAME}-b", Preload.of(call("add_loaded", "2")))
    first, second = child_of(branch), child_of(branch)
    assert first.request("loaded_in", timeout_s=LIMIT_S) == [1, 2]
    victim = next(
        pid for pid in forked(os.getpid()) if process_name(pid) == killed and pid != first.pid
    )
    kill(victim)
    wait_until(lambda: not alive(victim))
    assert first.alive
    assert first.request("echo", 1, timeout_s=LIMIT_S) == 1
    assert second.request("loaded_in", timeout_s=LIMIT_S) == [1, 2]
    first.retire()
    assert second.request("echo", 2, timeout_s=LIMIT_S) == 2
    second.retire()
    branch.close()
    server.close()
    assert set(forked(os.getpid())) <= kept


def test_children_see_what_the_environment_is_when_they_start(servers, monkeypatch):
    monkeypatch.setenv("HOME", "/before")
    monkeypatch.setenv("TUNER_TEST", "set before")
    server = server_with(servers)
    server.start()
    monkeypatch.setenv("HOME", "/after")
    monkeypatch.delenv("TUNER_TEST")
    child = child_of(server)
    facts = child.request("facts", timeout_s=LIMIT_S)
    assert (facts["home"], facts["variable"]) == ("/after", None)
    child.retire()


def test_the_end_of_one_child_does_not_interrupt_a_shared_server(servers, tmp_path):
    gate = tmp_path / "gate"
    steps = call("wait_for_file", f"{gate}"), call("add_loaded", "1")
    server = server_with(servers, *steps, shared=True)
    first, second = child_of(server), child_of(server)
    starters = [threading.Thread(target=lambda c=c: _ends(c)) for c in (first, second)]
    starters[0].start()
    wait_until(lambda: bool(named(os.getpid(), NAME)))
    loading = server.pid
    first.begin_kill()
    starters[1].start()
    gate.touch()
    for starter in starters:
        starter.join()
    wait_until(lambda: not first.alive)
    assert second.request("loaded_in", timeout_s=LIMIT_S) == [1]
    assert server.pid == loading
    second.retire()


def _ends(child: SupervisedChild) -> None:
    with suppress(ChildDied):
        child.start()


def test_steps_beside_others_are_done_before_the_next_fork(servers, tmp_path):
    gate = tmp_path / "gate"
    server = server_with(
        servers,
        call("add_after", f"{gate}", beside=True),
        call("add_loaded", "1"),
        call("touch", f"{gate}"),
    )
    child = child_of(server)
    assert child.request("loaded_in", timeout_s=LIMIT_S) == [1, 2]
    assert server.pid is not None
    assert len(os.listdir(f"/proc/{server.pid}/task")) == 1
    child.retire()
