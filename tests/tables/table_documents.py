"""Documents and results that the table tests share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results_db import Store, TaskInfo, TrialRecord
from results_db.stored_records import SelectionRecord, TaskKey
from search_spaces.records import Device, Status, Toolchain, Workload
from tuner.base.log_ratio import LogRatio

H200 = Device(
    kind="cuda",
    name="NVIDIA H200",
    target="cuda:90",
    sm_count=132,
    memory_bytes=150_000_000_000,
    shared_bytes=232_448,
    registers=65_536,
    power_limit_w=700.0,
    uuid="GPU-1",
)
TOOLCHAIN = Toolchain(python="3.12.3", torch="2.11.0", triton="3.6.0", cuda="13.0", driver="580")
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "table.schema.json").read_text(encoding="utf-8")
)
DEFAULT = {"BLOCK": 64, "num_warps": 4}
WINNER = {"BLOCK": 128, "num_warps": 8}
TIE = {"BLOCK": 256, "num_warps": 8}


def document(
    entries: Sequence[tuple[Mapping[str, Any], ...]] = (),
    *,
    kernel: str = "scale",
    rule: str = "nearest_log2",
    max_distance: float = 1.0,
    numeric: Sequence[str] = ("n",),
    default: Mapping[str, Any] | None = None,
    toolchain: Mapping[str, str] | None = None,
    kernel_hash: str = "0123456789abcdef",
    device: str = "NVIDIA H200",
) -> dict[str, Any]:
    """A table as plain data.

    entries: key and config, and the dtypes of tensors by parameter in tables of later versions.
    """
    code = {"launch_hash": "aa", "kernel_hashes": [kernel_hash]}
    return {
        "schema": "tuner-table/1",
        "kernel": {"name": kernel, **code, "space_hash": "ab"},
        "device": {
            "name": device,
            "kind": "cuda",
            "target": "cuda:90",
            "sm_count": 132,
            "memory_bytes": 150_000_000_000,
            "shared_bytes": 232_448,
            "power_limit_w": 700.0,
            "fingerprint": "00ff",
        },
        "toolchain": dict(toolchain or {}),
        "lookup": {"rule": rule, "max_distance": max_distance, "numeric": list(numeric)},
        "default": default,
        "entries": [
            {
                "key": dict(key),
                "config": dict(config),
                "verdict": "faster",
                "median_us": 10.0,
                "speedup_over_default": 1.5,
                "interval": [1.4, 1.6],
                "tie_set": [dict(config)],
                "provenance": {},
                **({"dtypes": dict(more[0])} if more else {}),
            }
            for key, config, *more in entries
        ],
        "provenance": {"run": 1},
    }


def written(path: Path, content: object) -> Path:
    """A file holding text as it is, bytes as they are, and anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def add_task(
    store: Store,
    run_id: int,
    workload: Workload,
    *,
    kernel: str = "scale",
    device: Device = H200,
    toolchain: Toolchain = TOOLCHAIN,
    selection: SelectionRecord | None = None,
    trials: Sequence[TrialRecord] | None = None,
    launch_hash: str = "0123456789abcdef",
    kernel_hashes: tuple[str, ...] = (),
) -> TaskInfo:
    """A task with its trials and, if given, its outcome."""
    key = TaskKey(kernel, launch_hash, "abcd", workload, device, toolchain, "aa", kernel_hashes)
    task = store.ensure_task(run_id, key, flops=1e6, bytes=2e6, tolerance=1e-3)
    for trial in trials if trials is not None else standard_trials(task.task_id):
        store.record_trial(task.task_id, trial)
    if selection is not None:
        store.record_selection(task.task_id, selection, [])
    return task


def standard_trials(task_id: int) -> list[TrialRecord]:
    """The default, the winner, a tie, and one of every failure."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    timed = [(DEFAULT, 15.0), (WINNER, 10.0), (TIE, 10.02)]
    facts = {"build_s": 0.25, "registers": 32}
    found = [
        (config, Status.CORRECT, {**facts, "median_us": us, "samples_us": (us, us * 1.01)})
        for config, us in timed
    ]
    message = {"message": '<script>alert(1)</script> it\'s "bad"\nindeed, it is'}
    failures = [status for status in Status if status is not Status.CORRECT]
    found += [
        ({"BLOCK": 2**power, "num_warps": 4}, status, message)
        for power, status in enumerate(failures, start=12)
    ]
    return [
        TrialRecord(f"{task_id}-{at}", at, config, status, finished_at=moment, **more)
        for at, (config, status, more) in enumerate(found)
    ]


def outcome(verdict: str = "faster", **changes: Any) -> SelectionRecord:
    """The outcome of a task of `standard_trials`."""
    facts: dict[str, Any] = {
        "winner": WINNER,
        "tie_set": (TIE, WINNER),
        "verdict": verdict,
        "default": DEFAULT,
        "median_us": 10.0,
        "default_us": 15.0,
        "log_ratio": LogRatio(0.405465, 0.39, 0.42),
        "confirmed_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    return SelectionRecord(**{**facts, **changes})
