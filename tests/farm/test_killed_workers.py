"""`kill -9` of builders, runners and their children while they work."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from farms import Farm, assert_sound, kill, outcomes, small_space, worker_processes
from processes import wait_until

TRIALS = 180
#: All strategies and pools, not all pairs: a strategy is independent of the pool.
FARMS = (("random", "local"), ("exhaustive", "ray"), ("tpe", "local"))
#: How often each process is killed, in all ten builders and ten runners. The child does the work;
#: an actor, or a thread of the driver, supervises it.
VICTIMS = {
    "local": Counter({"builder child": 10, "simulated child": 10}),
    "ray": Counter({"builder actor": 10, "simulated actor": 5, "simulated child": 5}),
}


class Killer:
    """Kills busy workers at random points of a run's progress.

    It never kills the same worker twice in a row, nor a runner that has stored no trial since: by
    the retry rule a job that loses its child repeatedly is at fault.
    """

    def __init__(self, farm: Farm, driver: subprocess.Popen[str], rng: random.Random) -> None:
        self.farm, self.driver, self.rng = farm, driver, rng
        self.kills: Counter[str] = Counter()
        self._last = ""
        self._stored: dict[str, int] = {}

    def work(self, victims: list[str]) -> None:
        """victims: `builder` or `simulated`, and `actor` or `child`, as in `builder child`."""
        earliest = 0
        for moment, victim in sorted((self._moment(victim), victim) for victim in victims):
            moment = max(moment, earliest)
            wait_until(lambda at=moment: self.farm.count() >= at)
            wait_until(lambda what=victim: self._strike(*what.split()))
            earliest = self.farm.count() + 1
            assert self.driver.poll() is None
            self.kills[victim] += 1

    def _moment(self, victim: str) -> int:
        """The number of stored trials at which the victim is killed.

        Trials end in batches, and the last one is built long before it ends. Builders are therefore
        killed while the first trials end, and no process is killed near the end of the run.
        """
        return self.rng.randrange(0, 40 if victim.startswith("builder") else TRIALS - 100)

    def _strike(self, kind: str, part: str) -> bool:
        found = [one for one in worker_processes(self.driver.pid) if one.name.startswith(kind)]
        self.rng.shuffle(found)
        for worker in found:
            victim = worker.child if part == "child" else worker.supervisor
            stored = self.farm.count(f"worker = '{worker.name}'")
            again = kind == "simulated" and stored <= self._stored.get(worker.name, -1)
            if worker.name != self._last and not again and worker.at_work and kill(victim):
                self._last, self._stored[worker.name] = worker.name, stored
                return True
        return False


def disturbed(folder: Path, strategy: str, pool: str) -> Farm:
    """A finished farm whose workers were killed repeatedly."""
    # Builds and devices are both slow, so that a busy victim is soon found. With builds alone slow,
    # devices would be idle, and the trials would end before the kills.
    slow = {"time_scale": 60.0, "space": small_space(build_s=0.003)}
    farm = Farm(folder, strategy, pool=pool, trials=TRIALS, builders=3, runners=4, **slow)
    victims = VICTIMS[pool]
    with farm.driver() as driver:
        killer = Killer(farm, driver, random.Random(f"{strategy}/{pool}"))
        killer.work(list(victims.elements()))
        assert farm.count() < TRIALS
        farm.ended(driver)
    assert killer.kills == victims
    farm.assert_gone()
    return farm


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "pool"),
    [pytest.param(*farm, marks=pytest.mark.ray if "ray" in farm else ()) for farm in FARMS],
)
def test_killed_workers_cost_no_trial(tmp_path, undisturbed, strategy, pool):
    farm = disturbed(tmp_path / "farm", strategy, pool)
    assert_sound(farm)
    if strategy != "tpe":
        assert outcomes(farm.records()) == undisturbed(strategy, TRIALS)
