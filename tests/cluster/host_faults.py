"""A campaign on a cluster of several hosts, and what happens to one of them meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clusters import Cluster
from farms import Farm, small_space
from hosts import Network
from processes import LIMIT_S, below, kill, title, wait_until

#: Seconds for which a host is away, and for which it is away for long.
PARTITION_S, LONG_PARTITION_S = 30.0, 300.0
#: Trials of a campaign, and those that are stored before something happens.
TRIALS, BEFORE = 120, 25


@dataclass
class HostFarm(Farm):
    """A farm whose driver runs on the head of a cluster; trials are slow enough to disturb it."""

    cluster: Cluster | None = None
    pool: str = "ray"
    builders: int = 3
    runners: int = 4
    trials: int = TRIALS
    time_scale: float = 60.0

    @property
    def environment(self) -> dict[str, str]:
        address = {"TUNER__POOL__ADDRESS": self.cluster.address}
        return {**super().environment, **self.cluster.environment, **address}

    @property
    def command(self) -> list[str]:
        return self.cluster.network.place("head", super().command)


@contextmanager
def started_cluster() -> Iterator[Cluster]:
    """A head, and three hosts with processors."""
    with Network() as network, Cluster(network=network) as cluster:
        cluster.head(cpus=0)
        for name in ("one", "two", "three"):
            cluster.add(name, cpus=2)
        yield cluster


def make_farm(cluster: Cluster, folder: Path) -> HostFarm:
    return HostFarm(folder, cluster=cluster, space=small_space(build_s=0.003))


# -- what happens to host three, or to the head ----------------------------------------------------
def lose_power(cluster: Cluster) -> None:
    cluster.network.cut("three")
    cluster.nodes["three"].kill()


def cut_off(cluster: Cluster, seconds: float = PARTITION_S) -> None:
    cluster.network.cut("three")
    time.sleep(seconds)
    cluster.network.mend("three")


def tell_to_stop(cluster: Cluster) -> None:
    """As the owner of a spot node does."""
    cluster.nodes["three"].process.terminate()


def slow_down(cluster: Cluster) -> None:
    cluster.network.slow_down("three", "2mbit")


def kill_raylet(cluster: Cluster) -> None:
    family = below(cluster.nodes["three"].process.pid)
    (raylet,) = [pid for pid in family if "/raylet/raylet" in title(pid).split(" ")[0]]
    kill(raylet)


FAULTS: Mapping[str, Callable[[Cluster], None]] = {
    "nothing": lambda cluster: None,
    "a host loses its power": lose_power,
    "a host is cut off for 30 s": cut_off,
    "a host is cut off for 5 min": partial(cut_off, seconds=LONG_PARTITION_S),
    "a host gets SIGTERM": tell_to_stop,
    "2 Mbit/s to a host": slow_down,
    "the raylet of a host is killed": kill_raylet,
}


def follow(farm: HostFarm, happens: Callable[[Cluster], None]) -> float:
    """Run a campaign in which something happens to a host; its seconds."""
    began = time.monotonic()
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= BEFORE)
        happens(farm.cluster)
        farm.ended(driver)
    return time.monotonic() - began


def lose_head(farm: HostFarm) -> tuple[int, str]:
    """Run a campaign whose head dies; the driver's exit code and its output."""
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= BEFORE)
        farm.cluster.nodes["head"].kill()
        out, err = driver.communicate(timeout=LIMIT_S)
    return driver.returncode, f"{out}{err}"
