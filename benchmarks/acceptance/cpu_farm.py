"""C7 (killed-drivers): `kill -9` of the driver at any point, then a resumed run.

The farm is that of tests/farm: the real `tuner run` in its own process, with simulated devices.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [f"{ROOT / 'tests/farm'}", f"{ROOT / 'tests/pools'}"]

from farms import Farm, assert_sound, kill  # noqa: E402
from processes import wait_until  # noqa: E402

from search_spaces.records import config_key  # noqa: E402

TRIALS = 100


def killed_at_any_point(folder: Path, points: int, at_once: int = 2) -> dict[str, object]:
    """Kill the driver of one farm per point, resume it, and compare with an undisturbed farm."""
    undisturbed = _farm(folder / "undisturbed")
    undisturbed.finish()
    assert_sound(undisturbed)
    winner = undisturbed.task().selection.winner
    # The last points lie in the finals and the confirmation.
    targets = [round(point * TRIALS / (points - 2)) for point in range(points - 1)]
    targets.append(TRIALS)
    with ThreadPoolExecutor(at_once) as threads:
        runs = list(
            threads.map(lambda n: _killed_and_resumed(folder / f"{n}", targets[n]), range(points))
        )
    best_us = undisturbed.space.best.median_us
    chosen = [run["winner"] for run in runs]
    regrets = [undisturbed.space[config].median_us / best_us - 1 for config in chosen]
    return {
        "points": targets,
        "stored_when_killed": [run["stored"] for run in runs],
        "stage_when_killed": [run["stage"] for run in runs],
        "same_winner": sum(config_key(config) == config_key(winner) for config in chosen),
        "same_trials": sum(run["trials"] == _trials(undisturbed) for run in runs),
        "winner_regret_max": round(max(regrets), 5),
        "undisturbed_regret": round(undisturbed.space[winner].median_us / best_us - 1, 5),
        "lost": sum(run["lost"] for run in runs),
    }


def _farm(folder: Path) -> Farm:
    folder.mkdir(parents=True)
    faults = {"crash": 0.02, "wrong": 0.03}
    return Farm(folder, trials=TRIALS, builders=1, runners=2, time_scale=0.5, faults=faults)


def _killed_and_resumed(folder: Path, target: int) -> dict[str, object]:
    farm = _farm(folder)
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= target or driver.poll() is not None, 120)
        if driver.poll() is not None or not kill(driver.pid):
            raise RuntimeError(f"the driver ended before its trial {target}")
    farm.assert_gone()
    known, stage = {}, "start"
    # A driver killed early may not have stored its run yet.
    with suppress(Exception):
        known = {record.attempt_id: record for record in farm.records()}
        stage = farm.task().stage
    farm.finish()
    assert_sound(farm)
    farm.assert_gone()
    kept = {record.attempt_id: record for record in farm.records()}
    return {
        "stored": len(known),
        "stage": stage,
        "lost": sum(kept.get(name) != record for name, record in known.items()),
        "trials": _trials(farm),
        "winner": farm.task().selection.winner,
    }


def _trials(farm: Farm) -> list[tuple[object, ...]]:
    """The parts of the trials that do not depend on time."""
    return sorted(
        (r.number, config_key(r.config), str(r.status), r.binary_hash) for r in farm.records()
    )
