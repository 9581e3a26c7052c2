"""Reductions along rows and columns on a CPU."""

from __future__ import annotations

import pytest
import torch
from spaces_cpu import PLAIN, wrong_compiled, wrong_forms

from search_spaces.errors import WorkloadError
from search_spaces.kernels.cpu_reduction.forms import folded, in_parts, library, product, two_pass
from search_spaces.kernels.cpu_reduction.kernel import OPERATIONS
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family


def workload(operation: str, axis: int, dtype: str = "float32") -> Workload:
    return Workload.of(rows=48, cols=331, axis=axis, operation=operation, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("axis", [0, 1])
def test_all_forms_of_a_reduction_agree(axis, dtype):
    x = torch.randint(-9, 9, (48, 80), generator=torch.Generator().manual_seed(1)).to(dtype)
    for operation in ("sum", "max"):
        exact = library(operation, axis)(x)
        forms = [in_parts(operation, axis, parts) for parts in (2, 16)]
        forms += [folded(operation, fold) for fold in (2, 4)] if axis == 1 else []
        for form in forms:
            assert torch.equal(form(x), exact)
            assert form(x).dtype == exact.dtype
    if dtype == torch.float32:
        assert torch.equal(product(axis)(x), x.sum(axis))
    # Many values are equal: the first place counts.
    assert torch.equal(two_pass(axis, 2)(x), library("argmax", axis)(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_form_is_right(dtype):
    for operation in OPERATIONS:
        for axis in (0, 1):
            assert wrong_forms("cpu_reduction", workload(operation, axis, dtype)) == []


def test_compiled_reductions_are_right():
    chosen = [
        ("sum", 1, "bfloat16", {"form": "folded", "fold": 4}),
        ("sum", 0, "int8", {"form": "parts", "parts": 8, "tile_always": True}),
        ("argmax", 1, "float32", {"form": "two_pass", "fold": 2}),
        ("max", 0, "float32", {"form": "library", "tile_always": False}),
    ]
    jobs = [
        ("cpu_reduction", workload(operation, axis, dtype), {**PLAIN, **config})
        for operation, axis, dtype, config in chosen
    ]
    assert wrong_compiled(jobs) == []


def test_other_operations_are_refused():
    with pytest.raises(WorkloadError, match="operation is 'mean'"):
        load("cpu_reduction").check_workload(workload("mean", 1))
