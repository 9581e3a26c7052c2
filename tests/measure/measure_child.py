"""A backend in a separate process, started with the environment of its kind."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from workers import backend_kinds
from workers.job_records import (
    Artifact,
    KernelRef,
    MeasureJob,
    MeasurementProtocol,
    Mode,
    StaticFacts,
)

_HERE = Path(__file__).parent
QUICK = MeasurementProtocol(pairs=(3, 6), rounds=2, round_pairs=8, final_pairs=8, warm_ms=1.0)

_backend = None


def _start(kind, cache_dir):
    global _backend
    _backend = backend_kinds.create(kind, cache_dir=cache_dir)


def _measure(job):
    return _backend.measure(job), _backend.poisoned


def _prepare_part(job, part):
    return _backend.prepare_part(job, part)


def _compiled_graphs():
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def _info():
    return _backend.info()


def _calibration():
    return _backend.calibration()


class Child:
    """Measures jobs of one kernel of a neighbouring module in a child process."""

    def __init__(
        self, kind: str, kernel: str, cache_dir: Path, module: str = "measure_kernels"
    ) -> None:
        spec = kernel if module == "" else f"{_HERE / module}.py:{kernel}"
        self._ref = KernelRef(spec)
        self.cache_dir = cache_dir
        changes = backend_kinds.environment(kind, str(cache_dir))
        before = dict(os.environ)
        os.environ.update(changes)
        try:
            self._pool = ProcessPoolExecutor(
                1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start,
                initargs=(kind, str(cache_dir)),
            )
            self.device, self.toolchain = self._pool.submit(_info).result()
        finally:
            os.environ.clear()
            os.environ.update(before)

    def artifact(self, config: dict, **changes) -> Artifact:
        """An artifact without files, for backends that load no binary."""
        facts = StaticFacts(registers=24)
        given = {"target": self.device.target, "toolchain": self.toolchain, "facts": facts}
        return Artifact(config, **{**given, "binary_hash": f"hash of {config}", **changes})

    def job(self, workload, *candidates, **given) -> MeasureJob:
        """candidates: artifacts or configs. In a screening of several the last one is the
        incumbent."""
        artifacts = tuple(self.artifact(e) if isinstance(e, dict) else e for e in candidates)
        fields = {"mode": Mode.SCREENING, "protocol": QUICK, **given}
        fields.setdefault("incumbent", fields["mode"] is Mode.SCREENING and len(candidates) > 1)
        return MeasureJob("job", self._ref, workload, artifacts, **fields)

    def run(self, job: MeasureJob):
        """The reply and whether the backend is poisoned."""
        return self._pool.submit(_measure, job).result()

    def prepare_part(self, workload, part, **given):
        """The result of a part of preparing the task's confirmation."""
        return self._pool.submit(_prepare_part, self.job(workload, **given), part).result()

    def compiled_graphs(self) -> int:
        """How many graphs torch has compiled in this process."""
        return self._pool.submit(_compiled_graphs).result()

    def measure(self, workload, *candidates, **given):
        reply, poisoned = self.run(self.job(workload, *candidates, **given))
        assert not poisoned
        return reply

    def calibration(self):
        return self._pool.submit(_calibration).result()

    def close(self) -> None:
        self._pool.shutdown()
