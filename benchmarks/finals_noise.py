"""What a run ships on noisy devices: regret of the shipped config, over made-up spaces.

A simulation in virtual time: spaces of 24 configs, as few as a first run on a processor has, whose
samples scatter by 2, 10, 30 and 50 % and drift by as much. Regret is ln(true time of the shipped
config / of the best). Prints one JSON object; takes some minutes on two cores.

    python benchmarks/finals_noise.py > benchmarks/results/cpu-sim/finals_noise.json
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results_db import Store
from results_db.shipped import select_shipped
from search_spaces.recorded.entries import Noise
from tuner.campaign import RunOptions, run_campaign
from tuner.settings import validate

sys.path.append(f"{Path(__file__).resolve().parents[1] / 'tests'}")
from made_up_spaces import synthesize

NOISES = (0.02, 0.10, 0.30, 0.50)
CONFIGS = 24
#: Regret from which a shipped config counts as wrong.
WRONG = math.log(1.05)


def ship(job: tuple[float, int]) -> tuple[float, float, int, str]:
    """Noise, regret of one run, its verdict."""
    noise, seed = job
    space = synthesize(CONFIGS, seed=seed, scenario="quiet")
    scattered = Noise(
        sigma=noise, outlier_share=0.05, outlier_mean=2 * noise, drift_sd=noise, drift_tau_s=0.05
    )
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        replace(space, noise=scattered).save(base / "space.json")
        settings = validate(
            {
                "version": 1,
                "database": {"url": f"sqlite:///{base}/tuner.db"},
                "pool": {"kind": "virtual"},
                "measure": {"baselines": [], "final_pairs": 24},
                "campaigns": {
                    "c": {
                        "targets": ["simulated"],
                        "strategy": {"name": "exhaustive", "seed": seed},
                        "tasks": [{"kernel": "recorded:space.json"}],
                    }
                },
            },
            str,
        )
        run_campaign(settings, "c", options=RunOptions(report=False, export=False, base=base))
        with Store.open(settings.database.url) as store:
            (task,) = store.tasks(1)
    true = {json.dumps(dict(each.config), sort_keys=True): each.median_us for each in space.configs}
    shipped = select_shipped(task.selection).config
    regret = math.log(true[json.dumps(dict(shipped), sort_keys=True)] / min(true.values()))
    return noise, regret, seed, f"{task.selection.verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=40)
    options = parser.parse_args()
    jobs = [(noise, seed) for noise in NOISES for seed in range(options.seeds)]
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(ship, jobs))
    rows: list[dict[str, Any]] = []
    for noise in NOISES:
        regrets = [regret for n, regret, _, _ in found if n == noise]
        verdicts = [verdict for n, _, _, verdict in found if n == noise]
        rows.append(
            {
                "noise": noise,
                "runs": len(regrets),
                "mean regret": round(statistics.mean(regrets), 4),
                "median": round(statistics.median(regrets), 4),
                "worst": round(max(regrets), 4),
                "more than 5 % off": sum(each > WRONG for each in regrets),
                "undecided": verdicts.count("undecided"),
            }
        )
    today = datetime.now(UTC).date().isoformat()
    print(json.dumps({"date": today, "python": platform.python_version(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
