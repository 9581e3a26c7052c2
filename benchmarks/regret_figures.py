"""Statistics of regrets and costs: of one space, and of all spaces together."""

from __future__ import annotations

import math
import statistics


def figures(searches: list[dict]) -> dict:
    """Mean, 95th percentile and worst of regrets, shares within 1 % and 2 %, medians of costs."""
    complete = [run for run in searches if "total" in run]
    result: dict = {"seeds": len(searches), "problems": len(searches) - len(complete)}
    if not complete:
        return result
    for part in ("selection", "exploration", "total"):
        for name in (part, f"{part}_counted"):
            values = sorted(run[name] for run in complete)
            result[name] = {
                "mean": round(statistics.fmean(values), 6),
                "p95": round(values[math.ceil(0.95 * len(values)) - 1], 6),
                "worst": round(values[-1], 6),
                "within_1_percent": round(sum(v <= 0.01 for v in values) / len(values), 4),
                "within_2_percent": round(sum(v <= 0.02 for v in values) / len(values), 4),
            }
    costs = ("timing_ms_per_config", "screening_ms_per_config", "gpu_ms_per_config")
    for name in ("measured", "trials", "gpu_s", "timing_s", *costs, "known_s"):
        result[name] = round(statistics.median(run[name] for run in complete), 4)
    return result


def summary(spaces: dict) -> dict:
    """Statistics of all searches, agreement of the rankings, and the bounds that were met."""
    done = {name: entry for name, entry in spaces.items() if "agreement" in entry}
    if not done:
        return {"spaces": 0}
    agreed = [entry["agreement"] for entry in done.values()]
    result = {
        "spaces": len(done),
        "configs": sum(entry["configs"] for entry in done.values()),
        "all": figures([run for entry in done.values() for run in entry["searches"]]),
        "tau": {"least": min(a["tau"] for a in agreed), "mean": _mean(agreed, "tau")},
        "tau_top": {"least": min(a["tau_top"] for a in agreed), "mean": _mean(agreed, "tau_top")},
        "top_10_least": min(a["top_10"] for a in agreed),
        "floor": {"worst": max(a["floor"] for a in agreed), "mean": _mean(agreed, "floor")},
    }
    searches = result["all"]
    if "total" in searches:
        within = searches["total_counted"]
        result["reached"] = {
            "within_1_percent_95": within["within_1_percent"] >= 0.95,
            "within_2_percent_all": within["within_2_percent"] == 1.0,
            "mean_selection_half_percent": searches["selection_counted"]["mean"] <= 0.005,
            "tau_97": result["tau"]["least"] >= 0.97,
            "tau_top_80": result["tau_top"]["least"] >= 0.80,
            "top_10_8": result["top_10_least"] >= 8,
            "best_within_1_percent": result["floor"]["worst"] <= 0.01,
        }
    return result


def line(name: str, shown_figures: dict) -> str:
    """One printed line of figures: means, worst cases and costs."""
    shown = [f"{name}:"]
    parts = ("selection_counted", "exploration_counted", "total_counted", "total")
    shown += [
        f"{part} mean {shown_figures[part]['mean']:.3%} worst {shown_figures[part]['worst']:.2%},"
        for part in parts
        if part in shown_figures
    ]
    keys = ("seeds", "problems", "measured", "gpu_s", "timing_ms_per_config", "known_s")
    shown += [f"{key} {shown_figures[key]}" for key in keys if key in shown_figures]
    return " ".join(shown)


def _mean(rows: list[dict], name: str) -> float:
    return round(statistics.fmean(row[name] for row in rows), 5)
