"""Kernels launched by operators in Triton's interpreter; `test_interpreted.py` runs this file.

The shipped tables decide, however far their entries are: the interpreter takes small problems only.
Kernels without a shipped table get their default configs.
"""

from __future__ import annotations

import json

import pytest
import torch
from operator_calls import call_of, results_of
from torch.nn import functional

from search_spaces import registry
from tuner import ops, runtime
from tuner.ops import choosing
from tuner.ops.operator import OPERATORS
from tuner.tables.text import document_of
from workers.device import offline

KERNELS = (
    *("softmax", "online_softmax", "softmax_backward", "layer_norm", "rms_norm", "add_norm"),
    *("norm_backward", "matmul", "linear", "cross_entropy", "cross_entropy_backward"),
    *("activation", "rotary", "nearest_center", "linear_cross_entropy"),
)
#: Those without a shipped table.
UNTABLED = ("embedding", "topk_routing", "convolution", "paged_decode")
#: The interpreter has products of bfloat16 wrong.
PRODUCTS = (
    *("matmul", "linear", "nearest_center", "linear_cross_entropy", "convolution", "paged_decode"),
)
H200 = offline("cuda:90")


@pytest.fixture(autouse=True)
def every_entry_serves(monkeypatch):
    monkeypatch.setattr(choosing, "FARTHEST", 99.0)
    forget_all()


def forget_all():
    for operator in OPERATORS.values():
        operator.forget()


def workloads_of(kernel):
    """Different small workloads that an operator can have."""
    found = [kernel.small_workload(each) for each in kernel.workloads()]
    if kernel.name in PRODUCTS:
        found = [each.with_dims(dtype="float16") for each in found if each["dtype"] != "float32"]
    return list(dict.fromkeys(found))


@pytest.fixture
def write_defaults(tmp_path, monkeypatch):
    """Writes a table of a kernel's default configs, each for all sizes, which the kernel checks."""

    def write(kernel):
        entries = []
        for workload in workloads_of(kernel):
            key = {name: workload[name] for name in workload}
            sizes = {name: runtime.Span(1, 2**20) for name, size in key.items()
                     if type(size) is int and size}  # fmt: skip
            config = kernel.default_config(workload, H200)
            entries.append(runtime.Entry(key, config, sizes=sizes))
        table = runtime.Table(
            kernel.name, "ab", runtime.DeviceFacts("NVIDIA H200"), {}, launch_hash="aa",
            entries=tuple(entries), rule=runtime.Rule("sizes"),
        )  # fmt: skip
        (tmp_path / f"{kernel.name}.json").write_text(json.dumps(document_of(table)))
        monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
        runtime.clear()

    yield write
    runtime.clear()


@pytest.mark.parametrize("name", [*KERNELS, *UNTABLED])
def test_a_call_is_the_kernel(name, write_defaults):
    kernel = registry.load(name)
    if name in UNTABLED:
        write_defaults(kernel)
    launched = 0
    for workload in workloads_of(kernel):
        tensors = kernel.make_inputs(workload, 0, "cpu")
        call = call_of(name, workload, tensors)
        if call is None or launched == 2:
            continue
        with torch.no_grad():
            found = results_of(call())
        if not any(use.implementation == "tuned" for use in ops.report()):
            continue
        launched += 1
        expected = kernel.reference(workload, tensors)
        bound = kernel.tolerance(workload).relative
        for out, exact in zip(found, expected.values(), strict=False):
            error = (out.double() - exact.double()).norm() / (exact.double().norm() + 1e-300)
            assert error <= 2 * bound  # the interpreter cuts bfloat16 off, where hardware rounds
        forget_all()
    assert launched


def test_gradients_pass_through_kernels():
    x = torch.randn(13, 509, requires_grad=True)
    w = torch.randn(509, requires_grad=True)
    out, expected = ops.rms_norm(x, w, 1e-5), functional.rms_norm(x, (509,), w, 1e-5)
    pull = torch.randn_like(out)
    for one, other in zip(
        torch.autograd.grad(out, (x, w), pull),
        torch.autograd.grad(expected, (x, w), pull),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    runs = {use.operator: use.implementation for use in ops.report()}
    assert runs["rms_norm"] == "tuned"


def test_a_baseline_that_is_missing_leaves_torch(monkeypatch):
    monkeypatch.setattr(
        choosing, "pick", lambda implementation, baselines: ("no such library", None)
    )
    x = torch.randn(13, 509)
    torch.testing.assert_close(ops.softmax(x), x.softmax(-1))
    (use,) = [use for use in ops.report() if use.operator == "softmax"]
    assert use.implementation == "eager"
    why = "kernel softmax has no baseline 'no such library' for "
    assert use.reason.startswith(f"no such library failed: KernelError: {why}")
