"""Simulated nights of a fleet: which cards go into quarantine, and after how many nights.

    python benchmarks/card_nights.py --fleets 30 --output results/cpu/card_nights.json

The noise of confirmations is resampled: by how much each baseline of 20 us and more differed
between two recorded runs of one campaign on two H200s, without what all had in common. The rates of
copies vary by 0.25 %, more than from night to night on any card (levels of eleven recorded H200s
differ by that). Cards differ by 1.2 %, nights by 0.3 %, cards from night to night by 0.2 %. Each
fleet has 40 cards and 200 tasks, dealt anew each night; three cards drift by 2 % from nights 5, 6
and 7 on. `results_db/card_health.py` decides, with thresholds that were set on other seeds.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import sqlite3
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from results_db.card_health import find_outliers, list_card_runs
from results_db.promotion_records import CardTime

RESULTS = Path(__file__).parent / "results"
RECORDED = ("h200/range_coverage/layer_norm_softmax.db.xz", "h200/tour.db.xz")
CARDS, NIGHTS, TASKS, DRIFT = 40, 14, 200, 0.02
#: The night from which each drifting card drifts.
DRIFTING = {"card 1": 5, "card 2": 6, "card 3": 7}
_QUERY = """
select kernel.name, workload.key, baseline.name, baseline.median_us from baseline
join task on task.id = baseline.task_id join kernel on kernel.id = task.kernel_id
join workload on workload.id = task.workload_id
where baseline.median_us >= 20 and task.run_id = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fleets", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    noise = read_noise()
    healthy, wrong, nights = 0, 0, []
    for seed in range(given.seed, given.seed + given.fleets):
        found = follow(make_nights(seed, noise))
        wrong += len(found.keys() - DRIFTING.keys())
        healthy += NIGHTS * (CARDS - len(DRIFTING))
        nights += [found.get(card, math.inf) - begin + 1 for card, begin in DRIFTING.items()]
    facts = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "noise": [round(each, 5) for each in noise],
        "healthy_card_nights": healthy,
        "healthy_in_quarantine": wrong,
        "drifting_cards": len(nights),
        "found_by_the_second_night": sum(each <= 2 for each in nights),
        "not_found": sum(math.isinf(each) for each in nights),
    }
    print(json.dumps({name: each for name, each in facts.items() if name != "noise"}, indent=1))
    if given.output:
        given.output.write_text(json.dumps(facts, indent=1) + "\n")


def read_noise() -> list[float]:
    """ln(time of a baseline on one card / on the other) without their median, by one session."""
    one, other = map(_read_times, RECORDED)
    ratios = [math.log(other[name] / one[name]) for name in one.keys() & other.keys()]
    middle = median(ratios)
    return sorted((each - middle) / math.sqrt(2) for each in ratios)


def _read_times(name: str) -> dict[tuple[str, ...], float]:
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(lzma.decompress((RESULTS / name).read_bytes()))
        file.flush()
        rows = sqlite3.connect(file.name).execute(_QUERY).fetchall()
    return {(*names,): us for *names, us in rows}


def make_nights(seed: int, noise: list[float]) -> list[CardTime]:
    """What the cards of a fleet confirm in a fortnight."""
    source = random.Random(seed)
    level = {f"card {number}": source.gauss(0, 0.012) for number in range(CARDS)}
    work = [source.uniform(3.2, 7) for _ in range(TASKS)]
    found = []
    for night in range(1, NIGHTS + 1):
        tasks, warm = source.sample(range(TASKS), TASKS), source.gauss(0, 0.003)
        for number, (card, own) in enumerate(level.items()):
            drift = DRIFT if night >= DRIFTING.get(card, NIGHTS + 1) else 0.0
            common = own + warm + drift + source.gauss(0, 0.002)
            clocks = {"copy_tb_s": 4.3 * math.exp(own / 5 - drift + source.gauss(0, 0.0025))}
            for task in tasks[number::CARDS]:
                session = common + source.choice(noise)
                for baseline, longer in (("eager", 0.5), ("compile", 0.2), ("vendor", 0.1)):
                    us = math.exp(work[task] + longer + session + source.gauss(0, 0.002))
                    found.append(CardTime(night, card, "NVIDIA H200", (task, baseline), us, clocks))
    return found


def follow(times: list[CardTime]) -> dict[str, int]:
    """The night after which each card goes into quarantine; it gets no work from then on."""
    gone: dict[str, int] = {}
    for night in range(1, NIGHTS + 1):
        seen = [e for e in times if e.run_id <= min(night, gone.get(e.card, NIGHTS))]
        for each in find_outliers(list_card_runs(seen), night):
            gone.setdefault(each.card, night)
    return gone


if __name__ == "__main__":
    main()
