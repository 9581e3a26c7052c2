"""A database with two runs and hostile text, and a campaign that replays a recording."""

from __future__ import annotations

from pathlib import Path

from results_db import Store, TrialRecord
from results_db.stored_records import SelectionRecord, TaskKey
from search_spaces.records import Device, Status, Toolchain, Workload
from tuner.base.log_ratio import LogRatio

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m"
CONFIG = """version: 1
pool: {kind: virtual}
measure: {final_pairs: 8, warm_ms: 1}
campaigns:
  c:
    targets: ["simulated:space.json.gz"]
    strategy: {name: random}
    budget: {trials: 30}
    tasks:
      - kernel: recorded:space.json.gz
"""


def fill(folder: Path, *, config: bool = True) -> None:
    """Two runs of a campaign with a hostile name; the second is faster."""
    if config:
        (folder / "config.yaml").write_text("version: 1\n")
    default, best = {"BLOCK": 1024}, {"BLOCK": 4096}
    key = TaskKey(
        kernel="softmax",
        launch_hash="0123456789abcdef",
        space_hash="fedcba9876543210",
        workload=Workload.of(rows=8192, cols=8192, dtype="bfloat16"),
        device=Device("cuda", f"NVIDIA {HOSTILE}", "cuda:90", sm_count=132, memory_bytes=2**37),
        toolchain=Toolchain(python="3.12", torch="2.11", triton="3.6"),
    )
    with Store.open(f"sqlite:///{folder / 'results' / 'tuner.db'}") as store:
        for number, gain in enumerate((0.5, 0.6)):
            run = store.begin_run(HOSTILE, "spec", 7, {"host": HOSTILE}, {"tasks": []})
            task = store.ensure_task(run.run_id, key, flops=1e9, bytes=1e8, tolerance=0.01)
            for at, (config_, us) in enumerate(((default, 115.0), (best, 115.0 / 1.6))):
                trial = TrialRecord(
                    f"run{number}-{at}", at, config_, Status.CORRECT, median_us=us,
                    samples_us=(us, us + 0.5), message=HOSTILE,
                )  # fmt: skip
                store.record_trial(task.task_id, trial)
            selection = SelectionRecord(
                winner=best,
                tie_set=(best,),
                verdict="faster",
                reason=HOSTILE,
                default=default,
                median_us=70.0 - 5 * number,
                default_us=115.0,
                log_ratio=LogRatio(gain, gain - 0.001, gain + 0.001),
            )
            store.record_selection(task.task_id, selection, [])
            store.set_stage(task.task_id, "done", HOSTILE)
            store.finish_run(run.run_id, "finished", {"trials": 2})
