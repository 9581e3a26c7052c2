"""A small filled database: what the frozen files hold, whatever revision wrote them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from results_db import Store, TaskInfo, TrialRecord
from results_db.promotion_records import PromotionOutcome, PromotionRecord
from results_db.stored_records import BaselineRecord, FinalRecord, SelectionRecord, TaskKey
from search_spaces.records import Device, Status, Toolchain, Workload, config_key
from tuner.base.log_ratio import LogRatio
from workers.job_records import Calibration

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
DEVICE = Device(
    kind="cuda",
    name="NVIDIA H200",
    target="cuda:90",
    sm_count=132,
    memory_bytes=150_754_820_096,
    shared_bytes=232_448,
    registers=65_536,
    l2_bytes=62_914_560,
    power_limit_w=700.0,
    uuid="GPU-1",
)
KEY = TaskKey(
    kernel="softmax",
    launch_hash="0123456789abcdef",
    space_hash="fedcba9876543210",
    workload=Workload.of(M=8192, N=8192, dtype="bfloat16"),
    device=DEVICE,
    toolchain=Toolchain(python="3.12", torch="2.11", triton="3.6", cuda="13.0", driver="580"),
    protocol="p1",
    kernel_hashes=("00112233",),
)
DEFAULT = {"BLOCK": 1024, "num_warps": 4, "fast": False}
BEST = {"BLOCK": 4096, "num_warps": 8, "fast": True}
BROKEN = {"BLOCK": 65536, "num_warps": 1, "fast": None}
TRIALS = (
    TrialRecord(
        attempt_id="run1-0",
        number=0,
        config=DEFAULT,
        status=Status.CORRECT,
        strategy="default",
        binary_hash="b0",
        registers=32,
        spill_bytes=0,
        shared_bytes=2048,
        binary_bytes=9000,
        build_s=0.4,
        device_s=0.02,
        worker="gpu0",
        method="events",
        cache="cold",
        median_us=120.5,
        error=0.0017,
        verified_by="reference",
        samples_us=(120.5, 120.25, 121.0),
        clocks={"sm_mhz": 1980.0, "throttle": "none"},
        timing_s=0.0125,
        deterministic=True,
        finished_at=NOON,
    ),
    TrialRecord(
        attempt_id="run1-1",
        number=1,
        config=BEST,
        status=Status.CORRECT,
        strategy="tpe",
        binary_hash="b1",
        registers=64,
        method="events",
        cache="cold",
        incumbent=config_key(DEFAULT),
        median_us=70.1,
        log_ratio=LogRatio(-0.54, -0.55, -0.53),
        samples_us=(70.1, 70.2, 70.05),
        incumbent_samples_us=(120.5, 120.6, 120.7),
        finished_at=NOON,
    ),
    TrialRecord(
        attempt_id="run1-2",
        number=2,
        config=BROKEN,
        status=Status.COMPILE,
        source="built",
        message="out of resource: shared memory",
        detail="<script>alert('x')</script>\x00\ud800",
        strategy="tpe",
    ),
)
SELECTION = SelectionRecord(
    winner=BEST,
    tie_set=(BEST,),
    verdict="faster",
    reason="the only one",
    runner_up=DEFAULT,
    default=DEFAULT,
    median_us=70.1,
    default_us=120.5,
    log_ratio=LogRatio(0.54, 0.53, 0.55),
    samples_us=(70.1, 70.15),
    clocks={"sm_mhz": 1980.0},
    confirmed_at=NOON,
)
BASELINES = (
    BaselineRecord(
        name="vendor",
        status=Status.CORRECT,
        median_us=99.0,
        log_ratio=LogRatio.of(0.345),
        samples_us=(99.0,),
    ),
    BaselineRecord(name="eager", status=Status.RUNTIME, message="out of memory"),
)
STEP = LogRatio(0.03, 0.02, 0.04)
PROMOTIONS = (
    PromotionRecord(
        1, "tables/softmax.json", "softmax", "M=8192", PromotionOutcome.PROMOTED, "new entry", BEST
    ),
    PromotionRecord(
        1,
        "tables/softmax.json",
        "softmax",
        "M=4096",
        PromotionOutcome.REFUSED,
        "it may be slower",
        BEST,
        DEFAULT,
        LogRatio(0.01, -0.01, 0.03),
    ),
)
FINALS = (
    FinalRecord(
        stage="race",
        config=BEST,
        median_us=70.0,
        log_ratio=LogRatio(),
        samples_us=(70.0, 70.125),
        method="graph",
        cache="cold",
    ),
    FinalRecord(
        stage="race",
        config=DEFAULT,
        median_us=120.0,
        log_ratio=LogRatio(0.54, 0.5, 0.58),
        samples_us=(120.0,),
        dropped=True,
        method="graph",
        cache="cold",
    ),
    FinalRecord(
        stage="confirm", config=BROKEN, status=Status.TIMEOUT, message="no answer within 60 s"
    ),
)
TIMELINE = {
    "started_at": "2026-11-20T12:00:00+00:00",
    "lanes": ["driver", "builder-0"],
    "spans": [
        [0, 0.0, 2300.5, 0, "start", "start of Python"],
        [1, 2000.25, 1500.0, 0, "build", "build softmax", "killed"],
    ],
    "spans_left_out": 0,
}
CALIBRATION = Calibration(
    quantum_us=0.032,
    overhead_us={"events": 2.4, "graph": 0.125},
    flush_us=31.5,
    copy_bytes_per_us=4.24e6,
    flops_per_us={"bfloat16": 7.9e8},
)


def trial(number: int, **changes: object) -> TrialRecord:
    """A measured trial of its own config and attempt."""
    record = replace(TRIALS[0], attempt_id=f"a{number}", number=number, config={"BLOCK": number})
    return replace(record, **changes)  # type: ignore[arg-type]


def new_task(store: Store, key: TaskKey = KEY, campaign: str = "nightly") -> TaskInfo:
    """A task in a new run."""
    run = store.begin_run(campaign, "spec1", 7, {"python": "3.12"}, {"tasks": ["softmax"]})
    return store.ensure_task(run.run_id, key, flops=3.3e8, bytes=2.7e8, tolerance=0.01)


def fill(store: Store) -> None:
    """One finished run of one task, with one of everything else."""
    task = new_task(store)
    store.record_calibration(DEVICE, KEY.toolchain, "node-7", CALIBRATION)
    for record in TRIALS:
        store.record_trial(task.task_id, record)
    store.record_selection(task.task_id, SELECTION, BASELINES, FINALS)
    store.set_stage(task.task_id, "done")
    store.record_timeline(task.run_id, TIMELINE)
    store.tag_run(task.run_id, "baseline")
    store.finish_run(task.run_id, "finished", {"trials": 3})
    store.record_export("tables/softmax.json", "tuner", task.run_id, "ab" * 32, [task.task_id])
    store.claim_fire("nightly", NOON, "host1")
    store.finish_fire("nightly", NOON, "finished", task.run_id)
    store.record_promotions(PROMOTIONS)
    store.raise_regression(task.task_id, task.task_id, task.run_id, STEP)
    store.quarantine("GPU-1", "NVIDIA H200", "smells of smoke", NOON)
