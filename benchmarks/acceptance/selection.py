"""G4/G5 (selection-regret): selection regret and rank agreement, from another script's document."""

from __future__ import annotations

import json

from acceptance.harness import Setup
from acceptance.result import Result, percent


def exhaustive(setup: Setup) -> Result:
    """G4 and G5 from a document of searches and rankings, where it exists."""
    result, path = Result(), setup.files["regret"]
    if not path.is_file():
        result.skip(
            "regret against an exhaustive ranking; rank agreement of two campaigns",
            f"no document at {path.name}",
        )
        return result
    document = json.loads(path.read_text())
    summary = document.get("summary", {})
    result.data["summary"] = summary
    reached = summary.get("reached", {})
    if not reached:
        result.skip("regret against an exhaustive ranking", f"{path.name} has no complete space")
        return result
    searches = summary["all"]
    total, selection = searches["total_counted"], searches["selection_counted"]
    seen = f"{summary['spaces']} spaces, {searches['seeds']} searches, by {path.name}"
    rows = (
        ("G4 within 1 % of the best", ">= 95 %", percent(total["within_1_percent"]),
         "within_1_percent_95"),
        ("G4 within 2 %", "100 %", percent(total["within_2_percent"]), "within_2_percent_all"),
        ("G4 mean selection regret", "<= 0.5 %", percent(selection["mean"], 2),
         "mean_selection_half_percent"),
        ("G5 tau of two rankings, least", ">= 0.97", f"{summary['tau']['least']:.3f}", "tau_97"),
        ("G5 tau of the top tenth, least", ">= 0.80", f"{summary['tau_top']['least']:.3f}",
         "tau_top_80"),
        ("G5 of the first ten in both, least", ">= 8", f"{summary['top_10_least']}", "top_10_8"),
        ("G5 best of one in the other, worst", "<= 1 %", percent(summary["floor"]["worst"], 2),
         "best_within_1_percent"),
    )  # fmt: skip
    for what, bound, measured, name in rows:
        result.add(what, bound, measured, reached.get(name), seen)
    return result
