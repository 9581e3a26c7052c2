"""Activations: GELU of 16-bit outputs, which does without erf."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from spaces_devices import H200, build, meta_tensors

from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

SCRIPT = Path(__file__).with_name("interpreted_gelu.py")


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """GELU over all of float32's range, densely where it bends."""
    folder = tmp_path_factory.mktemp("gelu")
    dense, far = torch.linspace(-14, 14, 30 * 1024), torch.logspace(-30, 38, 1023)
    x = torch.cat([dense, far, -far, torch.tensor([float("inf"), float("nan")])]).float()
    torch.save(x, folder / "x.pt")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(SCRIPT), str(folder / "x.pt"), str(folder / "y.pt")]
    subprocess.run(command, check=True, env=environment, timeout=100)
    return x, torch.load(folder / "y.pt").double()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_error_of_gelu_is_a_small_part_of_the_rounding(values, dtype):
    x, got = values[0][:-2].double(), values[1][:-2]
    exact = x * torch.special.erfc(-x * 0.5**0.5) / 2
    # Smaller outputs are 0 or the least subnormal; exp2 has no subnormal float32.
    least = max(torch.finfo(getattr(torch, dtype)).smallest_normal / 1024, torch.finfo().tiny)
    error = (got - exact).abs() / exact.abs().clamp_min(least)
    assert float(error.max()) < 0.1 * ROUNDING[dtype]


def test_gelu_of_numbers_without_a_value(values):
    infinity, none = values[1][-2:].tolist()
    assert infinity == float("inf")
    assert none != none


@pytest.mark.parametrize(("dtype", "exact"), [("float16", False), ("float32", True)])
def test_only_float32_outputs_take_erf(dtype, exact):
    kernel = load("activation")
    large = Workload.of(rows=4096, cols=4096, function="gelu", dtype=dtype)
    config = kernel.default_config(large, H200)
    (launch,) = kernel.launches(large, config, meta_tensors(kernel, large, config))
    text = build(launch, H200).asm["ttgir"]
    assert ("erf" in text) == exact
