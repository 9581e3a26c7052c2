"""A filled database, and valid and invalid kernel files, for tests of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from results_db import Store, TaskInfo, TrialRecord
from results_db.stored_records import BaselineRecord, SelectionRecord, TaskKey
from search_spaces.records import Config, Device, Status, Toolchain, Workload
from tuner.base.log_ratio import LogRatio

HOSTILE = "evil\x1b[31m[red]\u202ename|*"
DEFAULT = {"BLOCK": 1024}
BEST = {"BLOCK": 4096}
DEVICE = Device("cuda", "NVIDIA H200", "cuda:90", sm_count=132, memory_bytes=2**37)


def fill(
    url: str,
    *,
    gain: float = 0.5,
    kernel: str = "softmax",
    half_width: float = 0.001,
    median_us: float = 70.0,
    baselines: tuple[BaselineRecord, ...] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    key: Mapping[str, Any] = MappingProxyType({}),
    best: Config = BEST,
    campaign: str = "nightly",
    confirmed_at: datetime | None = None,
) -> int:
    """Add a finished run of one confirmed task; `gain` is ln(default time / winner time).

    key: fields of the task's key that differ. confirmed_at: now, if it is not given.
    """
    with Store.open(url) as store:
        facts = {"host": "here", **environment}
        run = store.begin_run(campaign, "spec", 7, facts, {"tasks": []})
        task_key = replace(_key(kernel), **key)
        task = store.ensure_task(run.run_id, task_key, flops=1e9, bytes=1e8, tolerance=0.01)
        store.record_trial(task.task_id, _trial(run.run_id))
        _confirm(store, task, gain, half_width, median_us, baselines, best, confirmed_at)
        store.finish_run(run.run_id, "finished", {"trials": 1})
        return run.run_id


def _key(kernel: str) -> TaskKey:
    return TaskKey(
        kernel=kernel,
        launch_hash="0123456789abcdef",
        space_hash="fedcba9876543210",
        workload=Workload.of(rows=8192, cols=8192, dtype="bfloat16"),
        device=DEVICE,
        toolchain=Toolchain(python="3.12", torch="2.11", triton="3.6"),
    )


def _trial(run_id: int) -> TrialRecord:
    return TrialRecord(
        attempt_id=f"run{run_id}-0",
        number=0,
        config=BEST,
        status=Status.CORRECT,
        median_us=70.0,
        samples_us=(70.0, 70.5),
        finished_at=datetime(2026, 5, 1, tzinfo=UTC),
    )


def _confirm(
    store: Store,
    task: TaskInfo,
    gain: float,
    half_width: float,
    median_us: float,
    baselines: tuple[BaselineRecord, ...],
    best: Config,
    confirmed_at: datetime | None,
) -> None:
    selection = SelectionRecord(
        winner=best,
        tie_set=(best,),
        verdict="faster" if gain > 0 else "slower",
        default=DEFAULT,
        median_us=median_us,
        default_us=115.0,
        confirmed_at=confirmed_at or datetime.now(UTC),
        log_ratio=LogRatio(gain, gain - half_width, gain + half_width),
    )
    store.record_selection(task.task_id, selection, list(baselines))
    store.set_stage(task.task_id, "done")


KERNEL = """
from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.records import TensorSpec
from search_spaces.params import Choice
from search_spaces.records import Workload
from search_spaces.space import Constraint, SearchSpace
from search_spaces.errors import WorkloadError
{header}
def holds(config, workload, device):
    {body}

class Small(Kernel):
    name = "small"
    kinds = ("cpu",)
    def workloads(self): return [Workload.of(n=4)]
    def check_workload(self, workload):
        if workload.get("n", 0) <= 0:
            raise WorkloadError("n must be positive", "give n of 1 or more")
    def make_inputs(self, workload, seed, device):
        import torch
        return {{"x": torch.ones(4, device=device)}}
    def outputs(self, workload): return {{"out": TensorSpec((4,), "float32")}}
    def reference(self, workload, inputs): return {{"out": inputs["x"]}}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(1.0, 16.0)
    def space(self, workload):
        return SearchSpace([Choice("a", [1, 2])], [Constraint("odd", holds, "must hold")],
                           kernel="small")
    def default_config(self, workload, device): return {{"a": 1}}
    def baselines(self, workload): return {{}}
    def cpu_callable(self, workload, config): return lambda inputs: {{"out": inputs["x"]}}
"""


def kernel_file(folder: Path, name: str = "small.py", *, header: str = "", body: str = "") -> str:
    """Write a kernel with one constraint; returns its spec."""
    text = KERNEL.format(header=header, body=body or "return True")
    (folder / name).write_text(text)
    return f"{name}:Small"


def campaign_file(folder: Path, spec: str, line: str = "") -> None:
    """A config.yaml with one campaign, `c`, of one kernel on the CPU."""
    (folder / "config.yaml").write_text(
        "version: 1\npool: {kind: local}\ncampaigns:\n  c:\n    targets: [cpu]\n    tasks:\n"
        f"      - kernel: '{spec}'\n        {line}\n"
    )


def replay_campaign(
    folder: Path, *recordings: str, limits: str = "strategy: {name: exhaustive}", more: str = ""
) -> None:
    """A config.yaml with one campaign, `c`, that replays recordings in virtual time.

    limits: its strategy or budget. more: further sections.
    """
    tasks = ", ".join(f"{{kernel: 'recorded:{name}'}}" for name in recordings)
    (folder / "config.yaml").write_text(
        "version: 1\npool: {kind: virtual}\nmeasure: {final_pairs: 8, warm_ms: 1}\n"
        f"campaigns:\n  c: {{targets: [simulated], {limits}, tasks: [{tasks}]}}\n{more}"
    )


def eager(over: float, half_width: float = 0.002) -> tuple[BaselineRecord, ...]:
    """A baseline; over: ln(its time / the winner's)."""
    ratio = LogRatio(over, over - half_width, over + half_width)
    return (BaselineRecord("eager", Status.CORRECT, 90.0, ratio),)
