"""G14 (several-gpus): finals on every GPU. G15 (energy): not measured."""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from pathlib import Path

from scipy.stats import kendalltau

from acceptance.evaluation import log_ratios
from acceptance.harness import Harness, Setup, candidates_of
from acceptance.isolation import isolated
from acceptance.result import Result, percent

HERE = Path(__file__).resolve().parents[1]
_SCALED_FIELD, _TOP = "matmul_4096", 20


def devices(setup: Setup) -> Result:
    """G14: time the same finalists on each GPU, in one process per GPU."""
    result, count = Result(), visible_gpus()
    if count < 2:
        result.skip("the same finalists on several GPUs", f"{count} GPU visible here")
        return result
    fresh = replace(setup, calibration=None)
    finals = [isolated(_finalists, fresh, index, limit_s=90.0) for index in range(count)]
    names = [name for name in finals[0]["ratios"] if all(name in t["ratios"] for t in finals)]
    top = sorted(names, key=lambda name: finals[0]["ratios"][name])[:_TOP]
    taus, moved = [], 0.0
    for other in finals[1:]:
        first, second = ([t["ratios"][name] for name in top] for t in (finals[0], other))
        taus.append(float(kendalltau(first, second).statistic))
        moved = max(moved, *(abs(a - b) for a, b in zip(first, second, strict=True)))
    raw = [t["anchor_us"] for t in finals]
    result.add(f"tau of the top {len(top)} between {count} GPUs", ">= 0.95",
              f"least {min(taus):.3f}", min(taus) >= 0.95)  # fmt: skip
    result.add("ratios to the anchor agree", "<= 0.5 %", percent(moved, 2), moved <= 0.005,
              "anchor " + ", ".join(f"{us:.2f}" for us in raw) + " us")  # fmt: skip
    result.data["devices"] = finals
    return result


def visible_gpus() -> int:
    """The number of GPUs by NVML, so that this process creates no CUDA context."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return len([part for part in listed.split(",") if part.strip()])
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:
        return 0


def _finalists(setup: Setup, index: int) -> dict:
    harness = Harness(setup, index)
    field = candidates_of(harness.entries(_SCALED_FIELD, 2 * _TOP))
    timer = harness.chosen_timer(field)
    rows = harness.final(timer, field, setup.times(48, 12))
    names = [candidate.name for candidate in field]
    return {
        "uuid": harness.backend.info()[0].uuid,
        "anchor_us": statistics.median(rows[0]),
        "ratios": dict(zip(names, log_ratios(rows, timer.quantum_us), strict=True)),
    }


def energy(setup: Setup) -> Result:
    """G15: skipped, because the product does not measure energy."""
    result = Result()
    result.skip("energy of three finalists, CV <= 3 %", "the product does not measure energy")
    return result
