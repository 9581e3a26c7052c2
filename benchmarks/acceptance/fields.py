"""Real variants for the tests: the farm's builder builds them before anything is timed."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from matmul_tasks import TASKS

from search_spaces.records import Device, Workload, config_key
from search_spaces.registry import load
from workers.job_records import Artifact, BuildJob, KernelRef


@dataclass(frozen=True, slots=True)
class Field:
    """A number of variants of one workload: the default first, then a sample drawn with a fixed
    seed.
    """

    name: str
    kernel: str
    workload: Workload
    variants: int
    space: tuple[tuple[str, tuple], ...] = ()

    @property
    def ref(self) -> KernelRef:
        return KernelRef(self.kernel)

    def configs(self, device: Device, share: float = 1.0) -> list[dict]:
        kernel = load(self.kernel)
        bound = kernel.space(self.workload).bind(self.workload, device)
        if self.space:
            bound = bound.restrict({name: list(values) for name, values in self.space})
        default = dict(kernel.default_config(self.workload, device))
        others = [dict(c) for c in bound.enumerate() if config_key(c) != config_key(default)]
        count = max(1, round(share * self.variants)) - 1
        drawn = random.Random(self.name).sample(others, min(count, len(others)))
        return [default, *drawn]


def _matmul(name: str, m: int, n: int, k: int, variants: int) -> Field:
    workload = Workload.of(M=m, N=n, K=k, dtype="bfloat16")
    return Field(name, "matmul", workload, variants, (("loads", ("pointer",)),))


def _rows(name: str, kernel: str, rows: int, cols: int, variants: int) -> Field:
    return Field(name, kernel, Workload.of(rows=rows, cols=cols, dtype="bfloat16"), variants)


_TASK_A = TASKS["a"]
FIELDS = {
    field.name: field
    for field in (
        _rows("softmax_512x1024", "softmax", 512, 1024, 32),
        _rows("softmax_2048x4096", "softmax", 2048, 4096, 8),
        _rows("layer_norm_4096x4096", "layer_norm", 4096, 4096, 16),
        _rows("softmax_8192x8192", "softmax", 8192, 8192, 16),
        _rows("layer_norm_32768x8192", "layer_norm", 32768, 8192, 6),
        _matmul("matmul_1024", 1024, 1024, 1024, 16),
        Field("matmul_4096", "matmul", _TASK_A.workload, 65, (("loads", ("pointer",)),)),
        _matmul("matmul_8192", 8192, 8192, 8192, 3),
        _matmul("matmul_5ms", 16384, 8192, 12288, 1),
        # The two fields hold a thousand variants together, of about 50 us each.
        _rows("thousand_softmax", "softmax", 49152, 1024, 748),
        _rows("thousand_layer_norm", "layer_norm", 49152, 1024, 252),
    )
}


def build_fields(
    names: Sequence[str], device: Device, folder: Path, share: float
) -> tuple[dict[str, list[Artifact]], list[str]]:
    """Build the fields: the artifacts by field, the default's first, and the builds that failed.

    share: the share of variants that the two large fields take; the other fields are small.
    """
    from workers.compiling import build

    orders = []
    for name in names:
        field = FIELDS[name]
        part = share if name.startswith("thousand") else 1.0
        orders += [
            (name, BuildJob(f"{at}", field.ref, field.workload, config, device, timeout_s=60.0))
            for at, config in enumerate(field.configs(device, part))
        ]
    workers = max(1, min(len(os.sched_getaffinity(0)) - 1, len(orders)))
    folders = [folder / f"{at % workers}" for at in range(len(orders))]
    with ProcessPoolExecutor(workers, get_context("fork"), _without_device) as pool:
        results = list(pool.map(build, [job for _, job in orders], folders, chunksize=2))
    built: dict[str, list[Artifact]] = {name: [] for name in names}
    problems = []
    for (name, _), result in zip(orders, results, strict=True):
        if isinstance(result, Artifact):
            built[name].append(result)
        else:
            problems.append(f"{name}: {result.message}")
    return built, problems


def _without_device() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
