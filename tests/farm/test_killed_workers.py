"""`kill -9` of builders, runners and their children in the middle of their work."""

from __future__ import annotations

import random
import subprocess
from collections import Counter

import pytest
from farms import TRIALS, Farm, assert_sound, crews, kill, outcomes
from processes import wait_until

KILLS = 10


class Killer:
    """Kills at random points of a run's progress, and only who is at work.

    Never the same worker twice in a row: a job that loses its child again and again would be to
    blame by the farm's rules.
    """

    def __init__(self, farm: Farm, driver: subprocess.Popen[str], rng: random.Random) -> None:
        self.farm, self.driver, self.rng = farm, driver, rng
        self.kills: Counter[str] = Counter()
        self._last = ""

    def work(self, victims: list[str]) -> None:
        """victims: `builder` or `simulated`, and `actor` or `child`, as in `builder child`."""
        moments = sorted(self.rng.sample(range(0, TRIALS - 30, 2), len(victims)))
        self.rng.shuffle(victims)
        earliest = 0
        for moment, victim in zip(moments, victims, strict=True):
            moment = max(moment, earliest)
            wait_until(lambda at=moment: self.farm.count() >= at, 100)
            wait_until(lambda who=victim: self._strike(*who.split()), 60)
            earliest = self.farm.count() + 1
            assert self.driver.poll() is None
            self.kills[victim] += 1

    def _strike(self, kind: str, part: str) -> bool:
        found = [crew for crew in crews(self.driver.pid) if crew.name.startswith(kind)]
        self.rng.shuffle(found)
        for crew in found:
            victim = crew.child if part == "child" else crew.supervisor
            if crew.name != self._last and crew.at_work and kill(victim):
                self._last = crew.name
                return True
        return False


def disturbed(farm: Farm, victims: list[str], *, seed: str) -> None:
    with farm.driver() as driver:
        killer = Killer(farm, driver, random.Random(seed))
        killer.work(victims * KILLS)
        assert farm.count() < TRIALS
        farm.ended(driver)
    assert killer.kills == Counter(dict.fromkeys(victims, KILLS))
    assert_sound(farm)
    farm.assert_gone()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["random", "exhaustive", "tpe"])
def test_killed_children_cost_no_trial(tmp_path, undisturbed, strategy):
    farm = Farm(tmp_path / "farm", strategy, builders=3)
    disturbed(farm, ["builder child", "simulated child"], seed=f"{strategy}/local")
    if strategy != "tpe":
        assert outcomes(farm.records()) == undisturbed(strategy)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("strategy", ["random", "exhaustive", "tpe"])
def test_killed_actors_and_their_children_cost_no_trial(tmp_path, undisturbed, strategy):
    farm = Farm(tmp_path / "farm", strategy, pool="ray", builders=3, runners=4)
    victims = ["builder actor", "simulated actor", "simulated child"]
    disturbed(farm, victims, seed=f"{strategy}/ray")
    if strategy != "tpe":
        assert outcomes(farm.records()) == undisturbed(strategy)
