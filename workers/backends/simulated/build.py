"""Builds of recorded kernels: the recorded outcome, with the recorded build time."""

from __future__ import annotations

import os
import time
from functools import lru_cache

from search_spaces.errors import TunerError
from search_spaces.recorded.entries import RecordedConfig
from search_spaces.recorded.recorded_space import RecordedSpace
from search_spaces.records import Config, Status, config_key, digest
from workers.job_records import Artifact, BuildJob, Failure, KernelRef, StaticFacts

_PREFIX = "recorded:"
_BUILD_FAILURES = (Status.CONSTRAINTS, Status.COMPILE)


def simulate_build(job: BuildJob, time_scale: float = 0.0) -> Artifact | Failure:
    """The recorded outcome of a config's build, after `time_scale` times the recorded seconds."""
    space = recorded_space(job.kernel)
    if job.config not in space:
        return make_unrecorded_failure(job.config)
    entry = space[job.config]
    time.sleep(entry.build_s * time_scale)
    facts = StaticFacts(entry.registers, entry.spill_bytes, entry.shared_bytes)
    if entry.status in _BUILD_FAILURES:
        return recorded_failure(entry, build_s=entry.build_s, facts=facts)
    return Artifact(
        config=job.config,
        target=job.device.target,
        toolchain=space.toolchain,
        binary_hash=entry.binary or digest(dict(job.config)),
        facts=facts,
        build_s=entry.build_s,
    )


def recorded_space(kernel: KernelRef) -> RecordedSpace:
    """The space that a kernel replays; raises `TunerError` for a kernel that is no recording."""
    if not kernel.spec.startswith(_PREFIX):
        raise TunerError(
            f"kernel {kernel.spec}: the simulated backend runs recordings only",
            f"name a recorded space as {_PREFIX}FILE",
        )
    path = os.path.abspath(kernel.spec.removeprefix(_PREFIX))
    status = os.stat(path) if os.path.exists(path) else None
    return _load(path, (status.st_mtime_ns, status.st_size) if status else None)


@lru_cache(maxsize=64)
def _load(path: str, stamp: tuple[int, int] | None) -> RecordedSpace:
    """stamp: of the file, so that one that is recorded again is read again."""
    return RecordedSpace.load(path)


def make_unrecorded_failure(config: Config) -> Failure:
    """The failure of a config that the space does not contain."""
    return Failure(Status.CONSTRAINTS, f"nothing was recorded for {config_key(config)}")


def recorded_failure(
    entry: RecordedConfig,
    *,
    build_s: float = 0.0,
    facts: StaticFacts | None = None,
    binary_hash: str = "",
) -> Failure:
    """The failure that was recorded of a config."""
    message = entry.message or f"recorded as {entry.status}"
    return Failure(entry.status, message, build_s=build_s, facts=facts, binary_hash=binary_hash)
