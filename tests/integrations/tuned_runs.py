"""Runs with results of our kernels, as a campaign on an H200 leaves them in a database."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from results_db import TrialRecord
from results_db.stored_records import FinalRecord, SelectionRecord, TaskKey
from search_spaces.records import Device, Status, Toolchain, Workload
from tuner.base.log_ratio import LogRatio

H200 = Device("cuda", "NVIDIA H200", "cuda:90", 132, 150_000_000_000, 232_448, 65_536)
TOOLCHAIN = Toolchain(python="3.12", torch="2.11.0", triton="3.6.0")
MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
MOE = {"experts": 128, "top_k": 8, "hidden": 2048, "intermediate": 768, "dtype": "bfloat16"}


def moe(tokens, gemm, **dims):
    return Workload.of(**{**MOE, "tokens": tokens, "gemm": gemm, **dims})


def tile(rows, cols=64, **others):
    """A config of `moe_matmul`, which is one of the libraries too."""
    sides = {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": cols, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    return {**sides, "num_warps": 4, "num_stages": 3, **others}


def add_layer(store, size, times, down=None, **dims):
    """Both products of a layer of experts. down: times of the second where they are others."""
    add_result(store, 1, "moe_matmul", moe(size, "gate_up", **dims), times)
    add_result(store, 1, "moe_matmul", moe(size, "down", **dims), down or times)


def add_result(
    store, run_id, kernel, workload, times, *, verdict="faster", device=H200, ties=(), place=None
):
    """A finished task. times: pairs of a config and its time in us; the first one is the default,
    the fastest one wins; ties: other configs that may be as fast; place: in a range, in which all
    configs were raced."""
    code = ("0123456789abcdef", "abcd")
    key = TaskKey(kernel, *code, workload, device, TOOLCHAIN, "aa", ())
    task = store.ensure_task(run_id, key, flops=1e6, bytes=2e6, tolerance=1e-3, place=place)
    for number, (config, us) in enumerate(times):
        facts = {"median_us": us, "samples_us": (us,), "finished_at": MOMENT}
        attempt = f"{task.task_id}-{number}"
        store.record_trial(
            task.task_id, TrialRecord(attempt, number, config, Status.CORRECT, **facts)
        )
    winner, median_us = min(times, key=lambda pair: pair[1])
    default, default_us = times[0]
    selection = SelectionRecord(
        winner, (winner, *ties), verdict, default=default, median_us=median_us,
        default_us=default_us, log_ratio=LogRatio(0.1, 0.05, 0.15), confirmed_at=MOMENT,
    )  # fmt: skip
    ratios = [(config, math.log(time_us / median_us)) for config, time_us in times]
    finals = [
        FinalRecord("race", config, log_ratio=LogRatio(ratio, ratio, ratio))
        for config, ratio in (ratios if place else [])
    ]
    store.record_selection(task.task_id, selection, [], finals)
    return task
