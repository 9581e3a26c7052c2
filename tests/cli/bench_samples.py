"""Kernels and results for `tuner bench` and `tuner verify`: a recording, and one that runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from made_up_spaces import synthesize

from results_db import Store
from results_db.stored_records import SelectionRecord, TaskKey
from search_spaces.recorded.recorded_kernel import RecordedKernel, RecordedSpace, load_kernel
from search_spaces.records import Config
from tuner.base.log_ratio import LogRatio

RECORDED = "recorded:space.json"
#: Rows of x are scaled; `ends` forgets what a length that is not even leaves over.
SCALE = """
import torch
from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.records import TensorSpec
from search_spaces.params import Choice
from search_spaces.records import Workload
from search_spaces.space import Constraint, SearchSpace

def fits(config, workload, device):
    return config["way"] != "wide" or workload["n"] >= 4096

class Scale(Kernel):
    name = "scale"
    kinds = ("cpu",)
    def workloads(self): return [Workload.of(n=1000), Workload.of(n=2000)]
    def check_workload(self, workload): pass
    def small_workload(self, workload): return Workload.of(n=37)
    def make_inputs(self, workload, seed, device):
        source = None if device == "meta" else torch.Generator(device).manual_seed(seed)
        return {"x": torch.randn(workload.size("n"), generator=source, device=device)}
    def outputs(self, workload): return {"out": TensorSpec((workload.size("n"),), "float32")}
    def reference(self, workload, inputs): return {"out": inputs["x"].double() * 2}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(workload.size("n"), 8.0 * workload.size("n"))
    def space(self, workload):
        ways = Choice("way", ["add", "wrong", "ends", "raises", "wide"])
        rule = Constraint("width", fits, "under 4096 elements there is nothing to widen")
        return SearchSpace([ways], [rule], kernel=self.name)
    def default_config(self, workload, device): return {"way": "add"}
    def baselines(self, workload):
        def autotuned(inputs): raise RuntimeError("takes minutes")
        return {"eager": lambda inputs: {"out": inputs["x"] * 2}, "autotuned": autotuned}
    def cpu_callable(self, workload, config):
        def add(inputs): return {"out": inputs["x"] + inputs["x"]}
        def wrong(inputs): return {"out": inputs["x"] * 3}
        def raises(inputs): raise RuntimeError("not today")
        def ends(inputs):
            out, even = torch.zeros_like(inputs["x"]), inputs["x"].numel() // 2 * 2
            out[:even] = inputs["x"][:even] * 2
            return {"out": out}
        return {"add": add, "wrong": wrong, "ends": ends, "raises": raises}[config["way"]]
"""
#: Recordings are replayed in virtual time; `scale` needs processes.
MEASURE = "measure: {warm_ms: 1, final_pairs: 16}\n"
SETTINGS = f"version: 1\npool: {{kind: virtual}}\n{MEASURE}"
PROCESSES = f"version: 1\npool: {{builders: 1}}\n{MEASURE}"


def recording(folder: Path, *, failures: float = 0.0) -> RecordedSpace:
    """A recorded space in the folder, as the kernel `RECORDED`, and its settings."""
    space = synthesize(60, seed=1, scenario="quiet", failures=failures)
    space.save(folder / "space.json")
    (folder / "config.yaml").write_text(SETTINGS)
    return space


def scale_kernel(folder: Path) -> str:
    (folder / "scale.py").write_text(SCALE)
    (folder / "config.yaml").write_text(PROCESSES)
    return "scale.py:Scale"


def text(config: Config) -> str:
    return json.dumps(dict(config))


def confirm(
    folder: Path,
    winner: Config,
    *,
    median_us: float | None = 50.0,
    elsewhere: bool = False,
    launch_hash: str = "",
    verdict: str = "faster",
) -> int:
    """Store a run of the recorded kernel with that winner; without a time it is unconfirmed."""
    kernel: RecordedKernel = load_kernel(folder / "space.json")
    workload = kernel.recorded.workload
    device = replace(kernel.device, name="Another Device") if elsewhere else kernel.device
    key = TaskKey(
        kernel=kernel.name,
        launch_hash=launch_hash or kernel.launch_hash(),
        space_hash=kernel.space_hash(workload),
        workload=workload,
        device=device,
        toolchain=kernel.recorded.toolchain,
    )
    selection = SelectionRecord(
        winner=winner,
        tie_set=(winner,),
        verdict=verdict,
        default=kernel.recorded.default,
        median_us=median_us,
        default_us=median_us and 2 * median_us,
        log_ratio=LogRatio(0.69, 0.68, 0.70),
    )
    with Store.open(f"sqlite:///{folder / 'results' / 'tuner.db'}") as store:
        run = store.begin_run("c", "spec", 0, {}, {})
        task = store.ensure_task(run.run_id, key, flops=1.0, bytes=1.0, tolerance=0.01)
        store.record_selection(task.task_id, selection, [])
        store.set_stage(task.task_id, "done")
        store.finish_run(run.run_id, "finished", {})
        return run.run_id
