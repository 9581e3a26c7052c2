"""Real clusters: placement, nodes that die and join, tokens, submitted projects."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from clusters import Cluster
from farms import Farm, assert_sound, small_space
from made_up_spaces import synthesize
from processes import wait_until

from results_db import Store
from search_spaces.records import Status

pytestmark = [pytest.mark.full, pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head without processors, and two nodes, one of which claims two GPUs.

    The nodes do not see the temporary folder of a test, only `cluster.shared`.
    """
    blind = [tmp_path_factory.getbasetemp()]
    with Cluster() as made:
        made.head(cpus=0)
        with ThreadPoolExecutor() as threads:
            started = [
                threads.submit(made.add, "plain", cpus=3, blind=blind),
                threads.submit(made.add, "gpus", cpus=4, gpus=2, blind=blind),
            ]
        for each in started:
            each.result()
        yield made


def test_the_devices_of_all_nodes_are_listed(cluster: Cluster, tmp_path):
    rows = json.loads(cluster.tuner(tmp_path, "workers", "list", "--format", "json").stdout)
    # The head was started without processors, so nothing is ever timed there.
    assert {row["host"] for row in rows} == {"plain", "gpus"}
    assert sum(row["kind"] == "cpu" for row in rows) == 2


@pytest.mark.parametrize(
    ("environment", "printed"),
    [
        ({"RAY_AUTH_MODE": "disabled"}, "asks for an authentication token"),
        ({"RAY_AUTH_TOKEN": "another"}, "refuses the authentication token"),
    ],
)
def test_a_client_without_the_token_is_refused(cluster: Cluster, tmp_path, environment, printed):
    refused = cluster.tuner(tmp_path, "workers", "list", code=2, **environment)
    assert f"error: Ray at {cluster.address} {printed}\n" in refused.stderr
    assert "hint: set RAY_AUTH_MODE=token" in refused.stderr


def test_a_pool_that_reserves_nothing_has_workers_where_all_is_reserved(cluster: Cluster):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("sharing.py")), cluster.address],
        env=cluster.environment,
        cwd=cluster.shared,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["answers"] == ["1"]
    assert found["gpus"] == 2
    homes = found["homes"]
    assert sorted([homes["cuda-0"], homes["cuda-1"]]) == [["gpus", 0], ["gpus", 1]]
    assert sorted([homes["cpu-0"], homes["cpu-1"]]) == [["gpus", 0], ["plain", 0]]


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
        try:
            first = json.loads(program.stdout.readline())
            starved = json.loads(program.stdout.readline())
            cluster.add("late", cpus=2)
            program.stdin.write("\n")
            program.stdin.flush()
            then = json.loads(program.stdout.readline())
        except BaseException:
            # The context waits for the program, which may never see the node.
            program.kill()
            raise
    assert program.returncode == 0

    where = first["where"]
    # One runner per GPU that Ray knows, one CPU runner per node with processors.
    assert (where["cuda-0"], where["cuda-1"]) == ("gpus", "gpus")
    assert {where["cpu-0"], where["cpu-1"]} == {"plain", "gpus"}
    assert {where["simulated-0"], where["simulated-1"]} == {"plain", "gpus"}
    assert {"cpu-0", "cpu-1", "simulated-0", "simulated-1"} <= set(first["ready"])
    # Builders have the processors that runners leave: 2 of 3, and 1 of 4.
    builders = Counter(node for name, node in where.items() if name.startswith("builder"))
    assert builders == {"plain": 2, "gpus": 1}
    assert starved["message"] == "builds wait, and no builder has come up for 2 s"
    assert "ray status" in starved["hint"]

    joined = {name: node for name, node in then["where"].items() if name not in where}
    assert joined == {"cpu-2": "late", "builder-3": "late"}
    assert "cpu-2" in then["ready"]


def test_a_campaign_survives_a_node_and_is_ended_by_sigterm_without_a_loss(cluster: Cluster):
    class Distributed(Farm):
        @property
        def environment(self) -> dict[str, str]:
            address = {"TUNER__POOL__ADDRESS": cluster.address}
            return {**super().environment, **cluster.environment, **address}

    victim = cluster.add("doomed", cpus=1)
    folder = cluster.shared / "farm"
    # Builds and devices are slow, so that trials are left when the node has died.
    slow = {"time_scale": 60.0, "space": small_space(build_s=0.003)}
    farm = Distributed(folder, pool="ray", builders=3, runners=6, trials=150, **slow)
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= 30)
        assert any(victim.has(f"simulated-{index}") for index in range(6))
        assert driver.poll() is None
        victim.kill()
        at_the_end = farm.count()
        wait_until(lambda: farm.count() >= at_the_end + 20)
        driver.send_signal(signal.SIGTERM)
        printed = farm.ended(driver, 130)
    assert "Raylet" not in printed
    assert [run.status for run in farm.runs()] == ["interrupted"]
    assert farm.count() < farm.trials
    farm.finish()
    assert_sound(farm)


@pytest.fixture
def project(tmp_path) -> Path:
    """config.yaml and a kernel in a folder of the project; a recorded space at its top."""
    folder = tmp_path / "project"
    (folder / "farm").mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("scale.py"), folder / "farm")
    (folder / "farm" / "factor.py").write_text("FACTOR = 3.0\n")
    synthesize(40, seed=5, failures=0.2).save(folder / "space.json")
    config = {
        "version": 1,
        "pool": {"builders": 1, "devices": {"simulated": {"runners": 2}}},
        "campaigns": {
            "both": {
                "targets": ["cpu", "simulated:space.json"],
                "strategy": {"name": "exhaustive"},
                "budget": {"trials": 40},
                "tasks": [{"kernel": "scale.py:Scale"}, {"kernel": "recorded:space.json"}],
            }
        },
    }
    (folder / "farm" / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_a_submitted_project_is_tuned_to_the_end(cluster, project, tmp_path):
    database = f"sqlite:///{tmp_path / 'tuner.db'}"
    results = str(tmp_path / "results")
    tuner = ("python", "-m", "tuner", "run", "-c", "farm/config.yaml", "--quiet")
    lasting = {"TUNER__DATABASE__URL": database, "TUNER__PATHS__RESULTS": results}
    runtime_env = json.dumps({"env_vars": lasting})
    with (
        cluster.submit(project, *tuner, "both", runtime_env=runtime_env) as good,
        cluster.submit(project, *tuner, "boht", runtime_env=runtime_env) as bad,
    ):
        printed, _ = good.communicate()
        refused, _ = bad.communicate()
    assert good.returncode == 0, printed
    assert "succeeded" in printed
    assert f"report: {results}/report.html" in printed
    assert "paths.tables: inside the folder of this job, which Ray removes" in printed
    assert bad.returncode == 1
    assert "did you mean 'both'?" in refused
    assert "exit code 2" in refused

    with Store.open(database) as store:
        (run,) = store.runs()
        assert run.status == "finished"
        tasks = {task.key.kernel: task for task in store.tasks(run.run_id)}
        trials = {name: store.trials(task.task_id) for name, task in tasks.items()}
    scale, replay = trials.pop("scale"), trials.popitem()[1]
    assert [(trial.status, trial.source) for trial in scale] == [(Status.CORRECT, "measured")] * 3
    assert len(replay) == 40
    assert tasks["scale"].selection is not None
    assert tasks["scale"].selection.confirmed_at is not None
    assert (tmp_path / "results" / "report.html").exists()
