"""`kill -9` of builders, runners and their children in the middle of their work."""

from __future__ import annotations

import random
import subprocess
from collections import Counter

import pytest
from farms import TRIALS, Crew, Farm, assert_sound, crews, kill, outcomes
from processes import wait_until

KILLS = 10


class Killer:
    """Kills by turns at random points of a run's progress, and only who is at work.

    Nobody loses a child twice over one job: that would be the job's fault by the farm's rules. A
    runner is spared until it has finished another trial, a builder until all others had their turn.
    """

    def __init__(self, farm: Farm, driver: subprocess.Popen[str], rng: random.Random) -> None:
        self.farm, self.driver, self.rng = farm, driver, rng
        self.kills: Counter[str] = Counter()
        self._spared: dict[str, int] = {}
        self._last: list[str] = []

    def work(self, victims: list[str]) -> None:
        """victims: `builder` or `simulated`, and `actor` or `child`, as `builder child`."""
        last = TRIALS - 30
        moments = sorted(self.rng.sample(range(last), len(victims)))
        self.rng.shuffle(victims)
        for moment, victim in zip(moments, victims, strict=True):
            wait_until(lambda at=moment: self.farm.count() >= at, 100)
            wait_until(lambda who=victim: self._strike(*who.split()), 60)
            assert self.driver.poll() is None
            self.kills[victim] += 1

    def _strike(self, kind: str, part: str) -> bool:
        count = self.farm.builders if kind == "builder" else self.farm.runners
        found = crews(self.driver.pid, kind, count)
        self.rng.shuffle(found)
        for crew in found:
            if part == "child" and not self._fair(crew, kind):
                continue
            if crew.at_work and kill(crew.child if part == "child" else crew.supervisor):
                self._note(crew, kind)
                return True
        return False

    def _fair(self, crew: Crew, kind: str) -> bool:
        if kind == "builder":
            return crew.name not in self._last[1 - self.farm.builders :]
        return self.farm.count(f"worker = '{crew.name}'") > self._spared.get(crew.name, -1)

    def _note(self, crew: Crew, kind: str) -> None:
        if kind == "builder":
            self._last.append(crew.name)
        else:
            self._spared[crew.name] = self.farm.count(f"worker = '{crew.name}'")


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
