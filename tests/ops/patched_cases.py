"""Patched models on kernels in Triton's interpreter; `test_interpreted.py` runs this file."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.activations import GEGLU
from operator_calls import write_defaults
from tiny_models import call, gradients, model_of

from search_spaces import registry
from tuner import ops, runtime
from tuner.ops.operator import OPERATORS

pytestmark = pytest.mark.filterwarnings("default", "error:ops.patch")

#: What launches kernels, by operator. Products of bfloat16 are none of the interpreter's.
RUNS = {
    # Heads that lie in one projection are rotated there, by no kernel of a table.
    ("llama", "float32"): {"rms_norm", "add_rms_norm", "linear", "norm_backward"},
    ("phi3", "float16"): {"rms_norm", "add_rms_norm", "linear", "norm_backward"},
    ("gemma3", "float16"): {"rms_norm", "rotary", "activation"},
    ("vit", "float16"): {"layer_norm", "linear"},
}


@pytest.fixture(autouse=True)
def defaults(tmp_path, monkeypatch):
    """Tables of default configs, which serve every size."""
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    for name in (
        "rms_norm",
        "layer_norm",
        "add_norm",
        "rotary",
        "linear",
        "activation",
        "norm_backward",
    ):
        kernel = registry.load(name)
        small = [kernel.small_workload(each) for each in kernel.workloads()]
        kept = [each.with_dims(dtype=dtype) for each in small for dtype in ("float32", "float16")]
        write_defaults(tmp_path, kernel, dict.fromkeys(kept))
    for operator in OPERATORS.values():
        operator.forget()
    with ops.prefer_tuned():
        yield
    runtime.clear()


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_kernels_run_in_a_patched_model(name, dtype):
    model, inputs = model_of(name)
    model.to(getattr(torch, dtype))
    inputs = {key: each.to(model.dtype) if each.is_floating_point() else each
              for key, each in inputs.items()}  # fmt: skip
    near = 1e-4 if dtype == "float32" else 2e-2

    def run():
        with torch.no_grad():
            return [call(model, inputs), *gradients(model, inputs).values()]

    before = run()
    ops.patch(model)
    after = run()
    largest = max(each.norm() for each in before[1:])
    for one, other in zip(after, before, strict=True):
        assert (one - other).norm() <= near * torch.maximum(other.norm(), 0.02 * largest)
    ran = {use.operator for use in ops.report() if use.implementation == "tuned"}
    assert ran >= RUNS[name, dtype], str(ops.report())


def test_a_value_before_its_gate():
    layer = GEGLU(32, 48).half()
    x = torch.randn(2, 5, 32).half()
    with torch.no_grad():
        expected = layer(x)
        ops.patch(layer)
        torch.testing.assert_close(layer(x), expected, rtol=1e-2, atol=1e-3)
    assert {use.operator for use in ops.report() if use.implementation == "tuned"} == {"linear"}
