from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_backend import state_of
from processes import LIMIT_S, alive, below, child_of, kill, named, wait_until

from search_spaces.errors import KernelError
from workers.processes.heartbeat import heartbeat, sent_by
from workers.processes.supervised_child import (
    ChildDied,
    ChildError,
    ChildTimeout,
)


@pytest.fixture
def child():
    made = child_of("child_targets:Target", {"greeting": "hello"}, name="tested")
    yield made
    made.retire()


def test_a_child_answers_in_another_process_and_leaves_nothing(child):
    facts = child.request("facts", timeout_s=LIMIT_S)
    assert facts["greeting"] == "hello"
    assert facts["exists"] is True
    assert facts["pid"] == child.pid != os.getpid()
    child.close()
    assert child.pid is None
    assert not Path(facts["cache_dir"]).exists()
    assert child.request("facts", timeout_s=LIMIT_S)["pid"] != facts["pid"]


def test_a_child_starts_no_pool_of_its_own(child):
    with pytest.raises(ChildError, match="a worker process starts a pool") as caught:
        child.request("start_a_pool", timeout_s=LIMIT_S)
    assert '`if __name__ == "__main__":`' in caught.value.error.hint


def test_environment_priority_and_folder_are_set_for_the_child(tmp_path):
    child = child_of(
        "child_targets:Target",
        environment=lambda cache: {"TUNER_TEST": str(cache), "HOME": None},
        cwd=str(tmp_path),
        nice=5,
    )
    facts = child.request("facts", timeout_s=LIMIT_S)
    child.retire()
    assert facts["variable"] == facts["cache_dir"]
    assert facts["home"] is None
    assert facts["cwd"] == str(tmp_path)
    assert facts["nice"] == os.nice(0) + 5


def test_the_processors_are_those_given():
    core = max(os.sched_getaffinity(0))
    child = child_of("child_targets:Target", cores=frozenset({core}))
    facts = child.request("facts", timeout_s=LIMIT_S)
    child.retire()
    assert facts["cores"] == {core}


def test_the_last_heartbeat_names_the_activity_of_a_child_that_died(child):
    assert child.request("work", ["one", "tw\udc80"], 0.0, timeout_s=LIMIT_S) == 2
    assert child.last_activity == "tw?"
    with pytest.raises(ChildDied) as death:
        child.request("work", ["three", "four"], 0.0, "die", timeout_s=LIMIT_S)
    assert (death.value.exit_status, death.value.last_activity) == ("SIGSEGV", "four")
    with pytest.raises(ChildTimeout) as hang:
        child.request("work", ["five"], 0.0, "hang", timeout_s=LIMIT_S, max_silence_s=0.5)
    assert (hang.value.limit_s, hang.value.last_activity) == (0.5, "five")
    assert hang.value.silent_s >= 0.5
    with pytest.raises(ChildDied) as death:
        child.request("signal", signal.SIGKILL, timeout_s=LIMIT_S)
    assert death.value.last_activity == ""


def test_a_child_that_is_silent_after_a_heartbeat_hangs(child):
    with pytest.raises(ChildTimeout, match=r"sign of life for 0\.3 s"):
        child.request("work", ["a"], 0.0, "hang", timeout_s=LIMIT_S, max_silence_s=0.3)
    # Without a first heartbeat there is no limit on silence.
    assert child.request("work", [""], 0.6, timeout_s=LIMIT_S, max_silence_s=0.1) == 1
    with pytest.raises(ChildTimeout, match=r"answer within 0\.3 s"):
        child.request("hang", timeout_s=0.3, max_silence_s=0.1)


def test_silence_may_be_limited_after_some_activities_only(child):
    limits = {"timeout_s": LIMIT_S, "max_silence_after": {"candidate": 0.2, "check": 0.2}}
    assert child.request("work", ["baseline eager"], 0.8, **limits) == 1
    for last in ("candidate 3", "check"):
        with pytest.raises(ChildTimeout, match=r"sign of life for 0\.2 s") as hang:
            child.request("work", ["baseline eager", last], 0.0, "hang", **limits)
        assert hang.value.last_activity == last
    limits["max_silence_after"] |= {"baseline": 0.4}
    with pytest.raises(ChildTimeout, match=r"sign of life for 0\.4 s"):
        child.request("work", ["baseline eager"], 0.0, "hang", **limits)


def test_heartbeats_of_forks_and_after_the_reply_disturb_nothing(child):
    for value in range(20):
        child.request("heartbeat_elsewhere", timeout_s=LIMIT_S)
        assert "forked" not in child.last_activity
        assert child.request("echo", value, timeout_s=LIMIT_S) == value


@settings(max_examples=30)
@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists, max_leaves=20))
def test_values_survive_the_round_trip(shared_child, value):
    assert shared_child.request("echo", value, timeout_s=LIMIT_S) == value


@pytest.fixture(scope="module")
def shared_child():
    made = child_of("child_targets:Target")
    yield made
    made.close()


def test_messages_larger_than_any_pipe(child):
    value = os.urandom(5_000_000)
    assert child.request("echo", value, timeout_s=LIMIT_S) == value


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_crash_is_named_and_logged_and_the_next_request_has_a_new_child(child, number, caplog):
    caplog.set_level(logging.INFO, "workers.processes")
    with pytest.raises(ChildDied) as death:
        child.request("signal", number, "first\nthe cause", timeout_s=LIMIT_S)
    assert death.value.exit_status == number.name
    assert death.value.last_line == "the cause"
    assert f"tested died ({number.name}) (last activity: none): the cause" in caplog.text
    assert child.request("echo", 1, timeout_s=LIMIT_S) == 1


def test_an_exit_code_is_named(child):
    with pytest.raises(ChildDied) as death:
        child.request("leave", 3, timeout_s=LIMIT_S)
    assert death.value.exit_status == "exit code 3"


def test_a_hang_is_killed_with_its_descendants(child):
    first = child.request("facts", timeout_s=LIMIT_S)
    child.request("ignore_signals", timeout_s=LIMIT_S)
    detached = child.request("spawn", timeout_s=LIMIT_S)
    assert alive(detached)
    with pytest.raises(ChildTimeout):
        child.request("hang", timeout_s=0.3)
    assert not alive(detached)
    assert not alive(first["pid"])
    assert not Path(first["cache_dir"]).exists()
    assert child.request("echo", 1, timeout_s=LIMIT_S) == 1


def test_exceptions_arrive_with_their_text(child):
    with pytest.raises(ChildError) as caught:
        child.request("fail", timeout_s=LIMIT_S)
    assert isinstance(caught.value.error, KernelError)
    assert caught.value.error.hint == "name another"
    assert "child_targets.py" in caught.value.trace
    with pytest.raises(ChildError, match="no_such_method"):
        child.request("no_such_method", timeout_s=LIMIT_S)


def test_an_unpicklable_value_is_an_error_and_no_death(child):
    pid = child.request("facts", timeout_s=LIMIT_S)["pid"]
    for method in ("fail_unpicklably", "answer_unpicklably"):
        with pytest.raises(ChildError):
            child.request(method, timeout_s=LIMIT_S)
    assert child.request("facts", timeout_s=LIMIT_S)["pid"] == pid


def test_megabytes_of_binary_output_disturb_nothing_and_are_cut(child):
    assert child.request("shout", 4 << 20, timeout_s=LIMIT_S) == 4 << 20
    printed = "\x1b[31m" + "x" * 100_000 + "\0\xff\rthe end"
    with pytest.raises(ChildDied) as death:
        child.request("signal", signal.SIGKILL, printed, timeout_s=LIMIT_S)
    assert len(death.value.output) < 40_000
    assert death.value.last_line == "the end"
    assert "\x1b" not in death.value.output


def test_an_object_that_cannot_be_created_is_an_error_at_the_first_request():
    child = child_of("child_targets:Broken")
    with pytest.raises(ChildError, match="cannot be made"):
        child.request("echo", 1, timeout_s=LIMIT_S)
    assert child.pid is None
    with pytest.raises(ChildError, match="no_such_module"):
        child_of("no_such_module:Thing").start()
    with pytest.raises(ChildDied, match="SIGKILL"):
        child_of("child_targets:DeadOnArrival").start()


@pytest.mark.parametrize("killed", ["server", "reaper", "worker"])
def test_whichever_process_is_killed_the_others_end_too(child, killed):
    child.start()
    server, reaper, worker = named(os.getpid(), "tested")
    assert worker == child.pid
    kill({"server": server, "reaper": reaper, "worker": worker}[killed])
    if killed != "server":  # without its server a child still answers
        with pytest.raises(ChildDied):
            child.request("hang", timeout_s=LIMIT_S)
    child.retire()
    wait_until(lambda: not any(map(alive, (server, reaper, worker))))


def test_retiring_interrupts_a_request_for_good(child):
    child.start()
    timer = threading.Timer(0.2, child.retire)
    timer.start()
    with pytest.raises(ChildDied):
        child.request("hang", timeout_s=LIMIT_S)
    timer.join()
    with pytest.raises(ChildDied, match="retired"):
        child.request("echo", 1, timeout_s=LIMIT_S)


_DRIVER = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from workers.processes.supervised_child import SupervisedChild
from workers.processes.fork_server import ForkServer
server = ForkServer("orphan", shared=True)
child = SupervisedChild("child_targets:Target", name="orphan", server=server)
# Started by a thread that ends: a child belongs to the process, not to the thread.
starter = threading.Thread(target=child.start)
starter.start(); starter.join()
facts = child.request("facts", timeout_s=200)
child.request("leave_files", timeout_s=200)
child.request("share", timeout_s=200)
spawned = [child.request(name, timeout_s=200) for name in ("spawn", "spawn_near")]
if sys.argv[2] == "suspended":
    child.suspend()
print(*spawned, facts["pid"], facts["cache_dir"], flush=True)
child.request("hang", timeout_s=600)
"""


@pytest.mark.parametrize("state", ["at work", "suspended"])
def test_a_driver_killed_outright_leaves_no_child_and_no_file_behind(tmp_path, state):
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, here, state],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as driver:
        assert driver.stdout is not None
        *pids, cache_dir = driver.stdout.readline().split()
        family = below(driver.pid)
        assert {int(pid) for pid in pids} <= set(family)
        if state == "suspended":
            wait_until(lambda: all(state_of(pid) == "T" for pid in pids[1:]))
        driver.kill()
    wait_until(lambda: not any(map(alive, family)))
    wait_until(lambda: not Path(cache_dir).exists())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["hang", "leave", "close"])
def test_temporary_files_go_with_their_child(child, tmp_path, monkeypatch, end):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = child.request("leave_files", timeout_s=LIMIT_S)
    (scratch,) = tmp_path.iterdir()
    assert all(Path(path).is_relative_to(scratch) and Path(path).exists() for path in made)
    if end == "hang":
        with pytest.raises(ChildTimeout):
            child.request("hang", timeout_s=0.1)
    elif end == "leave":
        with pytest.raises(ChildDied):
            child.request("leave", 3, timeout_s=LIMIT_S)
    else:
        child.close()
    wait_until(lambda: list(tmp_path.iterdir()) == [])


_STARTING = """
import os, sys
sys.path.insert(0, sys.argv[1])
import workers.processes.child_process
from workers.processes.supervised_child import SupervisedChild
from workers.processes.fork_server import ForkServer

# Ends right after it has ordered its child, which has neither a reaper nor a worker yet.
workers.processes.child_process.CapturedOutput = lambda descriptor: os.kill(os.getpid(), 9)
SupervisedChild("child_targets:Target", name="orphan", server=ForkServer()).start()
"""


def test_a_driver_killed_while_its_child_starts_leaves_no_folder_behind(tmp_path):
    here = str(Path(__file__).parent)
    ended = subprocess.run(
        [sys.executable, "-c", _STARTING, here],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_heartbeat_outside_a_supervised_process_does_nothing():
    sent: list[str] = []
    heartbeat("before")
    with sent_by(sent.append):
        heartbeat("during")
        heartbeat("timing")
        heartbeat("timing")
    heartbeat("after")
    assert sent[:2] == ["during", "timing"]
    assert "after" not in sent
