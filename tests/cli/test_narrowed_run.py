"""A run of some workloads does not replace a complete table."""

from __future__ import annotations

import json
from pathlib import Path

SPACE = Path(__file__).parents[2] / "benchmarks/spaces/h200/softmax_8192_bf16.space.json"


def test_a_narrowed_run_writes_no_tables(tuner, folder):
    campaign = {
        "targets": ["simulated"],
        "tasks": [{"kernel": f"recorded:{SPACE}"}],
        "budget": {"trials": 3},
        "strategy": {"name": "random"},
    }
    config = {"version": 1, "pool": {"kind": "virtual"}, "campaigns": {"replay": campaign}}
    (folder / "config.yaml").write_text(json.dumps(config))
    tables = folder / "results" / "tables"
    narrowed = tuner("run", "replay", "--workload", "dtype=bfloat16", "--no-report")
    assert narrowed.code == 0, narrowed.err
    assert not list(tables.glob("*.json"))
    whole = tuner("run", "replay", "--no-report")
    assert whole.code == 0, whole.err
    assert len(list(tables.glob("*.json"))) == 1
