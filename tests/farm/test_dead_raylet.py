"""A local Ray whose raylet is killed: the run ends at once, names the cause and can be resumed."""

from __future__ import annotations

import pytest
from farms import SLOW, Farm, assert_sound, kill
from processes import below, title, wait_until


def raylets(driver: int) -> list[int]:
    words = {pid: title(pid).split(" ")[0] for pid in below(driver)}
    return [pid for pid, program in words.items() if program.endswith("/raylet")]


@pytest.mark.ray
def test_a_dead_raylet_ends_the_run_in_one_line_and_the_same_command_resumes(tmp_path):
    farm = Farm(tmp_path / "farm", pool="ray", trials=40, runners=1, faults={}, time_scale=SLOW)
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= 3)
        (raylet,) = raylets(driver.pid)
        assert kill(raylet)
        printed = farm.ended(driver, 1)
    lines = [line for line in printed.splitlines() if line.startswith(("error: ", "hint: "))]
    assert lines[0] == "error: the raylet of the local Ray has died (SIGKILL)"
    assert lines[1].startswith("hint: rerun the same command to resume")
    assert len(lines) == 2
    (run,) = farm.runs()
    assert run.status == "interrupted"
    farm.assert_gone()
    assert farm.count() < 40
    farm.configure(pool="local")  # the kind of pool is no part of a run
    farm.finish_quickly()
    assert_sound(farm)
    farm.assert_gone()
