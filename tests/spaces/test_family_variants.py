"""Variants of every family for GPUs compute the reference, in Triton's interpreter."""

from __future__ import annotations

import os
import random

import pytest
from spaces_devices import GPU_FAMILIES, H200
from spaces_interpret import interpretable, wrong

from search_spaces.registry import load


@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_variants_compute_the_reference(name):
    kernel, rng, jobs = load(name), random.Random(7), []
    few = "FEW_VARIANTS" in os.environ
    # Workloads that differ in size alone have one small workload.
    distinct = {kernel.small_workload(workload): workload for workload in kernel.workloads()}
    for small, workload in [*distinct.items()][: 1 if few else None]:
        bound = kernel.space(workload).bind(workload, H200)
        others = interpretable(bound).sample(rng, 0 if few else 1)
        configs = [kernel.default_config(workload, H200), *others]
        jobs += [(name, small, config) for config in configs]
    assert wrong(jobs) == []
