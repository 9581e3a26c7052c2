"""Compile variants in child processes that see no GPU."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from tuner.bundling.bundle_sources import Variant
from workers.compiling.process_builder import ProcessBuilder
from workers.job_records import Artifact, BuildJob, Failure
from workers.processes.worker_lost import WorkerLost

#: The longest that one variant may take.
_TIMEOUT_S = 600.0


@dataclass
class Built:
    """What came of variants."""

    #: Of Triton's cache by path, compressed.
    files: dict[str, bytes] = field(default_factory=dict)
    #: By kernel the workloads that have a compiled config.
    calls: dict[str, list[str]] = field(default_factory=dict)
    #: One line for each variant that cannot be compiled.
    failed: list[str] = field(default_factory=list)


def build_all(
    variants: Sequence[Variant], compiled: Mapping[str, bytes], processes: int = 0
) -> Built:
    """Compile variants with what they need on the host.

    compiled: files that are there already. processes: how many at a time, by default one for each
    processor.
    """
    if not variants:
        return Built({**compiled})
    count = min(processes or len(os.sched_getaffinity(0)), len(variants))
    paths = (os.getcwd(),)
    builders = [ProcessBuilder(worker_id=f"builder {at}", paths=paths) for at in range(count)]
    free: queue.SimpleQueue[ProcessBuilder] = queue.SimpleQueue()
    for builder in builders:
        free.put(builder)

    def build(variant: Variant) -> Artifact | str:
        builder = free.get()
        try:
            job = BuildJob(
                variant.name, variant.kernel, variant.workload, variant.config, variant.device,
                timeout_s=_TIMEOUT_S, host_modules=True,
            )  # fmt: skip
            result = builder.build(job)
            return result.message if isinstance(result, Failure) else result
        except WorkerLost as lost:
            return f"{lost}".splitlines()[0]
        finally:
            free.put(builder)

    try:
        with ThreadPoolExecutor(count) as threads:
            found = _collect(variants, threads.map(build, variants))
            return replace(found, files={**compiled, **found.files})
    finally:
        for builder in builders:
            builder.close()


def _collect(variants: Sequence[Variant], results: Iterable[Artifact | str]) -> Built:
    found = Built()
    for variant, result in zip(variants, results, strict=True):
        if isinstance(result, str):
            found.failed.append(f"{variant.name} [{variant.workload.key}]: {result}")
            continue
        found.files.update(result.files)
        listed = found.calls.setdefault(variant.name, [])
        if variant.workload.key not in listed:
            listed.append(variant.workload.key)
    return found
