"""The CPU: variants compiled by Inductor, timed by the performance counter."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from search_spaces.errors import TunerError
from search_spaces.records import config_key
from workers.compiling import count_compilations
from workers.job_records import (
    Artifact,
    Calibration,
    Failure,
    MeasurementProtocol,
)
from workers.measure.gate.checks import check_variant
from workers.measure.session_backend import PreparedCandidate
from workers.measure.task_tensors import TaskTensors
from workers.measure.timers.perf_counter import PerfCounterTimer
from workers.measure.timers.timer import Candidate
from workers.measure.torch_backend import TorchBackend

#: Loaded variants that a task keeps, because the incumbent is in every screening.
_LOADED = 16
#: Each variant has an entry in Dynamo's cache; beyond the limit it must fail, not run eagerly.
_DYNAMO = {
    "recompile_limit": 10_000,
    "accumulated_recompile_limit": 100_000,
    "fail_on_recompile_limit_hit": True,
}


class CpuBackend(TorchBackend):
    """Times functions of the inputs on one CPU; caches are warm unless the protocol rotates inputs.

    cores: the cores that the process may use, such as `0,2-5`; by default all of its affinity.
    """

    kind = "cpu"
    torch_device = "cpu"

    def __init__(
        self,
        *,
        index: int = 0,
        cache_dir: str | os.PathLike[str],
        tasks: int = 8,
        cores: str | None = None,
    ) -> None:
        import torch

        if cores is not None:
            os.sched_setaffinity(0, _cores(cores))
        super().__init__(index=index, cache_dir=cache_dir, tasks=tasks)
        self._baseline_threads = torch.get_num_threads()

    @contextmanager
    def _settings(self) -> Iterator[None]:
        import torch._dynamo

        with super()._settings(), torch._dynamo.config.patch(_DYNAMO), _threads_restored():
            yield

    def prepare(
        self, task: TaskTensors, artifact: Artifact, *, check: bool
    ) -> PreparedCandidate | Failure:
        try:
            if refused := self._install(artifact):
                return refused
            threads = task.kernel.cpu_threads(task.workload, artifact.config)
            _use_threads(threads)
            variant = self._variant(task, artifact)

            def run() -> Mapping[str, Any]:
                return variant(task.inputs)

            with count_compilations() as compilations:
                variant(task.inputs)
                checked = (
                    check_variant(task, run, observer=self._observer, **self._demand_bits(task))
                    if check
                    else None
                )
        except Exception as problem:
            return self._make_failure(problem)
        if isinstance(checked, Failure):
            return checked
        candidate = Candidate(
            config_key(artifact.config),
            run=run,
            enter=lambda: _use_threads(threads),
            rotations=tuple(partial(variant, inputs) for inputs in self._copies(task)),
        )
        return self._make_prepared(task, candidate, checked, compiled=compilations.count)

    def prepare_baseline(self, task: TaskTensors, name: str) -> PreparedCandidate | Failure:
        from workers.compiling import headers, linking

        # Builders have compiled the headers of these flags, which a baseline has in common with the
        # default config.
        own = self._cache_dir.resolve()
        linking.without_reading_torch(own / "empty")
        with headers.made_ones(own / "headers"):
            return super().prepare_baseline(task, name)

    def timer(
        self, constants: MeasurementProtocol, entries: Sequence[PreparedCandidate]
    ) -> PerfCounterTimer:
        return self.plain_timer(constants)

    def plain_timer(self, constants: MeasurementProtocol) -> PerfCounterTimer:
        cache = "rotate" if constants.cache == "rotate" else "warm"
        return PerfCounterTimer(constants.min_batch_us, self._warm_up, cache=cache)

    def _calibrate(self) -> Calibration:
        from workers.measure.timers.calibration import calibrate_cpu

        with _threads_restored():
            _use_threads(self._baseline_threads)
            return calibrate_cpu()

    def _enter_baseline(self) -> None:
        _use_threads(self._baseline_threads)

    def _variant(self, task: TaskTensors, artifact: Artifact) -> Callable[..., Mapping[str, Any]]:
        key = artifact.binary_hash + config_key(artifact.config)
        if key not in task.loaded:
            while len(task.loaded) >= _LOADED:
                task.loaded.popitem(last=False)
            task.loaded[key] = task.kernel.cpu_callable(task.workload, artifact.config)
        task.loaded.move_to_end(key)
        variant: Callable[..., Mapping[str, Any]] = task.loaded[key]
        return variant


def _use_threads(threads: int) -> None:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@contextmanager
def _threads_restored() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cores(text: str) -> set[int]:
    """The cores of `0,2-5`."""
    cores: set[int] = set()
    for part in text.replace(" ", "").split(","):
        if not re.fullmatch(r"\d+(-\d+)?", part):
            raise TunerError(f"cores {text!r} is not a list of cores", "write them as 0,2-5")
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    if not cores <= os.sched_getaffinity(0):
        allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        raise TunerError(f"cores {text!r} are not all there", f"this process may use {allowed}")
    return cores
