"""Threads that are timed: where they run, and how long they wait. In a process of its own each,
because a team's threads stay where they are."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

SOME = len(os.sched_getaffinity(0))
_BEGIN = """
import os
import torch
from workers.measure.timers.thread_team import ThreadTeam

def places():
    threads = map(int, os.listdir("/proc/self/task"))
    return [(frozenset(os.sched_getaffinity(t)), os.getpriority(os.PRIO_PROCESS, t))
            for t in threads]

def preference():
    group = "/proc/self/autogroup"
    session = open(group).read() if os.path.exists(group) else ""
    return os.getpriority(os.PRIO_PROCESS, 0), session

usable, preferred = os.sched_getaffinity(0), preference()
team = ThreadTeam()
"""


def run(code: str) -> list[str]:
    """What a process prints that does this after importing torch."""
    command = [sys.executable, "-c", _BEGIN + textwrap.dedent(code)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(SOME < 2, reason="one processor has no place for a second thread")
def test_threads_of_a_team_have_a_processor_each_until_it_is_left():
    found = run("""
        for threads in (2, 1, 2):
            torch.set_num_threads(threads)
            team.enter()
            torch.ones(10**6).add_(1)
            own = os.sched_getaffinity(0)
            print(len(own), len({p for p, _ in places() if len(p) == 1}))
        team.leave()
        print(os.sched_getaffinity(0) == usable, preference() == preferred)
    """)
    assert found[0] == "1 2"
    assert found[1].split()[0] == f"{SOME}"
    assert found[2:] == ["1 2", "True True"]


def test_a_team_larger_than_the_machine_shares_its_processors():
    found = run("""
        torch.set_num_threads(len(usable) + 3)
        team.enter()
        print(team.waited_us() >= 0, os.sched_getaffinity(0) <= usable)
        team.leave()
    """)
    assert found == ["True True"]


def test_threads_that_share_a_processor_are_known_to_wait():
    found = run("""
        import threading
        os.sched_setaffinity(0, {min(usable)})
        team = ThreadTeam()
        torch.set_num_threads(1)
        print(team.waited_us())
        team.enter()
        busy = os.fork()
        while busy == 0:
            os.getppid() == 1 and os._exit(0)
        while not team.waited_us():
            pass
        os.kill(busy, 9)
        before = team.waited_us()
        team.leave()
        print(before > 0, team.waited_us())
    """)
    assert found == ["0.0", "True 0.0"]
