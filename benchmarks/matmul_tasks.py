"""The two matmul tasks for comparisons between tuners; every tuner gets the same list of configs.

`a`: M=N=K=4096, 336 configs on an H200. `b`: M=32 N=8192 K=4096, 279 configs. Both are bfloat16
with plain pointers. tests/spaces/test_families.py asserts the counts.

`OTHERS` are tasks of other kernels, whose whole space tuner searches alone.
"""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from search_spaces.atomic_file import write_atomic
from search_spaces.records import Workload, config_key
from search_spaces.registry import load

KERNEL = "matmul"
#: Parameters that every tuner searches: those of the pointer kernel that a config still chooses.
TUNED = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")


@dataclass(frozen=True, slots=True)
class MatmulTask:
    """A workload and the restriction of its space: parameter -> allowed values."""

    name: str
    workload: Workload
    space: dict
    #: The kernel's name.
    kernel: str = KERNEL


TASKS = {
    "a": MatmulTask(
        "a", Workload.of(M=4096, N=4096, K=4096, dtype="bfloat16"), {"loads": ["pointer"]}
    ),
    "b": MatmulTask(
        "b",
        Workload.of(M=32, N=8192, K=4096, dtype="bfloat16"),
        {
            "BLOCK_N": [32, 64, 128, 256],
            "BLOCK_K": [64, 128, 256],
            "GROUP_M": [1],
            "loads": ["pointer"],
            "SPLIT_K": [1],
        },
    ),
}


OTHERS = {
    "layer_norm": MatmulTask(
        "layer_norm", Workload.of(rows=65536, cols=768, dtype="bfloat16"), {}, "layer_norm"
    ),
    "attention": MatmulTask(
        "attention",
        Workload.of(batch=2, heads=32, sequence=8192, head_dim=128, causal=True, dtype="bfloat16"),
        {},
        "attention",
    ),
}


def cold_cache() -> str:
    """Point Triton of this process and its children at an empty cache. Call it before importing
    Triton.
    """
    folder = tempfile.mkdtemp(prefix="cold-triton-")
    os.environ["TRITON_CACHE_DIR"] = folder
    return folder


def device_here():
    """The GPU of this machine, or an offline H200 where there is none."""
    from workers import device

    devices = device.find_devices("cuda")
    return devices[0] if devices else device.offline("cuda:90")


def configs_of(task: MatmulTask, device) -> list[dict]:
    """All feasible configs of the task on that device, in the order of the space."""
    bound = load(task.kernel).space(task.workload).bind(task.workload, device)
    bound = bound.restrict(task.space) if task.space else bound
    return [dict(config) for config in bound.enumerate()]


def default_of(task: MatmulTask, device) -> dict:
    """The kernel's own default, which is in both lists."""
    return dict(load(task.kernel).default_config(task.workload, device))


def tuned(config) -> dict:
    """The searched part of a config, as integers."""
    return {name: int(config[name]) for name in TUNED if name in config}


class Problem:
    """Inputs on the GPU and launches of one task's configs; every tuner uses the same kernel."""

    def __init__(self, task: MatmulTask, device, seed: int = 1):
        import torch

        self.kernel, self.task = load(task.kernel), task
        self.configs = configs_of(task, device)
        self.inputs = dict(self.kernel.make_inputs(task.workload, seed, "cuda"))
        (spec,) = self.kernel.outputs(task.workload).values()
        self.out = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="cuda")
        self._whole = {config_key(tuned(config)): config for config in self.configs}

    def full_config(self, part) -> dict:
        """The full config of another tool's choice. Raises KeyError outside the list."""
        return self._whole[config_key(tuned(part))]

    def launch(self, config, out=None):
        """The config's launch on the shared inputs, into `out` or the shared output."""
        tensors = {**self.inputs, "out": self.out if out is None else out}
        (launch,) = self.kernel.launches(self.task.workload, config, tensors)
        return launch

    def error_of(self, out) -> float:
        """||out - reference|| / ||reference|| in float64."""
        reference = self.kernel.reference(self.task.workload, self.inputs)["out"]
        return float((out.double() - reference).norm() / reference.norm())


def facts() -> dict:
    """The environment of a run: date, device, UUID of its card, cores, versions."""
    import platform
    from datetime import UTC, datetime

    import torch
    import triton

    has_gpu = torch.cuda.is_available()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": torch.cuda.get_device_name() if has_gpu else "none",
        "card": f"{torch.cuda.get_device_properties(0).uuid}" if has_gpu else "",
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda or "",
    }


def write(path: Path, document: dict) -> None:
    """Write a JSON file atomically."""
    import json

    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, sort_keys=True, default=_plain) + "\n"
    write_atomic(path, text.encode())


def _plain(value):
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return f"{value}"
