"""Runs made by hand for the report's tests: records from a seed, in a source that holds them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from results_db.errors import StoreError
from results_db.promotion_records import PromotionRecord
from results_db.stored_records import (
    BaselineRecord,
    CalibrationRecord,
    FinalRecord,
    RunInfo,
    SelectionRecord,
    TaskInfo,
    TaskKey,
    TrialRecord,
)
from search_spaces.records import Device, Status, Toolchain, Workload, config_key
from tuner.base.log_ratio import LogRatio
from workers.job_records import Calibration

#: Samples of trials by their number: the search looks at most of them only once.
DEPTHS = (1, 1, 1, 3, 9, 24)
START = datetime(2026, 11, 3, 2, 0, tzinfo=UTC)
H200 = Device(
    "cuda", "NVIDIA H200", "cuda:90", 132, 150_754_820_096, 232_448, 65_536, 32, 62_914_560, 700.0,
    "GPU-6f0c4a2e-91d3-4a55",
)  # fmt: skip
ABSENT = Device("cuda", "cuda:90 (not present)", "cuda:90", 0, 0, 232_448, 65_536)
CPU = Device("cpu", "AMD EPYC 9654", "cpu:x86-64-avx512", 2)
TOOLS = Toolchain("3.12.3", "2.11.0", "3.6.0", "13.0", "13.0.88", "580.95")


@dataclass
class MemorySource:
    """The reads of a report that `Store` has, over lists."""

    run_list: list[RunInfo] = field(default_factory=list)
    task_lists: dict[int, list[TaskInfo]] = field(default_factory=dict)
    trial_lists: dict[int, list[TrialRecord]] = field(default_factory=dict)
    calibration_list: list[CalibrationRecord] = field(default_factory=list)
    timelines: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    promotion_list: list[PromotionRecord] = field(default_factory=list)

    def runs(self, campaign: str | None = None, limit: int = 50) -> Sequence[RunInfo]:
        newest = sorted(self.run_list, key=lambda run: -run.run_id)
        return [run for run in newest if campaign in (None, run.campaign)][:limit]

    def run(self, run_id: int) -> RunInfo:
        for run in self.run_list:
            if run.run_id == run_id:
                return run
        raise StoreError(f"there is no run {run_id}", "`tuner status` lists them")

    def tasks(self, run_id: int) -> Sequence[TaskInfo]:
        return self.task_lists.get(run_id, [])

    def trials(self, task_id: int) -> Sequence[TrialRecord]:
        return self.trial_lists.get(task_id, [])

    def timeline(self, run_id: int) -> Mapping[str, Any] | None:
        return self.timelines.get(run_id)

    def promotions(self, run_id: int) -> Sequence[PromotionRecord]:
        return [record for record in self.promotion_list if record.run_id == run_id]

    def calibrations(self, device_fingerprint: str) -> Sequence[CalibrationRecord]:
        known = self.calibration_list
        return [each for each in known if each.device.fingerprint == device_fingerprint]


def run_info(run_id: int = 1, status: str = "finished", campaign: str = "nightly", **environment):
    facts = {"host": "node-7", "git_sha": "4815765", "git_dirty": False, "system": "Linux 6.8"}
    begun = START + timedelta(days=run_id)
    return RunInfo(
        run_id, campaign, status, begun, begun + timedelta(minutes=9), "a3f19c", 7,
        facts | environment,
    )  # fmt: skip


def task_key(kernel: str, workload: Workload, device: Device = H200) -> TaskKey:
    return TaskKey(kernel, "src1", "space1", workload, device, TOOLS, "p1")


def samples(rng: random.Random, median_us: float, n: int = 60, sigma: float = 0.006):
    return tuple(median_us * math.exp(rng.gauss(0, sigma)) for _ in range(n))


def interval(rng: random.Random, ratio: float) -> LogRatio:
    value, half = math.log(ratio), 0.002 + 0.004 * rng.random()
    return LogRatio(value, value - half, value + half)


def trial_list(rng: random.Random, best_us: float, count: int = 80) -> list[TrialRecord]:
    """A search over a small matmul-like space; about a sixth of the trials fail."""
    trials = []
    for number in range(count):
        config = {
            "BLOCK_M": rng.choice([32, 64, 128, 256]),
            "BLOCK_N": rng.choice([64, 128, 256]),
            "num_stages": rng.choice([2, 3, 4]),
            "num_warps": rng.choice([4, 8]),
            "precision": rng.choice(["ieee", "tf32"]),
        }
        common = {
            "attempt_id": f"{rng.random()}",
            "number": number,
            "config": config,
            "strategy": "tpe",
            "build_s": 0.4 + 0.2 * rng.random(),
            "worker": f"node-7/{number % 2}",
            "finished_at": START + timedelta(seconds=number),
        }
        shared = 2 * config["num_stages"] * 32 * (config["BLOCK_M"] + config["BLOCK_N"])
        if rng.random() < 0.16:
            trials.append(_failed(rng, common, shared))
            continue
        penalty = (256 / config["BLOCK_M"]) ** 0.25 * (1 + 0.1 * abs(3 - config["num_stages"]))
        median_us = best_us * penalty * (1 + abs(rng.gauss(0, 0.15)))
        trials.append(
            TrialRecord(
                **common,
                status=Status.CORRECT,
                binary_hash=f"b{number}",
                registers=64 + 8 * rng.randrange(20),
                spill_bytes=rng.choice([0, 0, 0, 16]),
                shared_bytes=shared,
                device_s=0.03 + 0.02 * rng.random(),
                timing_s=0.012,
                deterministic=number % 17 != 3,
                method="events",
                cache="cold",
                median_us=median_us,
                error=3e-4,
                verified_by="device",
                samples_us=samples(rng, median_us, DEPTHS[number % 6], 0.004 + 0.01 * rng.random()),
                clocks={
                    "sm_mhz": rng.choice([1485.0, 1650.0, 1980.0]),
                    "power_w": 600 + 90 * rng.random(),
                    "temperature_c": 55.0,
                    "throttle": rng.choice(["", "sw_power_cap"]),
                    **({"repeated": 1.0} if number % 20 == 5 else {}),
                },
            )
        )
    return trials


def _failed(rng: random.Random, common: dict, shared: int) -> TrialRecord:
    status, message = rng.choice(
        [
            (Status.COMPILE, f"shared memory {shared} B exceeds the device's 232448 B"),
            (Status.COMPILE, "PassManager::run failed"),
            (Status.RUNTIME, "an illegal memory access was encountered"),
            (Status.TIMEOUT, "no answer within 60 s"),
            (Status.CORRECTNESS, f"relative error {rng.random():.3f} exceeds 0.002"),
        ]
    )
    return TrialRecord(
        **common,
        status=status,
        message=message,
        detail=f"Traceback (most recent call last):\n  {message}",
    )


def measured_task(
    source: MemorySource,
    run_id: int,
    kernel: str,
    workload: Workload,
    *,
    device: Device = H200,
    best_us: float = 60.0,
    gain: float = 1.3,
    verdict: str = "faster",
    count: int = 80,
) -> TaskInfo:
    """Add a confirmed task with its trials and three baselines."""
    rng = random.Random(ascii(f"{kernel}{workload.key}"))
    trials = trial_list(rng, best_us, count)
    ranked = sorted((t for t in trials if t.median_us), key=lambda t: t.median_us)
    winner = ranked[0]
    ratio, eager = interval(rng, gain), interval(rng, gain * 1.6)
    vendor = interval(rng, 0.94 + 0.3 * rng.random())
    default_us = best_us * gain
    selection = SelectionRecord(
        winner.config, tuple(t.config for t in ranked[:rng.randrange(1, 5)]), verdict,
        "fewest registers",
        trials[1].config, trials[0].config, best_us, default_us, ratio,
        samples(rng, best_us), 0, {"sm_mhz": 1650.0}, START,
    )  # fmt: skip
    baselines = (
        BaselineRecord("eager", Status.CORRECT, best_us * eager.ratio, eager),
        BaselineRecord("compile", Status.RUNTIME, message="CUDA out of memory"),
        BaselineRecord("vendor", Status.CORRECT, best_us * vendor.ratio, vendor),
    )
    task_id = 1000 * run_id + len(source.task_lists.setdefault(run_id, [])) + 1
    info = TaskInfo(
        task_id, run_id, task_key(kernel, workload, device), "done", best_us * 4e8, best_us * 2e6,
        0.002, "", selection, baselines, final_list(rng, ranked[:6]),
    )  # fmt: skip
    source.task_lists[run_id].append(info)
    source.trial_lists[task_id] = trials
    return info


def final_list(rng: random.Random, ranked: Sequence[TrialRecord]) -> tuple[FinalRecord, ...]:
    """A race over their configs, those after the fourth dropped early, one lost, and a
    confirmation of the first two."""
    raced = []
    configs = {config_key(trial.config): trial.config for trial in ranked}
    for place, config in enumerate(configs.values()):
        ln, half = 0.004 * place**2, 0.003 + 0.002 * (place > 3)
        time = ranked[0].median_us * math.exp(ln)
        raced.append(
            FinalRecord(
                stage="race",
                config=config,
                median_us=time,
                log_ratio=LogRatio(ln, ln - half * (place > 0), ln + half * (place > 0)),
                samples_us=samples(rng, time, 16 if place > 3 else 64),
                dropped=place > 3,
                method="graph",
                cache="cold",
            )
        )
    lost = FinalRecord("race", {"BLOCK_M": 1}, Status.TIMEOUT, message="no answer in 60 s")
    confirmed = [replace(each, stage="confirm", dropped=False) for each in raced[:2]]
    return (*raced, lost, *confirmed)


def calibration(device: Device = H200, host: str = "node-7", days: float = 2) -> CalibrationRecord:
    """What a worker found that many days, and a minute, after `START`."""
    overhead = {"events": 2.4, "graph": 0.31, "cupti": 0.0}
    rates = {"bfloat16": 7.9e8, "float32": 5.1e7}
    found = Calibration(0.032, overhead, 31.5, 4.24e6, rates)
    at = START + timedelta(days=days, minutes=1)
    return CalibrationRecord(device, TOOLS, host, at, found)


def built_task(source: MemorySource, run_id: int, kernel: str, workload: Workload, count: int = 64):
    """Add a task that was compiled and verified, never timed."""
    rng = random.Random(ascii(f"{kernel}{workload.key}"))
    trials = [
        replace(
            trial, source="built", median_us=None, samples_us=(), clocks={}, method="",
            verified_by="interpreter" if trial.status is Status.CORRECT else "",
        )
        for trial in trial_list(rng, 10.0, count)
    ]  # fmt: skip
    task_id = 1000 * run_id + len(source.task_lists.setdefault(run_id, [])) + 1
    info = TaskInfo(task_id, run_id, task_key(kernel, workload, ABSENT), "done")
    source.task_lists[run_id].append(info)
    source.trial_lists[task_id] = trials
    return info


def sample(tasks: int = 12, *, built: int = 2, cpu: int = 0) -> MemorySource:
    """A run with an earlier one of its campaign; verdicts of every kind."""
    busy = {
        "device_busy_share": 0.87,
        "busy_share_while_ready": 0.96,
        "device_s": 8.0,
        "timing_s": 2.5,
    }
    source = MemorySource([run_info(1, git_sha="01a2659"), replace(run_info(2), summary=busy)])
    source.calibration_list = [calibration(days=1), calibration()]
    verdicts = ["faster", "faster", "same", "undecided", "faster", "slower"]
    gains = [1.31, 2.4, 1.002, 1.02, 1.12, 0.97]
    for place in range(tasks):
        rows = 512 * 2 ** (place % 6)
        kernel = "softmax" if place % 2 else "matmul"
        workload = (
            Workload.of(M=rows, N=8192, dtype="bfloat16")
            if place % 2
            else Workload.of(M=rows, N=4096, K=4096 + 512 * (place // 6), dtype="bfloat16")
        )
        workload = workload.with_dims(batch=place // 6 + 1)
        measured_task(
            source, 2, kernel, workload, best_us=4.7 * 2 ** (place % 6),
            verdict=verdicts[place % 6], gain=gains[place % 6],
        )  # fmt: skip
    for place in range(built):
        built_task(source, 2, "softmax", Workload.of(M=256 << place, N=1024, dtype="float32"))
    for place in range(cpu):
        workload = Workload.of(rows=64 << place, cols=1024, dtype="float32")
        measured_task(source, 2, "cpu_pointwise", workload, device=CPU, best_us=310.0, gain=1.18)
    return source
