"""Variants whose launches differ in compiler options only are interpreted once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
import json, sys
from workers import backend_kinds
from search_spaces.kernel import Launch
from search_spaces.registry import load
from workers.backends.interpreter.backend import computation
from workers.job_records import Artifact, KernelRef, MeasureJob, Mode, StaticFacts

backend = backend_kinds.create("interpreter", cache_dir=sys.argv[1])
device, toolchain = backend.info()
kernel = load("softmax")
workload = kernel.small_workload(kernel.workloads()[0])
tensors = dict(kernel.make_inputs(workload, 1, "cpu"))
tensors["out"] = next(iter(tensors.values())).new_empty(0)
base = {"num_warps": 4, "rows_per_step": 1, "steps": 1, "stream": False}

def launch(**changes):
    return kernel.launches(workload, {**base, **changes}, tensors)[0]

def key(made):
    return computation([made], tensors)
"""
RUNS = """
runs = []
launch().fn.add_pre_run_hook(lambda *_, **__: runs.append(1))

def measure(*changes):
    runs.clear()
    candidates = tuple(
        Artifact({**base, **each}, device.target, toolchain, f"{each}", StaticFacts())
        for each in changes
    )
    job = MeasureJob("1", KernelRef("softmax"), kernel.workloads()[0], candidates, Mode.VERIFY)
    outcomes = backend.measure(job).outcomes
    return len(runs), [(each.error, each.deterministic) for each in outcomes]

first, [one] = measure({})
again, [other] = measure({"num_warps": 8})
both, [third, fourth] = measure({"rows_per_step": 2}, {"rows_per_step": 2, "num_warps": 1})
print(json.dumps([first, again, both, one == other, third == fourth, 0 <= one[0] < 1e-2]))
"""
KEYS = """
plain = launch()
changed = lambda **kwargs: Launch(plain.fn, plain.grid, plain.args, {**plain.kwargs, **kwargs})
name = next(name for name, value in plain.kwargs.items() if type(value) is int
            and name in plain.fn.arg_names)
moved = [arg.clone() if hasattr(arg, "clone") else arg for arg in plain.args]
print(json.dumps([
    key(changed(num_warps=16, num_stages=7)) == key(plain),
    key(launch(rows_per_step=2)) == key(plain),
    key(changed(**{name: True})) == key(changed(**{name: 1})),
    key(changed(**{name: 0.0})) == key(changed(**{name: -0.0})),
    key(Launch(plain.fn, (99,), plain.args, plain.kwargs)) == key(plain),
    key(changed(**{name: object()})) is None,
    key(Launch(plain.fn, plain.grid, tuple(moved), plain.kwargs)) is None,
    key(Launch(lambda: None, plain.grid, plain.args, plain.kwargs)) is None,
]))
"""


def test_what_differs_in_compiler_options_only_is_checked_once_and_nothing_else(tmp_path):
    """A check runs a variant on two seeds, on the first one again, and at the edges."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", SCRIPT + RUNS + KEYS, f"{tmp_path}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    runs, keys = map(json.loads, done.stdout.splitlines())
    assert runs == [4, 0, 4, True, True, True]
    # What may compute something else has another key, or none.
    assert keys == [True, False, False, False, False, True, True, True]
