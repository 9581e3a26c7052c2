"""Does the CPU timer tell what a call takes alone, while another program never sleeps?

    python benchmarks/busy_processors.py [--passes 60] [--output FILE]

Times calls of `cpu_pointwise` in one thread and in one for each of two processors, in turn: first
on a quiet machine, then beside a process that never sleeps; each of these as Linux places and
interrupts threads, and as the farm times them (`workers/measure/timers/thread_team.py`). The output
has, in us, quartiles of all samples.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

import torch
import triton
from quickstarts import beside_busy_process

from search_spaces.kernels.cpu_pointwise.kernel import CpuPointwise
from search_spaces.records import Workload
from workers.host import cpu_device
from workers.measure.timers.perf_counter import PerfCounterTimer
from workers.measure.timers.thread_team import ThreadTeam
from workers.measure.timers.timer import Candidate, WarmUp

SIZES = ((256, 1024), (512, 4096))
_CONFIG = {"simdlen": None, "store_gelu": True, "precision": "float32", "gelu": "erf"}


class _NoTeam(ThreadTeam):
    def enter(self) -> None:
        """Leave threads where Linux places them."""


def time_calls(rows: int, cols: int, team: ThreadTeam, passes: int) -> dict[str, list[int]]:
    """Quartiles in us by the number of threads."""
    workload = Workload.of(rows=rows, cols=cols, dtype="float32")
    inputs = {"x": torch.randn(rows, cols), "bias": torch.randn(cols)}
    candidates = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        call = CpuPointwise().cpu_callable(workload, {**_CONFIG, "threads": threads})
        call(inputs)
        candidates.append(
            Candidate(
                f"{threads} threads",
                lambda call=call: call(inputs),
                enter=lambda threads=threads: torch.set_num_threads(threads),
            )
        )
    timer = PerfCounterTimer(200.0, WarmUp(), team=team)
    samples = timer.collect(candidates, [[0, 1]] * passes)
    return {
        candidate.name: [round(us) for us in quantiles(each, n=4)]
        for candidate, each in zip(candidates, samples, strict=True)
    }


def main() -> None:
    """Parse the options, measure, print and write the outcome."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passes", type=int, default=60)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = {}
    for rows, cols in SIZES:
        for name, machine in (("quiet", nullcontext()), ("busy", beside_busy_process())):
            with machine:
                found[f"{rows} x {cols}, {name} machine"] = {
                    "as Linux places threads": time_calls(rows, cols, _NoTeam(), options.passes),
                    "as the farm times": time_calls(rows, cols, ThreadTeam(), options.passes),
                }
    outcome = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": cpu_device().name,
        "processors": len(os.sched_getaffinity(0)),
        "linux": os.uname().release.partition("-")[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "quartiles_us": found,
    }
    text = json.dumps(outcome, indent=1) + "\n"
    if options.output:
        options.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
