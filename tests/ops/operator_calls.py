"""How a kernel's problem is called through the operators, and what torch gives for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from search_spaces.kernel import Kernel
from search_spaces.records import Workload
from tuner import ops, runtime
from tuner.ops.operator import OPERATORS
from tuner.tables.text import document_of
from workers.device import offline

Tensors: TypeAlias = Mapping[str, torch.Tensor]

#: Those of all operators; attention has two, and moe_matmul is both products of a layer.
KERNELS = (
    *("softmax", "online_softmax", "softmax_backward", "layer_norm", "rms_norm", "add_norm"),
    *("norm_backward", "matmul", "linear", "fp8_matmul", "attention", "grouped_attention"),
    *("cross_entropy", "cross_entropy_backward", "linear_cross_entropy", "activation", "quantize"),
    *("linear_cross_entropy_backward", "group_norm", "rotary", "nearest_center"),
    *("embedding", "topk_routing", "convolution", "paged_decode", "varlen_attention", "moe_matmul"),
)

_NORM_EPS = 1e-5


def call_of(kernel: str, workload: Workload, tensors: Tensors) -> Callable[[], Any] | None:
    """The call that has this problem; None for a problem that no operator has.

    Its results are the kernel's outputs in their order.
    """
    t, eps = tensors, workload.get("eps", _NORM_EPS)
    x = t.get("x")
    calls: dict[str, Callable[[], Any]] = {
        "softmax": lambda: ops.softmax(x),
        "rms_norm": lambda: ops.rms_norm(x, x.shape[1:], t["weight"], eps),
        "layer_norm": lambda: ops.layer_norm(x, x.shape[1:], t["weight"], t["bias"], eps),
        "softmax_backward": lambda: OPERATORS["softmax_backward"](t["y"], t["dy"], workload["log"]),
        "norm_backward": lambda: OPERATORS["norm_backward"](
            x, t["dy"], t["weight"], t["rstd"], t.get("mean")
        ),
        "rotary": lambda: ops.rotary(
            t["q"], t["k"], t["cos"], t["sin"], interleaved=bool(workload["interleaved"])
        ),
        "quantize": lambda: ops.quantize(
            x, getattr(torch, workload.text("to")), workload.text("scales")
        ),
        "cross_entropy": lambda: OPERATORS["cross_entropy"](x, t["target"]),
        "cross_entropy_backward": lambda: OPERATORS["cross_entropy_backward"](
            x, t["target"], t["lse"], t["grad"]
        ),
        "nearest_center": lambda: ops.nearest_center(x, t["centers"]),
        "matmul": lambda: ops.matmul(t["a"], t["b"]),
        "attention": lambda: ops.attention(
            t["q"], t["k"], t["v"], is_causal=bool(workload["causal"])
        ),
        "embedding": lambda: ops.embedding(t["index"], t["table"]),
        "topk_routing": lambda: ops.topk_routing(
            t["logits"], workload.size("top_k"), renormalize=bool(workload["renormalize"])
        ),
        "varlen_attention": lambda: ops.varlen_attention(
            *(t[name] for name in ("q", "k", "v", "cu_seqlens")),
            causal=bool(workload["causal"]),
            window=int(str(workload["window"])),
        ),
        "paged_decode": lambda: ops.paged_attention(
            *(t[name] for name in ("q", "k_cache", "v_cache", "block_table", "lengths"))
        ),
        "convolution": lambda: _convolve(workload, t["x"], t["weight"]),
        "linear_cross_entropy": lambda: OPERATORS["linear_cross_entropy"](
            t["hidden"], t["weight"], t["target"]
        ),
        "linear_cross_entropy_backward": lambda: OPERATORS["linear_cross_entropy_backward"](
            t["hidden"], t["weight"], t["target"], t["lse"], t["grad"]
        ),
    }
    if kernel == "online_softmax" and workload["mask"] == "none":
        return lambda: (ops.log_softmax if workload["log"] else ops.softmax)(x)
    if kernel == "activation" and workload["function"] != "relu1":
        return lambda: ops.activation(x, workload.text("function"))
    if kernel == "add_norm" and (workload["kind"], workload["to"]) == ("rms_norm", "same"):
        return lambda: ops.add_rms_norm(x, t["residual"], t["weight"], eps)[::-1]
    if kernel == "group_norm" and workload["layout"] == "nchw":
        groups = workload.size("groups")
        return lambda: ops.group_norm(x, groups, t["weight"], t["bias"], eps)
    if kernel == "linear" and workload["epilogue"] in ("none", "gelu", "silu", "swiglu"):
        return lambda: ops.linear(t["a"], t["w"], t.get("bias"), workload.text("epilogue"))
    if kernel == "fp8_matmul" and workload["scales"] == "row":
        names = ("a", "b", "a_scale", "b_scale")
        return lambda: OPERATORS["scaled_matmul"](*(t[name] for name in names))
    if kernel == "moe_matmul" and not workload.get("quantized"):
        return _multiply_by_experts(workload, t)
    if kernel == "grouped_attention" and not workload["window"]:
        causal = bool(workload["causal"])
        if causal and workload["queries"] != workload["keys"]:
            return None
        return lambda: ops.attention(t["q"], t["k"], t["v"], is_causal=causal, enable_gqa=True)
    return calls.get(kernel) if "tolerance" not in workload else None


def _multiply_by_experts(workload: Workload, t: Tensors) -> Callable[[], Any] | None:
    given = [t[name] for name in ("x", "w", "ids", "sorted_slots", "ends")]
    if workload["gemm"] == "down":
        return lambda: OPERATORS["moe_down"](*given, t["weights"])
    if workload["gemm"] == "gate_up":
        return None
    return lambda: OPERATORS["moe_gate_up"](*given).view(*t["ids"].shape, -1)


def write_defaults(
    folder: Path,
    kernel: Kernel,
    workloads: Iterable[Workload],
    device: str = "NVIDIA H200",
    **fields: Any,
) -> None:
    """A table of a kernel's default configs, each for all sizes, which the kernel checks."""
    entries = []
    for workload in workloads:
        key = workload.as_dict()
        sizes = {name: runtime.Span(1, 2**20) for name, size in key.items()
                 if type(size) is int and size}  # fmt: skip
        config = kernel.default_config(workload, offline("cuda:90"))
        entries.append(runtime.Entry(key, config, sizes=sizes))
    write_table(folder, kernel.name, entries, device, **fields)


def write_table(
    folder: Path, kernel: str, entries: Iterable[runtime.Entry], device: str, **fields: Any
) -> None:
    """A table of a kernel. fields: of its first entry."""
    table = runtime.Table(
        kernel, "ab", runtime.DeviceFacts(device), {}, launch_hash="aa",
        entries=tuple(entries), rule=runtime.Rule("sizes"),
    )  # fmt: skip
    document = document_of(table)
    document["entries"][0] |= fields
    (folder / f"{kernel}.json").write_text(json.dumps(document))
    runtime.clear()


def _convolve(workload: Workload, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    images, weights = x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    padding = workload.size("padding_h"), workload.size("padding_w")
    rest = (workload.size(name) for name in ("dilation", "groups"))
    found = ops.conv2d(images, weights, None, workload.size("stride"), padding, *rest)
    return found.permute(0, 2, 3, 1)


def results_of(found: Any) -> list[torch.Tensor]:
    """A tensor or several as a list."""
    return [found] if isinstance(found, torch.Tensor) else list(found)


Close: TypeAlias = Callable[[torch.Tensor, torch.Tensor], None]


def check_gradients(
    found: Any,
    expected: Any,
    given: Iterable[torch.Tensor],
    of: Iterable[torch.Tensor] | None = None,
    close: Close = torch.testing.assert_close,
) -> None:
    """The gradients of results by the given tensors are those of the expected results by `of`.

    close: compares two gradients. `of` are the given tensors, unless they are others.
    """
    given = list(given)
    ours, others = results_of(found), results_of(expected)
    pulls = [torch.randn_like(each) for each in ours]
    wide = [pull.to(each.dtype) for pull, each in zip(pulls, others, strict=True)]
    gradients = torch.autograd.grad(ours, given, pulls)
    wanted = torch.autograd.grad(others, given if of is None else list(of), wide)
    for one, other in zip(gradients, wanted, strict=True):
        close(one, other)


def block(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Several operators one after the other: x[rows, n], w[n], m[n, n], b[n]."""
    y = ops.rms_norm(x, w.shape, w, 1e-5)
    y = ops.linear(y, m, b, "gelu")
    y, total = ops.add_rms_norm(y, x, w, 1e-5)
    return ops.softmax(y) + total


def plain_block(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same by torch's functions."""
    y = functional.rms_norm(x, x.shape[-1:], w, 1e-5)
    total = functional.gelu(functional.linear(y, m, b)) + x
    return functional.rms_norm(total, x.shape[-1:], w, 1e-5).softmax(-1) + total


def operators_in(graph: torch.fx.Graph) -> list[str]:
    """Our operators in a graph."""
    return [f"{node.target}" for node in graph.nodes if f"{node.target}".startswith("tuner.")]
