"""Give recorded spaces the baselines of an interleaved confirmation.

    python scripts/confirm_recordings.py [SPACES] [RESULTS]

A recording times its baselines in a pass of their own, at other clocks than its configs. Where the
winner of a committed campaign (RESULTS, `benchmarks/results/h200`) is a config of the recording
(SPACES, `benchmarks/spaces/h200`), each baseline's time becomes the recorded time of that config
times the confirmed ratio of the two; the newest campaign counts. A second run changes nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from write_kernels_page import FORMER_NAMES, ROOT

from search_spaces.recorded.recorded_space import RecordedSpace
from search_spaces.records import Workload


def list_tasks(folder: Path) -> Iterator[dict[str, Any]]:
    """The tasks of the campaigns in a folder, the newest last, with today's names."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("families*.json"))]
    for document in sorted(documents, key=lambda each: each["date"]):
        for task in document["tasks"]:
            dims = {
                FORMER_NAMES.get(name, name): FORMER_NAMES.get(f"{value}", value)
                for name, value in task["workload"].items()
            }
            kernel = FORMER_NAMES.get(task["kernel"], task["kernel"])
            yield {**task, "kernel": kernel, "workload": Workload.from_mapping(dims)}


def main(spaces: str = "", results: str = "") -> None:
    tasks = list(list_tasks(Path(results or ROOT / "benchmarks/results/h200")))
    for path in sorted(Path(spaces or ROOT / "benchmarks/spaces/h200").glob("*.space.json")):
        space = RecordedSpace.load(path)
        known = dict(space.baselines)
        for task in tasks:
            same = (task["kernel"], task["workload"]) == (space.kernel, space.workload)
            if not same or not task["winner"] or task["winner"] not in space:
                continue
            time_us = space[task["winner"]].median_us
            ratios = task["speedup_over"]
            if time_us:
                known |= {n: round(time_us * ratios[n], 3) for n in known if ratios.get(n)}
        if known != dict(space.baselines):
            replace(space, baselines=known).save(path)
            print(f"{path.name}: {known}")


if __name__ == "__main__":
    main(*sys.argv[1:])
