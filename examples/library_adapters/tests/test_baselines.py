"""Baselines of other packages: what they take, and that they are right."""

from __future__ import annotations

import pytest
import torch
from search_spaces import registry
from search_spaces.baselines import list_baselines
from test_libraries import require
from tuner import Workload

from library_adapters.baselines import liger

NORMS = ("softmax", "rms_norm", "layer_norm", "add_norm")


def names_of(name):
    kernel = registry.load(name)
    return set(list_baselines(kernel, kernel.workloads()[0]))


def test_kernels_have_them_where_their_packages_are_installed():
    require("liger_kernel")
    assert all("liger" in names_of(name) for name in NORMS)
    assert "liger" not in names_of("matmul")


@pytest.mark.parametrize("kernel", ["cross_entropy", "matmul"])
def test_other_problems_have_none(kernel):
    assert liger(kernel, Workload.of(dtype="bfloat16")) is None


def test_a_norm_of_another_kind_has_none():
    require("liger_kernel")
    assert liger("add_norm", Workload.of(kind="layer_norm", to="same")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NORMS)
def test_they_are_right_and_keep_nothing(name):
    kernel = registry.load(name)
    workload = next(each for each in kernel.workloads() if each["dtype"] == "bfloat16")
    require("liger_kernel")
    baseline = liger(name, workload)
    kept = []
    for seed in (1, 2):
        tensors = kernel.make_inputs(workload, seed, "cuda")
        with torch.no_grad():
            found = baseline(tensors)
        for output, exact in kernel.reference(workload, tensors).items():
            error = (found[output].double() - exact.double()).norm() / exact.double().norm()
            assert error <= 2 * kernel.tolerance(workload).relative
        del tensors, found, exact
        kept.append(torch.cuda.memory_allocated())
    assert kept[1] <= kept[0] + 2**20
