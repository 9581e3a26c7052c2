"""Variants of every family for GPUs compute the reference, in Triton's interpreter."""

from __future__ import annotations

import random

import pytest
from spaces_devices import GPU_FAMILIES, H200
from spaces_interpret import interpretable, wrong

from search_spaces.registry import load


@pytest.mark.matrix("interpreter")
@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_variants_compute_the_reference(name, whole, turn):
    kernel, rng, jobs = load(name), random.Random(7), []
    # Workloads that differ in size alone have one small workload.
    distinct = {kernel.small_workload(workload): workload for workload in kernel.workloads()}
    for small, workload in distinct.items():
        bound = kernel.space(workload).bind(workload, H200)
        configs = [kernel.default_config(workload, H200), *interpretable(bound).sample(rng, 1)]
        jobs += [(name, small, config) for config in configs]
    assert wrong(jobs if whole else [jobs[turn % len(jobs)]]) == []
