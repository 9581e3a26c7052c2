"""`kill -9` of a driver that gets results without a pause: it loses less than a second of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sample_data import new_task

from results_db import Store

HERE = Path(__file__).parent
#: Prints every result's number and moment, on a clock that only the driver's looks at it move on.
_DRIVER = """
import itertools, sys
sys.path.insert(0, sys.argv[2])
from test_driver_keeps import Recording, _burst
from results_db import Store
from tuner.campaign.driver import Driver
looks = itertools.count()
moment = 0.0

def clock():
    global moment
    moment = next(looks) * float(sys.argv[3])
    return moment

with Store.open(sys.argv[1]) as store:
    engine = Recording([], builders=1, task_id=1, awaited=4000)
    engine.then = lambda: print(engine.answers, moment, flush=True)
    Driver(engine, _burst(4000), store, run_id=1, clock=clock).run([])
"""


@pytest.mark.parametrize(("heard", "look_s"), [(250, 0.001), (90, 0.01), (40, 0.1)])
def test_a_killed_driver_loses_less_than_a_second_of_results(
    sqlite_url: str, heard: int, look_s: float
) -> None:
    with Store.open(sqlite_url) as store:
        task = new_task(store)
    command = [sys.executable, "-c", _DRIVER, sqlite_url, f"{HERE}", f"{look_s}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        lines = [driver.stdout.readline() for _ in range(heard)]
        os.kill(driver.pid, signal.SIGKILL)
        lines += driver.stdout.read().splitlines()
    assert driver.returncode == -signal.SIGKILL
    printed = [(int(number), float(moment)) for number, moment in map(str.split, lines)]
    with Store.open(sqlite_url) as store:
        stored = {record.number for record in store.trials(task.task_id)}
    end = printed[-1][1]
    assert {number for number, moment in printed if moment <= end - 1.0} <= stored
