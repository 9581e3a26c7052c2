"""`ray job submit --working-dir`: a project that no other node can see is tuned all over them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from results_db import Store
from search_spaces.recorded import synthesise
from search_spaces.records import Status

pytestmark = [pytest.mark.ray, pytest.mark.slow]

_KERNEL = '''
from factor import FACTOR
from search_spaces.kernel import Cost, Kernel, TensorSpec, Tolerance
from search_spaces.params import Choice
from search_spaces.records import Workload
from search_spaces.space import SearchSpace


class Scale(Kernel):
    """y = FACTOR x on the CPU, in `chunks` steps; nothing has to be compiled."""

    name = "scale"
    kinds = ("cpu",)

    def workloads(self):
        return [Workload.of(n=4096)]

    def check_workload(self, workload):
        pass

    def make_inputs(self, workload, seed, device):
        import torch

        drawn = torch.randn(workload.size("n"), generator=torch.Generator().manual_seed(seed))
        return {"x": drawn.to(device)}

    def outputs(self, workload):
        return {"y": TensorSpec((workload.size("n"),), "float32")}

    def reference(self, workload, inputs):
        return {"y": inputs["x"].double() * FACTOR}

    def tolerance(self, workload):
        return Tolerance(1e-6, 1e-6)

    def cost(self, workload):
        return Cost(workload.size("n"), 8.0 * workload.size("n"))

    def space(self, workload):
        return SearchSpace([Choice("chunks", (1, 2, 4))], kernel=self.name)

    def default_config(self, workload, device):
        return {"chunks": 1}

    def cpu_callable(self, workload, config):
        import torch

        def call(inputs):
            parts = inputs["x"].chunk(config["chunks"])
            return {"y": torch.cat([part * FACTOR for part in parts])}

        return call

    def baselines(self, workload):
        return {}
'''


@pytest.fixture
def project(tmp_path) -> Path:
    """config.yaml and a kernel in a folder of the project; a recorded space at its top."""
    folder = tmp_path / "project"
    (folder / "farm").mkdir(parents=True)
    (folder / "farm" / "scale.py").write_text(_KERNEL)
    (folder / "farm" / "factor.py").write_text("FACTOR = 3.0\n")
    synthesise(40, seed=5, failures=0.2).save(folder / "space.json")
    config = {
        "version": 1,
        "pool": {"builders": 1, "simulated": {"runners": 2}},
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
        said, _ = good.communicate()
        refused, _ = bad.communicate()
    assert good.returncode == 0, said
    assert "succeeded" in said
    assert f"report: {results}/report.html" in said
    assert "paths.tables: in this job's own folder, which Ray removes" in said
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
