"""Facts of a run's environment, its measuring protocol, and digests and seeds derived from them."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from search_spaces.records import Value, Workload, digest
from tuner.settings.sections import MeasureConfig
from workers import backend_kinds
from workers.job_records import MeasurementProtocol

_COMPILE_SECONDS = 1.2
_REVISION = "TUNER_REVISION"


def facts(base: Path, *, fresh: bool) -> dict[str, Value]:
    """Host, system and state of the sources, for the report's environment panel."""
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count() or 0,
        "git": revision(base),
        "dirty": bool(_git(base, "status", "--porcelain", "--untracked-files=no")),
        "fresh": fresh,
    }


def revision(base: Path) -> str:
    """The git revision of a folder; empty where there is none.

    The variable `TUNER_REVISION` takes precedence, for sources without their history.
    """
    return os.environ.get(_REVISION) or _git(base, "rev-parse", "--short=12", "HEAD")


def protocol(measure: MeasureConfig) -> MeasurementProtocol:
    """The measuring protocol that the configuration describes."""
    return MeasurementProtocol(
        method=measure.method,
        cache=measure.cache,
        warm_ms=measure.warm_ms,
        seeds=tuple(measure.seeds),
        pairs=tuple(measure.pairs),
        cap=measure.cap,
        near=measure.near,
        hopeless=measure.hopeless,
        rounds=measure.rounds,
        round_pairs=measure.round_pairs,
        epsilon=measure.epsilon,
        delta=measure.delta,
        precision=measure.precision,
        final_pairs=measure.final_pairs,
    )


def baselines(measure: MeasureConfig, names: Iterable[str]) -> tuple[str, ...]:
    """The kernel's baselines that confirmations measure, sorted by name."""
    selected = measure.baselines
    return tuple(sorted(name for name in names if selected is None or name in selected))


def protocol_key(protocol: MeasurementProtocol) -> str:
    """Digest of the measuring protocol; times measured under another one are not reused."""
    return digest(asdict(protocol))


def task_seed(seed: int, kernel: str, workload: Workload) -> int:
    """The seed of one task; the same on every machine."""
    text = f"{seed}/{kernel}/{workload.key}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")


def seconds_per_trial(kind: str, compile_only: bool) -> float:
    """Estimated seconds per trial, for `--dry-run`."""
    return _COMPILE_SECONDS if compile_only else backend_kinds.spec(kind).seconds_per_trial


def _git(base: Path, *arguments: str) -> str:
    command = ["git", "-C", str(base), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
