"""What a default config loses against the best one, on the spaces recorded whole on an H200.

For each recorded space: the best time over that of the family's own default, of the default by
measurements (`search_spaces.measured_defaults`), and of the same without any measurement of that
very workload (`left_out`). With `--trials` also the trials until a config within 1 % of the best is
found, by searches in virtual time that start from each default. Takes some minutes.

    python benchmarks/default_regret.py --trials > results/cpu-sim/default_regret.json

With --campaigns instead, what the default configs lose against the winners of campaigns, as their
confirmations measured both:

    python benchmarks/default_regret.py --campaigns \
        results/h100/ops_{rows,products,tokens}.json > results/h100/default_regret.json
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import fmean, geometric_mean

import tuner
from search_spaces import measured_defaults
from search_spaces.recorded.recorded_kernel import RecordedKernel, RecordedSpace
from search_spaces.registry import load
from tuner.campaign.task_specs import closest

sys.path.append(f"{Path(__file__).resolve().parents[1]}/tests/plugins")  # the pool
SPACES = sorted((Path(__file__).parent / "spaces" / "h200").glob("*.space.json"))
SEEDS, BUDGET, NEAR = (0, 1, 2), 120, 1.01
NOTES = (
    "`measured` knows each workload, from a campaign or from the recording itself; `left_out` knows"
    " other workloads alone.",
    "The weights of the distance are of a grid of 2,160 (a limit on octaves, another dtype, flags,"
    " features, moved values, sizes that change the space), by `left_out`. Chosen without the"
    " workload that is then judged, they give 0.9176; the median of the grid is 0.880. No choice"
    " among the winners and the own default gives more than 0.954.",
    "Tried without gain: flops and bytes as features, squares of octaves, a rule that prefers the"
    " own default beyond a distance, the three best configs of each recording, and a vote by the"
    " times of each candidate in the other recordings.",
)


def defaults(recorded):
    """The three defaults of a recorded workload, as points of its space."""
    kernel, family = RecordedKernel(recorded), load(recorded.kernel)
    recorded_space = kernel.space(recorded.workload)
    space = recorded_space.bind(recorded.workload, recorded.device)
    known = measured_defaults.read(measured_defaults.FILE)[recorded.kernel]
    others = [item for item in known if item.workload != recorded.workload]
    own = family.default_config(space.workload, space.device)
    own = own if space.feasible(own) else closest(space, own)
    return {
        "own": own,
        "measured": measured_defaults.choose_nearest(family, space, known) or own,
        "left_out": measured_defaults.choose_nearest(family, space, others) or own,
    }


def count_trials(recorded, default):
    """Trials until within 1 % of the best, over seeds; the budget where none is found."""
    counts = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "space.json"
        replace(recorded, default=default).save(file)
        for seed in SEEDS:
            found = tuner.tune(
                f"recorded:{file}", recorded.workload, budget=BUDGET, seed=seed, pool="virtual"
            )
            times = [recorded[json.loads(config)].median_us for config in found.trials["config"]]
            near = [us is not None and us <= NEAR * recorded.best.median_us for us in times]
            counts.append(near.index(True) + 1 if True in near else BUDGET)
    return fmean(counts)


def summarise_campaigns(paths):
    """The winner's time over the default's, by kernel, from the results of `campaign.py`."""
    documents = [json.loads(path.read_text()) for path in paths]
    ratios = defaultdict(list)
    for task in chain.from_iterable(each["tasks"] for each in documents):
        if task["winner"] and task["speedup_over_default"]:
            ratios[task["kernel"]].append(1 / task["speedup_over_default"])
    every = [*chain.from_iterable(ratios.values())]
    return {
        "what": "the winner's time over that of the default config, as confirmed",
        "campaigns": [each["campaign"] for each in documents],
        "devices": sorted({device for each in documents for device in each["devices"]}),
        "dates": sorted({each["date"] for each in documents}),
        "revisions": sorted({each["environment"]["git"] for each in documents}),
        "toolchain": documents[0]["toolchain"],
        "trials_at_most": max(t["trials"] for each in documents for t in each["tasks"]),
        "workloads": len(every),
        "at_least_0.93": sum(ratio >= 0.93 for ratio in every),
        "geometric_mean": {
            "all": round(geometric_mean(every), 4),
            **{name: round(geometric_mean(found), 4) for name, found in sorted(ratios.items())},
        },
        "least": {name: round(min(found), 4) for name, found in sorted(ratios.items())},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", action="store_true")
    parser.add_argument("--campaigns", type=Path, nargs="+")
    options = parser.parse_args()
    if options.campaigns:
        print(json.dumps(summarise_campaigns(options.campaigns), indent=1))
        return
    rows, ratios, trials = [], defaultdict(lambda: defaultdict(list)), defaultdict(list)
    for path in SPACES:
        recorded = RecordedSpace.load(path)
        row = {"space": path.name.removesuffix(".space.json"), "best_over_default": {}}
        for name, config in defaults(recorded).items():
            median_us = recorded[config].median_us
            ratio = recorded.best.median_us / median_us if median_us else 0.0
            row["best_over_default"][name] = round(ratio, 4)
            row[name] = config
            for group in (recorded.kernel, "all"):
                ratios[group][name].append(ratio)
            if options.trials:
                row.setdefault("trials", {})[name] = count = count_trials(recorded, config)
                trials[name].append(count)
        rows.append(row)
    summary = {
        group: {name: round(geometric_mean(values), 4) for name, values in by_name.items()}
        for group, by_name in sorted(ratios.items())
    }
    result = {
        "what": "best time over the default's, on spaces recorded on an NVIDIA H200",
        "date": datetime.now(UTC).date().isoformat(),
        "notes": NOTES,
        "geometric_mean": summary,
        "trials_until_within_1_percent": {n: round(fmean(v), 1) for n, v in trials.items()},
        "spaces": rows,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
