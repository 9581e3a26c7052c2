"""What a fault of a host costs: a campaign of 120 simulated trials on a Ray cluster of four hosts.

    sudo python benchmarks/lost_hosts.py --output results/cpu/lost_hosts.json

The hosts are network namespaces of this machine, each with its own `ray start`: a head without
processors, on which the driver runs, and three hosts with two processors each. Something happens to
the third one after 25 trials. Each campaign has a cluster of its own. Prints the seconds from the
command to its end, and checks that every trial is stored once and that the same config wins.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

sys.path += map(str, Path(__file__).resolve().parents[1].glob("tests/*/"))
sys.path.append(f"{Path(__file__).resolve().parents[1] / 'tests'}")
from farms import assert_sound
from host_faults import FAULTS, HostFarm, follow, lose_head, make_farm, started_cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found: dict[str, float] = {}
    winners = set()
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, happens) in enumerate(FAULTS.items()):
            with started_cluster() as cluster:
                farm = make_farm(cluster, Path(folder) / f"{number}")
                found[name] = round(follow(farm, happens)[0], 1)
            winners.add(check(farm))
            print(name, found[name], flush=True)
        name = "the head loses its power"
        with started_cluster() as cluster:
            farm = make_farm(cluster, Path(folder) / "head")
            began = time.monotonic()
            lose_head(farm)
            ended_s = time.monotonic() - began
        with started_cluster() as farm.cluster:
            began = time.monotonic()
            farm.finish()
            found[name] = round(ended_s + time.monotonic() - began, 1)
        winners.add(check(farm))
        print(name, found[name], f"({ended_s:.0f} s until the driver ends)", flush=True)
    assert len(winners) == 1, winners
    facts = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "ray": version("ray"),
        "seconds": found,
    }
    if given.output:
        given.output.write_text(json.dumps(facts, indent=1) + "\n")


def check(farm: HostFarm) -> str:
    """Raise unless every trial is stored once; the config that won."""
    assert_sound(farm)
    selection = farm.task().selection
    assert selection is not None
    return json.dumps(dict(selection.winner), sort_keys=True)


if __name__ == "__main__":
    main()
