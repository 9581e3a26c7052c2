"""Exporter of T4 1.0.0, the autotuning community's format: all trials of a task, times in ms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from results_db.stored_records import TaskInfo, TrialRecord
from search_spaces.records import Status, digest
from tuner.runtime import file_stem, slug
from tuner.tables.exporters import File
from tuner.tables.results import Results
from tuner.tables.text import device_stem

VERSION = "1.0.0"


class T4:
    """`t4`: a results file and a metadata file per task with trials."""

    def files(self, results: Results) -> Iterator[File]:
        for task in results.tasks:
            trials = results.trials(task.task_id)
            if not trials:
                continue
            name = task_name(task)
            document = {
                "schema_version": VERSION,
                "metadata": _metadata(results, task),
                "results": [_result(trial) for trial in trials],
            }
            yield File(f"{name}.t4.json", _bytes(document), (task.task_id,))
            metadata = {"schema_version": VERSION, "metadata": _environment(results, task)}
            yield File(f"{name}.t4-metadata.json", _bytes(metadata), (task.task_id,))


def task_name(task: TaskInfo) -> str:
    """A file name for a task: kernel, workload, device and a digest of the whole key."""
    key = task.key
    # The digest includes the workload, since its words are shortened.
    code = [key.kernel, key.workload.as_dict(), key.launch_hash]
    suffix = digest([*code, key.device.fingerprint, key.toolchain.key, key.protocol], 8)
    words = "-".join(f"{name}{value}" for name, value in key.workload.dims)
    device = device_stem(key.device.name, key.device.kind)
    return f"{file_stem(key.kernel)}-{slug(words)}@{device}-{suffix}"


def _result(trial: TrialRecord) -> dict[str, Any]:
    correct = trial.status is Status.CORRECT
    measurements = []
    if trial.median_us is not None:
        measurements.append({"name": "time", "value": _ms(trial.median_us), "unit": "ms"})
    return {
        "timestamp": trial.finished_at.isoformat() if trial.finished_at else "",
        "configuration": dict(trial.config),
        "objectives": ["time"],
        "times": {
            "compilation_time": trial.build_s * 1e3,
            "runtimes": [_ms(sample) for sample in trial.samples_us],
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": 0.0,
        },
        "invalidity": str(trial.status),
        "correctness": 1 if correct else 0,
        "measurements": measurements,
    }


def _ms(microseconds: float) -> float:
    return round(microseconds / 1e3, 9)


def _metadata(results: Results, task: TaskInfo) -> dict[str, Any]:
    key = task.key
    return {
        "kernel": key.kernel,
        "launch_hash": key.launch_hash,
        "workload": key.workload.as_dict(),
        "device": key.device.name,
        "run": results.run_id,
        "campaign": results.run.campaign,
    }


def _environment(results: Results, task: TaskInfo) -> dict[str, Any]:
    versions = {name: text for name, text in asdict(task.key.toolchain).items() if text}
    device = {**asdict(task.key.device), "fingerprint": task.key.device.fingerprint}
    del device["uuid"]
    return {
        "hardware": {
            "hardware_description": [device],
            "operating_system": f"{results.run.environment.get('system') or ''}",
        },
        "environment": {
            "device_query": device,
            "requirements": [f"{name}=={text}" for name, text in sorted(versions.items())],
        },
    }


def _bytes(document: object) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
