"""Several nodes: who goes where, what a node's end and a node's arrival do, who is let in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from clusters import Cluster
from processes import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_the_devices_of_all_nodes_are_listed(cluster: Cluster, tmp_path):
    rows = json.loads(cluster.tuner(tmp_path, "workers", "list", "--format", "json").stdout)
    # The head was started without processors, so nothing is ever timed there.
    assert {row["host"] for row in rows} == {"plain", "gpus"}
    assert sum(row["kind"] == "cpu" for row in rows) == 2


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RAY_AUTH_MODE": "disabled"}, "asks for an authentication token"),
        ({"RAY_AUTH_TOKEN": "another"}, "refuses the authentication token"),
    ],
)
def test_who_has_not_the_token_is_told_so(cluster: Cluster, tmp_path, environment, said):
    refused = cluster.tuner(tmp_path, "workers", "list", code=2, **environment)
    assert f"error: Ray at {cluster.address} {said}\n" in refused.stderr
    assert "hint: set RAY_AUTH_MODE=token" in refused.stderr


def test_workers_go_where_their_devices_are_and_use_a_node_that_joins(cluster: Cluster):
    command = [sys.executable, str(Path(__file__).with_name("placing.py")), cluster.address]
    command.append(cluster.dashboard)
    with subprocess.Popen(
        command,
        env=cluster.environment,
        cwd=cluster.shared,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        first = json.loads(program.stdout.readline())
        starved = json.loads(program.stdout.readline())
        cluster.add("late", cpus=2)
        program.stdin.write("\n")
        program.stdin.flush()
        then = json.loads(program.stdout.readline())
    assert program.returncode == 0

    where = first["where"]
    # One runner per GPU that Ray has been told of, one CPU runner per node that has processors.
    assert (where["cuda-0"], where["cuda-1"]) == ("gpus", "gpus")
    assert {where["cpu-0"], where["cpu-1"]} == {"plain", "gpus"}
    assert {where["simulated-0"], where["simulated-1"]} == {"plain", "gpus"}
    assert {"cpu-0", "cpu-1", "simulated-0", "simulated-1"} <= set(first["ready"])
    # Builders take the processors that runners leave: 2 of 3, and 1 of 4.
    builders = Counter(node for name, node in where.items() if name.startswith("builder"))
    assert builders == {"plain": 2, "gpus": 1}
    assert starved["message"] == "builds wait, and no builder has come up for 2 s"
    assert "ray status" in starved["hint"]

    joined = {name: node for name, node in then["where"].items() if name not in where}
    assert joined == {"cpu-2": "late", "builder-3": "late"}
    assert "cpu-2" in then["ready"]


def test_a_campaign_survives_a_node_and_is_ended_by_sigterm_without_a_loss(cluster: Cluster):
    from farms import Farm, assert_sound

    class Distributed(Farm):
        @property
        def environment(self) -> dict[str, str]:
            address = {"TUNER__POOL__ADDRESS": cluster.address}
            return {**super().environment, **cluster.environment, **address}

    victim = cluster.add("doomed", cpus=1)
    folder = cluster.shared / "farm"
    farm = Distributed(folder, pool="ray", builders=3, runners=6, trials=110)
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= 30, 60)
        assert any(victim.has(f"simulated-{index}") for index in range(6))
        assert driver.poll() is None
        victim.kill()
        at_the_end = farm.count()
        wait_until(lambda: farm.count() >= at_the_end + 20, 60)
        driver.send_signal(signal.SIGTERM)
        said = farm.ended(driver, 130)
    assert "Raylet" not in said
    assert [run.status for run in farm.runs()] == ["interrupted"]
    assert farm.count() < farm.trials
    farm.finish()
    assert_sound(farm)
