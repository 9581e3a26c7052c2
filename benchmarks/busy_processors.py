"""Keep processors busy with builds, so that a part of a host behaves as on a fully loaded host."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from acceptance.fields import FIELDS

from search_spaces.records import Device

_FIELD = "matmul_4096"


@contextmanager
def occupied(processors: Collection[int], device: Device) -> Iterator[None]:
    """A context in which each processor builds variants of a matmul, one after the other.

    device: the device to build for; it is not opened.
    """
    context = get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="occupied-", ignore_cleanup_errors=True) as folder:
        busy = [
            context.Process(target=_build, args=(processor, device, folder), daemon=True)
            for processor in sorted(processors)
        ]
        try:
            for process in busy:
                process.start()
            yield
        finally:
            for process in busy:
                process.kill()
                process.join()


def _build(processor: int, device: Device, folder: str) -> None:
    os.sched_setaffinity(0, {processor})
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from workers.compiling import build
    from workers.job_records import BuildJob

    field = FIELDS[_FIELD]
    for turn in itertools.count():
        cache = Path(folder) / f"{processor}-{turn}"
        for at, config in enumerate(field.configs(device)):
            job = BuildJob(f"{at}", field.ref, field.workload, config, replace(device, uuid=""))
            build(job, cache)
