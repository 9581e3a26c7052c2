# mypy: ignore-errors
"""G4, G5, G12, G14, G15: what other scripts find, several GPUs, and energy."""

from __future__ import annotations

import json
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from scipy.stats import kendalltau

from acceptance.found import Found, percent
from acceptance.isolation import isolated
from acceptance.judging import log_ratios
from acceptance.lab import Lab, Setup, candidates_of

HERE = Path(__file__).resolve().parents[1]
_SCALED_FIELD, _TOP = "matmul_4096", 20


def oracle(setup: Setup) -> Found:
    """G4 and G5 from the document of selection_regret.py, if there is one."""
    found, path = Found(), setup.files["regret"]
    if not path.is_file():
        found.skip(
            "selection against an exhaustive oracle; rank agreement of two campaigns",
            f"benchmarks/selection_regret.py measures it; no document at {path.name}",
        )
        return found
    document = json.loads(path.read_text())
    told = document.get("summary", {})
    found.data["summary"] = told
    reached = told.get("reached", {})
    if not reached:
        found.skip("selection against an exhaustive oracle", f"{path.name} has no whole space")
        return found
    everything = told["all"]
    total, selection = everything["total_counted"], everything["selection_counted"]
    seen = f"{told['spaces']} spaces, {everything['seeds']} searches, by {path.name}"
    rows = (
        ("G4 within 1 % of the best", ">= 95 %", percent(total["within_1_percent"]),
         "within_1_percent_95"),
        ("G4 within 2 %", "100 %", percent(total["within_2_percent"]), "within_2_percent_all"),
        ("G4 mean selection regret", "<= 0.5 %", percent(selection["mean"], 2),
         "mean_selection_half_percent"),
        ("G5 tau of two oracles, least", ">= 0.97", f"{told['tau']['least']:.3f}", "tau_97"),
        ("G5 tau of the top tenth, least", ">= 0.80", f"{told['tau_top']['least']:.3f}",
         "tau_top_80"),
        ("G5 of the first ten in both, least", ">= 8", f"{told['top_10_least']}", "top_10_8"),
        ("G5 best of one in the other, worst", "<= 1 %", percent(told["floor"]["worst"], 2),
         "best_within_1_percent"),
    )  # fmt: skip
    for what, bound, measured, name in rows:
        found.add(what, bound, measured, reached.get(name), seen)
    return found


def cheats(setup: Setup) -> Found:
    """G12: every planted cheat is refused for its reason; no honest variant is."""
    sys.path.append(f"{HERE.parent / 'tests' / 'measure'}")
    import gate_acceptance

    lab, found = Lab(setup), Found()
    played = gate_acceptance.play_cheats(lab.backend)
    count, refused = played["cheats_played"], played["cheats_refused"]
    missed = [row["cheat"] for row in played["cheats"] if not row["refused"]]
    found.add(
        "planted cheats refused, each for its own reason",
        "all",
        f"{refused} of {count}",
        refused == count and count >= 14,
        f"missed: {', '.join(missed)}" if missed else "",
    )
    found.data["cheats"] = played["cheats"]
    if setup.scale < 0.5:
        found.skip("honest variants refused", "left out of a small run")
        return found
    honest = gate_acceptance.play_honest(lab.backend, setup.folder / "honest")
    found.add(
        "honest variants refused",
        "0 of >= 200",
        f"{honest['honest_refused']} of {honest['honest_played']}",
        honest["honest_refused"] == 0 and honest["honest_played"] >= 200,
        f"{honest['honest_failed']} failed otherwise, {honest['not_deterministic']} not "
        "deterministic",
    )
    found.data["honest"] = honest
    return found


def devices(setup: Setup) -> Found:
    """G14: the same finalists on each GPU, in a process of its own."""
    found, count = Found(), visible_gpus()
    if count < 2:
        found.skip("the same finalists on several GPUs", f"{count} GPU visible here")
        return found
    fresh = replace(setup, calibration=None)
    told = [isolated(_finalists, fresh, index, limit_s=90.0) for index in range(count)]
    names = [name for name in told[0]["ratios"] if all(name in t["ratios"] for t in told)]
    top = sorted(names, key=lambda name: told[0]["ratios"][name])[:_TOP]
    taus, moved = [], 0.0
    for other in told[1:]:
        mine, its = ([t["ratios"][name] for name in top] for t in (told[0], other))
        taus.append(float(kendalltau(mine, its).statistic))
        moved = max(moved, *(abs(a - b) for a, b in zip(mine, its, strict=True)))
    raw = [t["anchor_us"] for t in told]
    found.add(f"tau of the top {len(top)} between {count} GPUs", ">= 0.95",
              f"least {min(taus):.3f}", min(taus) >= 0.95)  # fmt: skip
    found.add("ratios to the anchor agree", "<= 0.5 %", percent(moved, 2), moved <= 0.005,
              "anchor " + ", ".join(f"{us:.2f}" for us in raw) + " us")  # fmt: skip
    found.data["devices"] = told
    return found


def visible_gpus() -> int:
    """Asked of NVML, so that this process stays without a CUDA context."""
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
    lab = Lab(setup, index)
    field = candidates_of(lab.entries(_SCALED_FIELD, 2 * _TOP))
    timer = lab.chosen_timer(field)
    rows = lab.final(timer, field, setup.times(48, 12))
    names = [candidate.name for candidate in field]
    return {
        "uuid": lab.backend.info()[0].uuid,
        "anchor_us": statistics.median(rows[0]),
        "ratios": dict(zip(names, log_ratios(rows, timer.quantum_us), strict=True)),
    }


def energy(setup: Setup) -> Found:
    """G15: the product measures no energy."""
    found = Found()
    found.skip("energy of three finalists, CV <= 3 %", "the product does not measure energy")
    return found
