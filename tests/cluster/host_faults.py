"""A campaign on a cluster of several hosts, and what happens to one of them meanwhile."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from clusters import Cluster
from farms import Farm, small_space
from hosts import Network
from processes import LIMIT_S, alive, below, forked, kill, process_name, title, wait_until

#: Seconds for which a host is away, and for which it is away for long.
PARTITION_S, LONG_PARTITION_S = 30.0, 300.0
#: The disk of host three, which holds temporary files and those of Ray.
DISK = "size=64m,nr_inodes=9k"
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
def started_cluster(others: Sequence[str] = ("one", "two"), **three: Any) -> Iterator[Cluster]:
    """A head, and hosts with two processors each: others, and `three`, with what is given of it."""
    with Network() as network, Cluster(network=network) as cluster:
        cluster.head(cpus=0)
        for name in others:
            cluster.add(name, cpus=2)
        cluster.add("three", cpus=2, **{"disk": DISK, **three})
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


def fill_disk(cluster: Cluster) -> None:
    """No byte and no file can be added from now on, and workers need new processes, which do."""
    node = cluster.nodes["three"]
    pids = below(node.process.pid)
    (raylet,) = [pid for pid in pids if "/raylet/raylet" in title(pid).split(" ")[0]]
    disk = Path(f"/proc/{raylet}", "root", *(cluster.folder / "three").parts[1:])
    # What is deleted stays, as it does while a program has it open.
    held = [os.open(path, os.O_RDONLY) for path in disk.glob("tuner-*/**/") if path.is_dir()]
    Thread(target=_keep_full, args=(disk, raylet, held), daemon=True).start()
    wait_until(lambda: (room := os.statvfs(disk)).f_bfree + room.f_ffree == 0)
    for pid in forked(node.process.pid):
        if re.fullmatch(r"(builder|simulated)-\d+", process_name(pid)):
            with suppress(ProcessLookupError):
                kill(pid)


def _keep_full(disk: Path, raylet: int, held: Sequence[int]) -> None:
    """Take what others free until the host is gone. held: open files and folders."""
    names = itertools.count()
    while alive(raylet):
        with suppress(OSError), (disk / "filler").open("ab", buffering=0) as filler:
            while filler.write(bytes(2**16)):
                pass
        with suppress(OSError):
            while True:
                (disk / f"filler-{next(names)}").touch()
        time.sleep(0.02)
    for each in held:
        os.close(each)


FAULTS: Mapping[str, Callable[[Cluster], None]] = {
    "nothing": lambda cluster: None,
    "a host loses its power": lose_power,
    "a host is cut off for 30 s": cut_off,
    "a host is cut off for 5 min": partial(cut_off, seconds=LONG_PARTITION_S),
    "a host gets SIGTERM": tell_to_stop,
    "2 Mbit/s to a host": slow_down,
    "the raylet of a host is killed": kill_raylet,
    "the disk of a host is full": fill_disk,
}


def follow(
    farm: HostFarm, happens: Callable[[Cluster], None], before: int = BEFORE
) -> tuple[float, str]:
    """Run a campaign in which something happens to a host; its seconds, and what it prints.

    before: the trials that are stored by then.
    """
    began = time.monotonic()
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= before)
        happens(farm.cluster)
        printed = farm.ended(driver)
    return time.monotonic() - began, printed


def lose_head(farm: HostFarm) -> tuple[int, str]:
    """Run a campaign whose head dies; the driver's exit code and its output."""
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= BEFORE)
        farm.cluster.nodes["head"].kill()
        out, err = driver.communicate(timeout=LIMIT_S)
    return driver.returncode, f"{out}{err}"
