"""How well operators predict what is fastest for workloads that no table names.

The results databases behind the shipped tables have, for each workload, the time of the winner, of
every baseline, and of some thirty other configs. From each workload A to each other one B within
six octaves whose other dims are equal, the config that won at A was often measured at B: what it
lost, and what the gain over the fastest baseline fell by, over the distance, are samples of the
spread of the family (tuner/ops/prediction.py). `spreads.json` gets the 80 % quantile of each family
with at least 30 samples, and of all others together. Predictions are then judged: for each
workload, all entries within half an octave are left out, and the time of what is predicted is
compared with the fastest of all that was measured, `compile` left out. No GPU is needed.

    python benchmarks/prediction_error.py [--write] > results/prediction_error.json
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from search_spaces import registry
from search_spaces.baselines import is_compiled
from search_spaces.records import Workload
from tuner import runtime
from tuner.ops import prediction
from tuner.ops.choosing import TUNED, pick

ROOT = Path(__file__).resolve().parent
#: Of samples, that a family has a spread of its own; octaves between workloads; and the quantile.
_LEAST_SAMPLES, _NEAR, _FAR, _SHARE = 30, 0.5, 4.0, 0.8
_DEVICE = runtime.DeviceFacts("", "cuda", "cuda:90", 132, 80 << 30, 232448)
_TASKS = """select task.id, kernel.name, workload.dims, selection.winner, selection.median_us
from task join kernel on kernel.id = kernel_id join workload on workload.id = workload_id
join selection on selection.task_id = task.id"""
_BASELINES = "select name, median_us from baseline where task_id = ? and median_us is not null"
_TRIALS = """select config, median_us from trial join measurement on trial_id = trial.id
where task_id = ? and median_us is not null"""


@dataclass(frozen=True)
class Task:
    """What a database has of one workload."""

    kernel: str
    entry: runtime.Entry
    #: Microseconds by config, as text.
    trials: Mapping[str, float]

    @property
    def gain(self) -> float | None:
        """Time of the fastest baseline that a call may run over that of the winner."""
        return pick(TUNED, self.entry.baselines)[1]


def read_tasks(file: Path) -> Iterator[Task]:
    with tempfile.NamedTemporaryFile(suffix=".db") as unpacked:
        unpacked.write(lzma.decompress(file.read_bytes()))
        unpacked.flush()
        store = sqlite3.connect(unpacked.name)
        for task, kernel, dims, winner, time in store.execute(_TASKS).fetchall():
            key = json.loads(dims)
            baselines = {name: us / time for name, us in store.execute(_BASELINES, (task,))}
            entry = runtime.Entry(key, json.loads(winner), baselines=baselines)
            yield Task(kernel, entry, dict(store.execute(_TRIALS, (task,)).fetchall()))


def group_tasks(card: str) -> dict[str, list[Task]]:
    """The tasks of a card by kernel, one for each workload."""
    files = sorted(ROOT.glob(f"results/{card}/[om]*s.db.xz"))
    files += sorted(ROOT.glob(f"results/{card}/range_coverage/*.db.xz"))
    found: dict[str, dict[str, Task]] = defaultdict(dict)
    for task in (task for file in files for task in read_tasks(file)):
        found[task.kernel].setdefault(Workload.from_mapping(task.entry.key).key, task)
    return {kernel: [*tasks.values()] for kernel, tasks in found.items()}


def time_at(task: Task, config: Mapping[str, Any]) -> float | None:
    """Time of a config at a workload over that of its winner; None where it was not measured."""
    us, best = (task.trials.get(_text(each)) for each in (config, task.entry.config))
    return None if us is None or best is None else us / best


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def list_spreads(kernel: str, tasks: list[Task]) -> list[float]:
    """What configs lose from workload to workload, in nats for each unit of distance."""
    family, found = registry.load(kernel), []
    for here in tasks:
        for there in tasks:
            distance = prediction.measure_distance(family, here.entry.key, there.entry)
            lost = time_at(here, there.entry.config)
            if not _NEAR < distance < _FAR or not here.gain or not there.gain or not lost:
                continue
            found.append((math.log(there.gain / here.gain) + math.log(lost)) / distance)
    return found


def judge(kernel: str, tasks: list[Task]) -> list[tuple[str, float]]:
    """What is predicted for each workload, and the time of the fastest over that of it."""
    family, found = registry.load(kernel), []
    for here in tasks:
        others = [
            each.entry
            for each in tasks
            if prediction.measure_distance(family, here.entry.key, each.entry) >= _NEAR
        ]
        table = runtime.Table(kernel, "", _DEVICE, {}, tuple(others), runtime.Rule("sizes"))
        workload = Workload.from_mapping(here.entry.key)
        near = prediction.find_neighbour([table], family, workload, here.entry.key)
        name = pick(TUNED, near.entry.baselines, (), near.loss)[0] if near else "eager"
        known = {n: r for n, r in here.entry.baselines.items() if not is_compiled(n)}
        time = time_at(here, near.entry.config) if near and name == TUNED else known.get(name)
        if time and known:
            found.append((name, min([1.0, *known.values()]) / time))
    return found


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="the spreads, for tuner.ops")
    options = parser.parse_args()
    cards = {card: group_tasks(card) for card in ("h100", "h200")}
    samples: dict[str, list[float]] = defaultdict(list)
    for kernels in cards.values():
        for kernel, tasks in kernels.items():
            samples[kernel] += list_spreads(kernel, tasks)
    few = [each for each in samples.values() if len(each) < _LEAST_SAMPLES]
    spreads = {"others": round(quantile([x for each in few for x in each], _SHARE), 3)}
    spreads |= {
        kernel: round(max(0.05, quantile(each, _SHARE)), 3)
        for kernel, each in sorted(samples.items())
        if len(each) >= _LEAST_SAMPLES
    }
    if options.write:
        (Path(prediction.__file__).parent / "spreads.json").write_text(
            json.dumps(spreads, indent=1) + "\n"
        )
    print(json.dumps({"spreads": spreads, **{c: judge_all(k) for c, k in cards.items()}}, indent=1))


def judge_all(kernels: Mapping[str, list[Task]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kernel, tasks in sorted(kernels.items()):
        judged = judge(kernel, tasks)
        shares = [share for _, share in judged]
        if shares:
            found[kernel] = {
                "workloads": len(shares),
                "kernel runs": sum(name == TUNED for name, _ in judged),
                "geometric mean of the fastest": round(geometric_mean(shares), 3),
                "at least 0.97": round(sum(share >= 0.97 for share in shares) / len(shares), 3),
                "least": round(min(shares), 3),
            }
    return found


if __name__ == "__main__":
    main()
