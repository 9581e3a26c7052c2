"""`kill -9` of builders, runners and their children in the middle of their work."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from farms import TRIALS, Farm, assert_sound, crews, kill, outcomes, small_space
from processes import wait_until

#: Each strategy and each pool; a strategy does not know where its workers live.
FARMS = (("random", "local"), ("exhaustive", "ray"), ("tpe", "local"))
#: How often who is killed: ten builders, ten runners. An actor, or the driver's own thread in its
#: place, supervises the child that does the work.
VICTIMS = {
    "local": Counter({"builder child": 10, "simulated child": 10}),
    "ray": Counter({"builder actor": 10, "simulated actor": 5, "simulated child": 5}),
}


class Killer:
    """Kills at random points of a run's progress, and only who is at work.

    Never the same worker twice in a row, and no runner that has stored no trial since: a job that
    loses its child again and again would be to blame by the farm's rules.
    """

    def __init__(self, farm: Farm, driver: subprocess.Popen[str], rng: random.Random) -> None:
        self.farm, self.driver, self.rng = farm, driver, rng
        self.kills: Counter[str] = Counter()
        self._last = ""
        self._stored: dict[str, int] = {}

    def work(self, victims: list[str]) -> None:
        """victims: `builder` or `simulated`, and `actor` or `child`, as in `builder child`."""
        earliest = 0
        for moment, victim in sorted((self._moment(who), who) for who in victims):
            moment = max(moment, earliest)
            wait_until(lambda at=moment: self.farm.count() >= at, 100)
            wait_until(lambda who=victim: self._strike(*who.split()), 60)
            earliest = self.farm.count() + 1
            assert self.driver.poll() is None
            self.kills[victim] += 1

    def _moment(self, victim: str) -> int:
        """How many trials are to be over by then.

        Trials end in batches, and all are built long before the last one ends: a job for each
        device and what is ready behind it, which on a busy machine is most of them. So builders
        are killed while the first trials end, and nobody near the end.
        """
        return self.rng.randrange(0, 40 if victim.startswith("builder") else TRIALS - 100)

    def _strike(self, kind: str, part: str) -> bool:
        found = [crew for crew in crews(self.driver.pid) if crew.name.startswith(kind)]
        self.rng.shuffle(found)
        for crew in found:
            victim = crew.child if part == "child" else crew.supervisor
            stored = self.farm.count(f"worker = '{crew.name}'")
            again = kind == "simulated" and stored <= self._stored.get(crew.name, -1)
            if crew.name != self._last and not again and crew.at_work and kill(victim):
                self._last, self._stored[crew.name] = crew.name, stored
                return True
        return False


def disturbed(folder: Path, strategy: str, pool: str) -> Farm:
    """A farm that has come to its end although its workers were killed again and again."""
    # Builds and devices so slow, both, that whoever is to be killed is soon found at work: where
    # builds hold up the rest, devices are idle, and the trials are over before the kills are.
    slow = {"time_scale": 60.0, "space": small_space(build_s=0.003)}
    farm = Farm(folder, strategy, pool=pool, builders=3, runners=4, **slow)
    victims = VICTIMS[pool]
    with farm.driver() as driver:
        killer = Killer(farm, driver, random.Random(f"{strategy}/{pool}"))
        killer.work(list(victims.elements()))
        assert farm.count() < TRIALS
        farm.ended(driver)
    assert killer.kills == victims
    farm.assert_gone()
    return farm


@pytest.fixture(scope="module")
def farms(tmp_path_factory) -> Iterator[dict[tuple[str, str], Future[Farm]]]:
    """One after the other: beside another one a run may be over before all are killed."""
    found = {}
    lane = ThreadPoolExecutor(1)
    for strategy, pool in FARMS:
        folder = tmp_path_factory.mktemp(pool) / "farm"
        found[strategy, pool] = lane.submit(disturbed, folder, strategy, pool)
    yield found
    lane.shutdown(cancel_futures=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "pool"),
    [pytest.param(*farm, marks=pytest.mark.ray if "ray" in farm else ()) for farm in FARMS],
)
def test_killed_workers_cost_no_trial(farms, undisturbed, strategy, pool):
    farm = farms[strategy, pool].result()
    assert_sound(farm)
    if strategy != "tpe":
        assert outcomes(farm.records()) == undisturbed(strategy)
