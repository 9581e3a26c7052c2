"""What is built and measured, and the jobs for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from search_spaces.records import Config, Device, Workload
from workers.job_records import (
    Artifact,
    BuildJob,
    Check,
    KernelRef,
    MeasureJob,
    MeasurementProtocol,
    Mode,
)

#: Finals have many candidates: they get at least this many times the time of a screening.
FINALS_TIME = 3.0
_PROTOCOL = MeasurementProtocol()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTask:
    """A kernel and a workload on a device, the measuring protocol, and time limits of jobs."""

    kernel: KernelRef
    workload: Workload
    device: Device
    #: Names of the baselines that the confirmation measures.
    baselines: tuple[str, ...] = ()
    #: A workload with odd sizes on which a winner must also be correct.
    check_size: Workload | None = None
    protocol: MeasurementProtocol = _PROTOCOL
    build_timeout_s: float = 120.0
    measure_timeout_s: float = 120.0
    baseline_timeout_s: float = 120.0

    def make_build_job(
        self, job_id: str, config: Config, *, check: bool = False, refuse_spills: bool = False
    ) -> BuildJob:
        """The build of a config. check: for the check size, where there is one."""
        workload = self.check_size if check and self.check_size is not None else self.workload
        return BuildJob(
            job_id,
            self.kernel,
            workload,
            config,
            self.device,
            self.build_timeout_s,
            refuse_spills=refuse_spills,
        )

    def make_measure_job(
        self,
        job_id: str,
        mode: Mode,
        candidates: tuple[Artifact, ...],
        check: Artifact | None = None,
    ) -> MeasureJob:
        """A job with the time limit of one variant. check: the first candidate, built for the check
        size, on which it must be correct too."""
        return MeasureJob(
            job_id=job_id,
            kernel=self.kernel,
            workload=self.workload,
            candidates=candidates,
            mode=mode,
            protocol=self.protocol,
            timeout_s=self.measure_timeout_s,
            candidate_timeout_s=self.measure_timeout_s,
            baseline_timeout_s=self.baseline_timeout_s,
            checks=(Check(self.check_size, check),) if self.check_size and check else (),
        )

    def make_confirmation(
        self, job_id: str, candidates: tuple[Artifact, ...], check: Artifact | None
    ) -> MeasureJob:
        """A job that times candidates and baselines, interleaved. check: as above."""
        limits_s = self.measure_timeout_s * max(FINALS_TIME, len(candidates))
        return replace(
            self.make_measure_job(job_id, Mode.CONFIRM, candidates, check),
            baselines=self.baselines,
            timeout_s=limits_s + self.baseline_timeout_s * len(self.baselines),
        )
