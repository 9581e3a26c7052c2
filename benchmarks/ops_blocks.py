"""A layer of Llama-3-8B and one of DiT on tuner.ops, against eager torch, torch.compile and Liger.

Forward, and forward with backward, of 4,096 tokens, and single tokens without a cache:
milliseconds, interleaved in passes, with the median of the ratios over tuner.ops and its interval.
`liger` has Liger's kernels for norms and the gated activation, and torch's fastest attention.
Without --no-loss, a model of one such layer is trained for 200 steps, and their losses
are compared. Usage:

    python benchmarks/ops_blocks.py --out OUT [--only NAME ...] [--passes 40] [--no-loss]

Writes OUT/ops_blocks.json after each case. liger-kernel may lie anywhere on Python's import path.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "examples/operators")]

import torch  # noqa: E402
from blocks import OPS, TORCH, DitBlock, LlamaBlock  # noqa: E402
from interleaved import capture_graph, median_interval  # noqa: E402
from matmul_tasks import facts  # noqa: E402

from tuner import ops  # noqa: E402

#: Batch, tokens, and whether with backward.
CASES = {
    "llama forward, batch 1": ("llama", 1, 4096, False),
    "llama forward, batch 8": ("llama", 8, 4096, False),
    "llama forward and backward, batch 1": ("llama", 1, 4096, True),
    "llama forward and backward, batch 8": ("llama", 8, 4096, True),
    "llama forward, 32 single tokens": ("llama", 32, 1, False),
    "dit forward, batch 16": ("dit", 16, 1024, False),
}


def liger_operations() -> Any:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    def linear(x: Any, weight: Any, bias: Any = None, activation: str = "none") -> Any:
        if activation != "swiglu":
            return TORCH.linear(x, weight, bias, activation)
        gate, value = torch.nn.functional.linear(x, weight, bias).chunk(2, -1)
        return LigerSiLUMulFunction.apply(gate.contiguous(), value.contiguous())

    return replace(
        TORCH,
        rms_norm=lambda x, w, eps: LigerRMSNormFunction.apply(x, w, eps, 0.0, "llama", False),
        add_rms_norm=lambda x, r, w, eps: LigerFusedAddRMSNormFunction.apply(
            x, r, w, eps, 0.0, "llama", False
        ),
        linear=linear,
    )


def build(kind: str, batch: int, tokens: int, grad: bool) -> dict[str, Callable[[], Any]]:
    """The calls that are compared, on equal weights and inputs."""
    torch.manual_seed(0)
    make = LlamaBlock if kind == "llama" else DitBlock
    with torch.device("cuda"):
        ours = make(OPS).to(torch.bfloat16)
        dim = 4096 if kind == "llama" else 1152
        x = torch.randn(batch, tokens, dim, dtype=torch.bfloat16, requires_grad=grad)
        if kind == "llama":
            angles = torch.rand(batch * tokens, 64) * 6
            rest = [angles.cos().bfloat16(), angles.sin().bfloat16()]
        else:
            rest = [torch.randn(batch, dim, dtype=torch.bfloat16)]
        pull = torch.randn_like(x)

    def same(operations: Any) -> Any:
        other = make(operations).to("cuda", torch.bfloat16)
        other.load_state_dict(ours.state_dict())
        return other

    models = {
        "ops": ours,
        "eager": same(TORCH),
        "compile": torch.compile(same(TORCH), mode="max-autotune-no-cudagraphs"),
        "ops compiled": torch.compile(same(OPS)),
    }
    if kind == "llama":
        models["liger"] = same(liger_operations())

    def call(model: Any) -> Callable[[], Any]:
        def run() -> Any:
            if not grad:
                with torch.no_grad():
                    return model(x, *rest)
            out = model(x, *rest)
            out.backward(pull)
            return out

        return run

    return {name: call(model) for name, model in models.items()}


def interleave(calls: dict[str, Callable[[], Any]], passes: int) -> dict[str, Any]:
    """Milliseconds of each, and the ratio over `ops` with its interval."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        for _ in range(3):
            calls[name]()
    for at in range(passes):
        for name in names if at % 2 else names[::-1]:
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(2_000_000)
            start.record()
            calls[name]()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end))
    found = {}
    for name in names:
        ratios = [each / own for each, own in zip(times[name], times["ops"], strict=True)]
        found[name] = {
            "ms": statistics.median(times[name]),
            "over ops": statistics.median(ratios),
            "interval": list(median_interval(ratios)),
        }
    return found


def judge(name: str, passes: int) -> dict[str, Any]:
    kind, batch, tokens, grad = CASES[name]
    calls = build(kind, batch, tokens, grad)
    exact = calls["eager"]().double()
    errors = {}
    usable = {}
    for each, call in calls.items():
        began = time.monotonic()
        try:
            out = call().double()
            errors[each] = float((out - exact).norm() / exact.norm())
            usable[each] = call if grad else capture_graph(call, lambda: None)
        except Exception as error:
            errors[each] = f"{type(error).__name__}: {error}"[:300]
        print(name, each, errors[each], round(time.monotonic() - began, 1), "s", flush=True)
    return {"difference from eager": errors, "times": interleave(usable, passes)}


def losses(steps: int) -> dict[str, list[float]]:
    """Losses of one layer of Llama-3-8B between an embedding and its transpose."""
    found = {}
    for name, operations in (("ops", OPS), ("torch", TORCH)):
        torch.manual_seed(0)
        sizes = {"dim": 4096, "heads": 32, "kv_heads": 8, "inner": 14336}
        layers = torch.nn.ModuleList(LlamaBlock(operations, **sizes) for _ in range(1))
        model = layers.to("cuda", torch.bfloat16)
        table = torch.nn.Parameter(torch.randn(32000, 4096, device="cuda").bfloat16() / 20)
        optimizer = torch.optim.AdamW([*model.parameters(), table], lr=3e-4)
        angles = torch.rand(4 * 1024, 64, device="cuda") * 6
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        tokens = torch.randint(0, 32000, (8, 4, 1024), device="cuda")
        row = []
        for step in range(steps):
            given = tokens[step % 8]
            x = table[given]
            for layer in model:
                x = layer(x, cos, sin)
            logits, target = x.reshape(-1, 4096) @ table.T, given.roll(-1, 1).reshape(-1)
            loss = ops.cross_entropy if name == "ops" else torch.nn.functional.cross_entropy
            value = loss(logits, target)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            row.append(float(value))
        found[name] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--no-loss", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {"toolchain": facts(), "cases": {}}

    def keep() -> None:
        (options.out / "ops_blocks.json").write_text(json.dumps(result, indent=1) + "\n")

    if not options.no_loss:
        result["losses"] = losses(200)
        ends = {name: row[-1] for name, row in result["losses"].items()}
        print("loss after 200 steps", ends, flush=True)
        keep()
    for name in options.only:
        try:
            result["cases"][name] = judge(name, options.passes)
            for each, row in result["cases"][name]["times"].items():
                print(f"  {each}: {row['ms']:.3f} ms, {row['over ops']:.3f}", flush=True)
        except Exception as error:
            traceback.print_exc()
            result["cases"][name] = {"fault": f"{type(error).__name__}: {error}"[:1000]}
        result["runs"] = [
            [use.operator, use.workload, use.implementation, use.reason, use.gain]
            for use in ops.report()
        ]
        keep()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
