"""The device as the tests use it: the farm's backend, its clocks and its jobs, in this process."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from acceptance.fields import FIELDS
from workers.job_records import (
    Artifact,
    Calibration,
    Failure,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
    Timing,
)
from workers.measure.race.confirmation import confirm
from workers.measure.race.samples import rotated_orders
from workers.measure.session_backend import PreparedCandidate
from workers.measure.timers.methods import choose_method, gpu_timer
from workers.measure.timers.timer import Candidate, Timer

FINAL_PAIRS = MeasurementProtocol().final_pairs


@dataclass(frozen=True, slots=True)
class Setup:
    """The input of every test."""

    kind: str
    folder: Path
    #: Share of the full number of repetitions.
    scale: float = 1.0
    calibration: Calibration | None = None
    #: Further calibrations, each from another process.
    calibrations: tuple[Calibration, ...] = ()
    #: Artifacts by field, the default's first.
    built: dict[str, list[Artifact]] = field(default_factory=dict)
    #: Documents of other scripts, by name.
    files: dict[str, Path] = field(default_factory=dict)

    def times(self, full: int, least: int = 1) -> int:
        return max(least, round(self.scale * full))


class Harness:
    """One GPU, calibrated on creation unless the setup already holds its calibration."""

    def __init__(self, setup: Setup, index: int = 0) -> None:
        import torch

        from workers import backend_kinds

        cache = setup.folder / "cache"
        self.setup = setup
        self.backend = backend_kinds.create(setup.kind, index=index, cache_dir=f"{cache}")
        if setup.calibration is not None:
            self.backend._calibration = setup.calibration
        self.calibration = self.backend.calibration()
        self.warm_up = self.backend._warm_up
        self.flush = self.backend._flush_buffer()
        self.torch = torch
        self._verified: set[str] = set()

    def timer(self, method: str, cache: str = "cold", calibration=None) -> Timer:
        known = self.calibration if calibration is None else calibration
        return gpu_timer(method, self.flush, self.warm_up, known, cache)

    def chosen_timer(self, candidates: Sequence[Candidate], cache: str = "cold") -> Timer:
        """The timer that the farm's rule chooses for these candidates from a few readings."""
        few = list(candidates)[-4:]
        rows = self.timer("events", cache).collect(few, rotated_orders(len(few), 3))
        return self.timer(choose_method(min(map(min, rows)), cache), cache)

    def median_us(self, timer: Timer, candidate: Candidate, runs: int = 20) -> float:
        timer.collect([candidate], [[0]] * 2)
        return statistics.median(timer.collect([candidate], [[0]] * runs)[0])

    def final(
        self,
        timer: Timer,
        candidates: Sequence[Candidate],
        pairs: int = FINAL_PAIRS,
        precision: float = MeasurementProtocol().precision,
    ):
        """Samples of the candidates, taken as in a confirmation."""
        constants = replace(MeasurementProtocol(), final_pairs=pairs, precision=precision)
        entries = confirm(timer, candidates, constants)
        return [entry.samples_us for entry in entries]

    # -- jobs ----------------------------------------------------------------------------------
    def job(
        self, name: str, candidates: Sequence[Artifact], mode: Mode, *, incumbent=False, **protocol
    ) -> Measurement:
        """Run one job on a field's task; each candidate is checked only the first time, as in a
        campaign.
        """
        variants = FIELDS[name]
        verified = frozenset(self._verified & {a.binary_hash for a in candidates})
        measured = self.backend.measure(
            MeasureJob(
                name,
                variants.ref,
                variants.workload,
                tuple(candidates),
                mode,
                incumbent=incumbent,
                verified=verified,
                protocol=MeasurementProtocol(**protocol),
                calibration=self.calibration,
            )
        )
        if isinstance(measured, Failure):
            raise RuntimeError(f"{name}: {measured.message}")
        for artifact, outcome in zip(candidates, measured.outcomes, strict=True):
            if isinstance(outcome, Timing) and outcome.samples_us:
                self._verified.add(artifact.binary_hash)
        return measured

    def entries(self, name: str, count: int) -> dict[str, tuple[Artifact, PreparedCandidate]]:
        """At most `count` variants of a field that passed the gate, ready for timing."""
        variants = FIELDS[name]
        self.backend._observer.begin_job()
        task = self.backend._tasks.get(variants.ref, variants.workload, MeasurementProtocol().seeds)
        ready = {}
        for at, artifact in enumerate(self.setup.built[name][:count]):
            entry = self.backend.prepare(task, artifact, check=True)
            if isinstance(entry, PreparedCandidate):
                ready[f"{name}#{at}"] = artifact, entry
        return ready


def candidates_of(ready: dict[str, tuple[Artifact, PreparedCandidate]]) -> list[Candidate]:
    """The candidate without the checks of a session: these tests do not audit timed runs."""
    return [
        Candidate(name, entry.candidate.run, rotations=entry.candidate.rotations)
        for name, (_, entry) in ready.items()
    ]


def renamed(candidate: Candidate, name: str) -> Candidate:
    return replace(candidate, name=name)
