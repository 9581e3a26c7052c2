"""Captured calls, their kernels, and programs about them, for all tests of capturing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import triton

import tuner
from tuner import runtime
from tuner.tables.text import text_of
from workers.device import offline

H200 = offline("cuda:90")
HERE = Path(__file__).parent


def blocks(n):
    """A grid of one program for every block of n elements."""
    return lambda meta: (-(-n // meta["BLOCK"]),)


def add(kernel, n=100, grid=None, scale=2.0, **options):
    """Launch a kernel that adds two vectors; all of `capture_kernels` with a `scale` do.

    Launches of equal sizes have equal numbers: the identity of a call has the range of its values.
    """
    torch.manual_seed(0)
    kernel[grid or blocks(n)](torch.randn(n), torch.randn(n), torch.empty(n), n, scale, **options)


def captured(launch, *given, **named):
    """What one call launches."""
    with tuner.capture() as calls:
        launch(*given, **named)
    return calls


def only(kernel):
    """The workload of a kernel that has one."""
    (workload,) = kernel.workloads()
    return workload


def bound(kernel):
    """Its space on an H200."""
    return kernel.space(only(kernel)).bind(only(kernel), H200)


def default_of(kernel):
    return kernel.default_config(only(kernel), H200)


def values_of(kernel):
    """The values of each parameter of its space."""
    return {each.name: each.choices for each in kernel.space(only(kernel)).parameters}


def inputs_of(kernel, seed=0):
    return kernel.make_inputs(only(kernel), seed, "cpu")


def results_of(kernel):
    """Inputs, and what the reference makes of them."""
    inputs = inputs_of(kernel)
    return inputs, kernel.reference(only(kernel), inputs)


def apply_own(kernel, launch, folder):
    """Hits and misses of a launch from a table with the kernel's own config."""
    workload = only(kernel)
    entry = runtime.Entry(workload.as_dict(), next(iter(bound(kernel).enumerate())))
    table = runtime.Table(
        kernel=kernel.name,
        space_hash="",
        device=runtime.current_device(),
        toolchain={"triton": triton.__version__},
        entries=(entry,),
        provenance={"place": kernel.place, "free": ",".join(kernel.free)},
        launch_hash="aa",
        kernel_hashes=kernel.kernel_hashes(),
    )
    file = folder / "table.json"
    file.write_text(text_of(table))
    with tuner.applied(file) as used:
        launch()
    return [(each.hits, each.misses) for each in used.kernels]


def hashes_of(kernel):
    return kernel.launch_hash(), kernel.kernel_hashes()


def run_python(folder, *arguments, **environment):
    """A Python process in a folder, with the kernels and the tuner on its path."""
    paths = os.pathsep.join([f"{HERE}", f"{Path(tuner.__file__).parents[1]}"])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
