"""Forward and backward of operators at the sizes of Llama-3-8B, against eager and compiled torch.

Microseconds of the device, interleaved in passes, of 4,096 tokens in bfloat16; with the peak of
memory beyond the inputs. Of small tensors, microseconds of the host for a call, forward alone and
with the backward pass. Usage:

    python benchmarks/training_operators.py --out OUT [--only NAME ...] [--passes 20] [--small]

--small: tiny tensors, on a CPU if there is no GPU, without torch.compile. Writes
OUT/training_operators.json after each case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from interleaved import compare_to_ops  # noqa: E402
from matmul_tasks import facts  # noqa: E402
from torch.nn import functional  # noqa: E402

from tuner import ops  # noqa: E402
from tuner.ops.operator import OPERATORS  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Tensors: TypeAlias = list[torch.Tensor]
Call: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Sizes:
    tokens: int = 4096
    dim: int = 4096
    inner: int = 14336
    vocab: int = 128256
    heads: int = 32


LARGE, LITTLE = Sizes(), Sizes(tokens=16, dim=256, inner=512, vocab=1000, heads=4)


@dataclass(frozen=True)
class Case:
    """ours, torchs: of the same tensors. make: these for sizes."""

    ours: Call
    torchs: Call
    make: Callable[[Sizes], Tensors]


def randn(*shape: int, grad: bool = True) -> torch.Tensor:
    found = torch.randn(shape, device=DEVICE) / shape[-1] ** 0.25
    return found.bfloat16().requires_grad_(grad)


def targets(s: Sizes) -> torch.Tensor:
    found = torch.randint(s.vocab, (s.tokens,), device=DEVICE)
    found[::7] = -100
    return found


def angles(s: Sizes) -> Tensors:
    found = torch.rand(s.tokens, s.dim // s.heads // 2, device=DEVICE) * 6
    return [found.cos().bfloat16(), found.sin().bfloat16()]


def heads(s: Sizes) -> Tensors:
    q = randn(s.tokens, s.heads, s.dim // s.heads)
    return [q, randn(s.tokens, s.heads // 4, s.dim // s.heads), *angles(s)]


def gate_halves(x: torch.Tensor, function: Call = functional.silu) -> torch.Tensor:
    gate, value = x.chunk(2, -1)
    return function(gate) * value


def rms(norm: Call) -> Call:
    return lambda x, w: norm(x, w.shape, w, 1e-5)


def linear_loss(h: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(h, w).float(), t)


def norms(s: Sizes) -> Tensors:
    return [randn(s.tokens, s.dim), randn(s.dim), randn(s.dim)]


def chunk(s: Sizes) -> Tensors:
    return [randn(s.tokens, 3 * s.dim)[:, : s.dim], randn(s.dim)]


CASES = {
    "rms_norm": Case(rms(ops.rms_norm), rms(functional.rms_norm), lambda s: norms(s)[:2]),
    "rms_norm of a chunk": Case(rms(ops.rms_norm), rms(functional.rms_norm), chunk),
    "layer_norm": Case(
        lambda x, w, b: ops.layer_norm(x, w.shape, w, b),
        lambda x, w, b: functional.layer_norm(x, w.shape, w, b),
        norms,
    ),
    "add_rms_norm": Case(
        ops.add_rms_norm,
        lambda x, r, w: OPERATORS["add_rms_norm"].reference(x, r, w, 1e-5),
        lambda s: [randn(s.tokens, s.dim), *norms(s)[:2]],
    ),
    "softmax": Case(ops.softmax, partial(torch.softmax, dim=-1), lambda s: norms(s)[:1]),
    "swiglu": Case(ops.swiglu, gate_halves, lambda s: [randn(s.tokens, 2 * s.inner)]),
    "geglu": Case(
        partial(ops.activation, function="geglu"),
        partial(gate_halves, function=functional.gelu),
        lambda s: [randn(s.tokens, 2 * s.inner)],
    ),
    "gelu": Case(
        partial(ops.activation, function="gelu"),
        functional.gelu,
        lambda s: [randn(s.tokens, s.inner)],
    ),
    "linear swiglu": Case(
        partial(ops.linear, activation="swiglu"),
        lambda x, w: gate_halves(functional.linear(x, w)),
        lambda s: [randn(s.tokens, s.dim), randn(2 * s.inner, s.dim)],
    ),
    "linear bias gelu": Case(
        partial(ops.linear, activation="gelu"),
        lambda x, w, b: functional.gelu(functional.linear(x, w, b)),
        lambda s: [randn(s.tokens, s.dim), randn(s.inner, s.dim), randn(s.inner)],
    ),
    "rotary": Case(ops.rotary, lambda *g: OPERATORS["rotary"].reference(*g, False), heads),
    "embedding": Case(
        ops.embedding,
        functional.embedding,
        lambda s: [targets(s).clamp(min=0), randn(s.vocab, s.dim)],
    ),
    "group_norm": Case(
        lambda x, w, b: ops.group_norm(x, 32, w, b),
        lambda x, w, b: functional.group_norm(x, 32, w, b),
        lambda s: [randn(8, 320, s.tokens // 8, 8), randn(320), randn(320)],
    ),
    "cross_entropy": Case(
        ops.cross_entropy,
        functional.cross_entropy,
        lambda s: [randn(s.tokens, s.vocab), targets(s)],
    ),
    "linear cross_entropy": Case(
        ops.fused_linear_cross_entropy,
        linear_loss,
        lambda s: [randn(s.tokens, s.dim), randn(s.vocab, s.dim), targets(s)],
    ),
}


def steps(call: Call, given: Sequence[torch.Tensor]) -> tuple[Call, Call]:
    """A forward pass, and one with the backward pass."""
    needed = [each for each in given if each.requires_grad]

    def forward() -> list[torch.Tensor]:
        found = call(*given)
        return [found] if isinstance(found, torch.Tensor) else list(found)

    pulls = [torch.ones_like(each) for each in forward()]

    def both() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(forward(), needed, pulls)

    return forward, both


def on_device(calls: dict[str, Call], passes: int) -> dict[str, Any]:
    """Microseconds of the device, and the ratio over `ops` with its interval."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    peaks = {}
    for name, call in calls.items():
        for _ in range(2):
            call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            call()
            peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    for at in range(passes):
        for name in list(calls) if at % 2 else list(calls)[::-1]:
            times[name].append(time_once(calls[name]))
    ratios = compare_to_ops(times)
    return {
        name: {"us": statistics.median(each), **ratios[name], "peak MiB": peaks.get(name)}
        for name, each in times.items()
    }


def time_once(call: Call) -> float:
    if DEVICE == "cpu":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e6
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000)  # the host is ahead of the device
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def on_host(call: Call, calls: int) -> float:
    """Microseconds of the host for one call."""
    for _ in range(3):
        call()
    times = []
    for _ in range(9):
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - began) / calls * 1e6)
    return statistics.median(times)


def judge(case: Case, sizes: Sizes, passes: int, compiled: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    given = [each.detach().requires_grad_(each.requires_grad) for each in case.make(sizes)]
    functions = {"ops": case.ours, "eager": case.torchs}
    if compiled:
        torch.compiler.reset()
        functions["compile"] = torch.compile(case.torchs)
        functions["ops compiled"] = torch.compile(case.ours)
    calls = {name: steps(function, given)[1] for name, function in functions.items()}
    exact = calls["eager"]()
    errors = {
        name: max(
            float((one.double() - other.double()).norm() / (other.double().norm() + 1e-30))
            for one, other in zip(call(), exact, strict=True)
        )
        for name, call in calls.items()
    }
    result = {"gradients from eager": errors, "device": on_device(calls, passes)}
    small = [each.detach().requires_grad_(each.requires_grad) for each in case.make(LITTLE)]
    host = {name: steps(functions[name], small) for name in ("ops", "eager")}
    result["host us of a small call"] = {
        name: {"forward": on_host(one, 20), "both": on_host(both, 20)}
        for name, (one, both) in host.items()
    }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {"toolchain": facts(), "cases": {}}
    for name in options.only:
        sizes = LITTLE if options.small else LARGE
        found = judge(CASES[name], sizes, options.passes, compiled=not options.small)
        result["cases"][name] = found
        (options.out / "training_operators.json").write_text(json.dumps(result, indent=1) + "\n")
        device = "  ".join(f"{key} {each['us']:.0f}" for key, each in found["device"].items())
        host = "  ".join(
            f"{key} {each['forward']:.0f}/{each['both']:.0f}"
            for key, each in found["host us of a small call"].items()
        )
        print(f"{name:22} us: {device}   host: {host}", flush=True)


if __name__ == "__main__":
    main()
