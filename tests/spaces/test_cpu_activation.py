"""Activation functions on a CPU."""

from __future__ import annotations

import pytest
import torch
from spaces_cpu import PLAIN, wrong_compiled, wrong_forms
from spaces_devices import CPU

from search_spaces.errors import WorkloadError
from search_spaces.kernels.cpu_activation.forms import APPROXIMATE, FORMS
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family


def workload(function: str, dtype: str = "float32") -> Workload:
    return Workload.of(rows=5, cols=67, function=function, dtype=dtype)


@pytest.mark.parametrize("function", FORMS)
def test_all_formulas_of_a_function_agree(function):
    x = 3.0 * torch.randn(64, 1024, generator=torch.Generator().manual_seed(1))
    exact = FORMS[function]["library"](x.double())
    for form, formula in FORMS[function].items():
        error = float((formula(x).double() - exact).norm() / exact.norm())
        if (function, form) in APPROXIMATE:
            assert 1e-5 < error < APPROXIMATE[function, form]
        else:
            assert error < 1e-6, form


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_form_is_right(dtype):
    for function in ("relu", "relu1") if dtype == "int8" else FORMS:
        assert wrong_forms("cpu_activation", workload(function, dtype)) == []


def test_compiled_formulas_are_right():
    chosen = [
        ("gelu", "rational", "float32"),
        ("swiglu", "division", "bfloat16"),
        ("relu1", "minimum", "int8"),
    ]
    jobs = [
        ("cpu_activation", workload(function, dtype), {**PLAIN, "form": form})
        for function, form, dtype in chosen
    ]
    jobs += [("cpu_activation", workload("relu1"), name) for name in ("torchscript", "clamp")]
    assert wrong_compiled(jobs) == []


def test_the_tolerance_admits_the_tanh_form_of_gelu():
    kernel = load("cpu_activation")
    strict = workload("gelu")
    for each, admitted in (
        (strict, False),
        (strict.with_dims(tolerance=1e-3), True),
        (workload("gelu", "bfloat16"), True),
    ):
        forms = {config["form"] for config in kernel.space(each).bind(each, CPU).enumerate()}
        assert ({"tanh", "aten_tanh"} <= forms) == admitted


def test_functions_of_int8_without_integer_results_are_refused():
    with pytest.raises(WorkloadError, match="gelu of int8 is no integer"):
        load("cpu_activation").check_workload(workload("gelu", "int8"))
