"""Every family for GPUs compiles for targets that this machine does not have."""

from __future__ import annotations

import random

import pytest
from spaces_devices import GPU_FAMILIES, MI300X

from search_spaces import triton_versions
from search_spaces.records import Status
from search_spaces.registry import load
from workers.compiling.job import build_kernel
from workers.device import offline
from workers.job_records import Artifact, BuildJob, KernelRef


@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_amd_gets_no_descriptors(name):
    kernel = load(name)
    workload = kernel.workloads()[0]
    bound = kernel.space(workload).bind(workload, MI300X)
    assert all(point.get("loads") != "descriptor" for point in bound.enumerate())


#: For cuda:90, tests/compiling/test_torch_free_builds.py does so with torch and without it.
TARGETS = ("cuda:80", "cuda:100", "hip:gfx942")


@pytest.mark.matrix("build")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_default_and_random_configs_compile_for_absent_targets(name, target, tmp_path, whole):
    """The default for all targets, a random config for one of them.

    `tuner verify --all --target TARGET --sample N` tries many configs of all workloads.
    """
    kernel, device = load(name), offline(target)
    workload = kernel.workloads()[0]
    bound = kernel.space(workload).bind(workload, device)
    default = kernel.default_config(workload, device)
    assert bound.why_not(default) is None
    sampled = TARGETS[GPU_FAMILIES.index(name) % len(TARGETS)]
    samples = int(target == sampled and whole)
    for config in (default, *bound.sample(random.Random(5), samples)):
        job = BuildJob("job", KernelRef(name), workload, config, device)
        built = build_kernel(kernel, job, tmp_path)
        if isinstance(built, Artifact) or built.status == Status.CONSTRAINTS:
            continue  # a binary may need more registers or shared memory than the target has
        # Triton 3.6 fails to pipeline the loads of int4_matmul for AMD; 3.7 compiles them.
        assert (name, target) == ("int4_matmul", "hip:gfx942"), built
        assert triton_versions.read_installed() == (3, 6), built
