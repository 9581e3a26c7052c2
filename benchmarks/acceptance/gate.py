"""G12 (planted-cheats): the gate refuses planted cheats and accepts honest variants."""

from __future__ import annotations

import sys
from pathlib import Path

from acceptance.harness import Harness, Setup
from acceptance.result import Result

ROOT = Path(__file__).resolve().parents[2]


def cheats(setup: Setup) -> Result:
    """G12: the gate refuses every planted cheat for its own reason, and no honest variant."""
    sys.path.append(f"{ROOT / 'tests' / 'measure'}")
    from acceptance import gate_cheats

    harness, result = Harness(setup), Result()
    played = gate_cheats.play_cheats(harness.backend)
    count, refused = played["cheats_played"], played["cheats_refused"]
    missed = [row["cheat"] for row in played["cheats"] if not row["refused"]]
    result.add(
        "planted cheats refused, each for its own reason",
        "all",
        f"{refused} of {count}",
        refused == count and count >= 14,
        f"missed: {', '.join(missed)}" if missed else "",
    )
    result.data["cheats"] = played["cheats"]
    if setup.scale < 0.5:
        result.skip("honest variants refused", "skipped in a run of reduced scale")
        return result
    honest = gate_cheats.play_honest(harness.backend, setup.folder / "honest")
    result.add(
        "honest variants refused",
        "0 of >= 200",
        f"{honest['honest_refused']} of {honest['honest_played']}",
        honest["honest_refused"] == 0 and honest["honest_played"] >= 200,
        f"{honest['honest_failed']} failed otherwise, {honest['not_deterministic']} not "
        "deterministic",
    )
    result.data["honest"] = honest
    return result
