"""Kernels of four packages tuned over a range of sizes: the table against the library's choice.

For each case, the library's function is called at a few sizes and captured, and the kernel is tuned
over a range, or at the captured sizes where its contents allow no range. At random sizes the table
is applied: whether every launch is a hit, how far results differ, and the time of the whole
function with the library's choice over that with the table, in a loop of its own: as a CUDA graph
(interleaved.py), or, where it waits for the device, as calls in turn. The optimizer's table is
applied for further steps, whose scalars differ. Usage:

    python benchmarks/captured_ranges.py --out OUT [--only NAME ...] [--sizes 50] [--pairs 48]

Writes OUT/captured_ranges.json after each case. Packages may lie anywhere on Python's import path.
Without a GPU, kernels are captured and declared in Triton's interpreter, and nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from interleaved import capture_graph, judged, median_interval  # noqa: E402
from matmul_tasks import facts  # noqa: E402

import tuner  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
#: Makes the tensors of a size and returns the call and what restores tensors that it updates.
Make = Callable[[int], tuple[Callable[[], Any], Callable[[], None]]]


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel. sizes: at which it is captured. dim: the size that the range is over, as
    `declare` names it; empty where the captured calls are tuned as they are. span: sizes at which
    the table is judged. declare: further arguments of `declare`. steps: how many further calls of
    the last captured size are made under the table. waits: whether the function waits for the
    device, so that no graph can be captured of it."""

    kernel: str
    make: Make
    sizes: tuple[int, ...]
    dim: str
    span: tuple[int, int]
    declare: dict[str, Any]
    steps: int = 0
    waits: bool = False


def normal(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(sizes, dtype=dtype, device=DEVICE)


def nothing() -> None:
    """Restores nothing: the call updates none of its inputs."""


def liger_cross_entropy(rows: int) -> tuple[Callable[[], Any], Callable[[], None]]:
    from liger_kernel.ops.cross_entropy import cross_entropy_forward

    first = normal(rows, 32000 if GPU else 300)
    now, target = first.clone(), torch.randint(0, first.shape[1], (rows,), device=DEVICE)

    def call() -> Any:
        return cross_entropy_forward(now, target, None, -100, 0.0, 0.0, "mean", None, False)[0]

    return call, lambda: now.copy_(first)


def fla_l2norm(rows: int) -> tuple[Callable[[], Any], Callable[[], None]]:
    from fla.modules.norm.l2norm import l2norm_fwd

    x = normal(rows, 128)
    return lambda: l2norm_fwd(x), nothing


def sglang_moe(tokens: int) -> tuple[Callable[[], Any], Callable[[], None]]:
    import triton.language as tl
    from sglang.srt.layers.moe.fused_moe_triton.fused_moe_triton_kernels import (
        invoke_fused_moe_kernel,
    )

    top, experts, n, k, block = (8, 64, 1024, 2048, 64) if GPU else (2, 4, 32, 64, 16)
    a, b = normal(tokens, k), normal(experts, n, k)
    weights, chosen = torch.rand(tokens, experts, device=DEVICE).topk(top)
    ids, owners, padded = aligned_blocks(chosen, block, experts)
    out = torch.zeros(tokens, top, n, dtype=torch.bfloat16, device=DEVICE)
    config = {"BLOCK_SIZE_M": block, "BLOCK_SIZE_N": 64 if GPU else 32, "num_warps": 4,
              "BLOCK_SIZE_K": 64 if GPU else 32, "GROUP_SIZE_M": 8, "num_stages": 3}  # fmt: skip

    def call() -> Any:
        invoke_fused_moe_kernel(
            a, b, None, out, None, None, None, weights, chosen, ids, owners, padded, True, top,
            config, tl.bfloat16, False, False, False, False, False,
        )  # fmt: skip
        return out

    return call, nothing


def aligned_blocks(chosen: torch.Tensor, block: int, experts: int) -> tuple[torch.Tensor, ...]:
    """The rows of each expert, filled up to whole blocks, in buffers for the worst case as SGLang
    allocates them."""
    flat = chosen.flatten()
    counts = torch.bincount(flat, minlength=experts).tolist()
    order = torch.argsort(flat, stable=True).to(torch.int32)
    ids = torch.full((flat.numel() + experts * (block - 1),), flat.numel(), dtype=torch.int32)
    owners = torch.zeros(math.ceil(ids.numel() / block), dtype=torch.int32)
    at = taken = 0
    for expert, count in enumerate(counts):
        ids[at : at + count] = order[taken : taken + count].cpu()
        blocks = math.ceil(count / block)
        owners[at // block : at // block + blocks] = expert
        at, taken = at + blocks * block, taken + count
    padded = torch.tensor([at], dtype=torch.int32, device=DEVICE)
    return ids.to(DEVICE), owners.to(DEVICE), padded


_STEP = [10]
#: Calls after each change of what is applied: the first looks its config up, the next few run
#: slower than later ones, since what was applied has replaced them in the processor's caches.
_CALLS = 8


def bitsandbytes_adam(n: int) -> tuple[Callable[[], Any], Callable[[], None]]:
    from bitsandbytes.backends.triton.kernels_optim import optimizer_update_8bit_blockwise_impl

    blocks = math.ceil(n / 256)
    first = [
        normal(n),
        torch.randint(100, 156, (n,), dtype=torch.uint8, device=DEVICE),
        torch.randint(20, 200, (n,), dtype=torch.uint8, device=DEVICE),
        torch.rand(blocks, device=DEVICE) + 0.5,
        torch.rand(blocks, device=DEVICE) + 0.5,
    ]
    now, gradient = [each.clone() for each in first], normal(n)
    p, s1, s2, a1, a2 = now
    q1, q2 = (torch.linspace(low, 1, 256, device=DEVICE) for low in (-1, 0))

    def call() -> Any:
        optimizer_update_8bit_blockwise_impl(
            "adam", gradient, p, s1, s2, 0.9, 0.999, 0.0, 0.0, 1e-8, _STEP[0], 1e-3 / _STEP[0],
            q1, q2, a1, a2,
        )  # fmt: skip
        return p

    def restore() -> None:
        for one, other in zip(now, first, strict=True):
            one.copy_(other)

    return call, restore


CASES = {
    "liger_cross_entropy": Case(
        *("liger_cross_entropy_kernel", liger_cross_entropy, (64, 1000), "X_ptr[0]"),
        *((1, 8192), {"widen": True}, 0, True),
    ),
    # Above 65,536 rows, the library passes another value of the constant NB.
    "fla_l2norm": Case(
        *("l2norm_fwd_kernel", fla_l2norm, (640, 10000), "T", (1, 65536), {"widen": True})
    ),
    "sglang_moe": Case(
        *("fused_moe_kernel", sglang_moe, (8, 64, 517, 2048, 16384), "", (8, 16384)),
        {"space": {"BLOCK_SIZE_N": [64, 128, 256], "BLOCK_SIZE_K": [64, 128],
                   "GROUP_SIZE_M": [1, 8, 32], "num_warps": [4, 8], "num_stages": [2, 3, 4]}},
    ),
    "bitsandbytes_adam": Case(
        *("_optimizer_update_2state_8bit_blockwise_triton_kernel", bitsandbytes_adam),
        *((2560, 1 << 20), "n_elements", (256, 1 << 24), {"widen": True}, 100),
    ),
}  # fmt: skip


def capture(case: Case) -> Any:
    with tuner.capture() as calls:
        for size in case.sizes:
            call, restore = case.make(size if GPU else min(size, 300 + size % 977))
            for _ in range(2):
                restore()
                call()
    return calls[case.kernel]


def tune(case: Case, session: Any, folder: Path) -> dict[str, Any]:
    calls, began = capture(case), time.monotonic()
    ranges = {case.dim: case.span} if case.dim else None
    kernel = calls.declare(**case.declare, ranges=ranges)
    if session is None:
        return {"workloads": [dict(each.dims) for each in kernel.workloads()]}
    results = session.tune(kernel)
    for each in results if isinstance(results, list) else [results]:
        each.export(folder)
    return {"seconds": round(time.monotonic() - began, 1), "files": len([*folder.glob("*.json")])}


def judge(case: Case, folder: Path, sizes: int, pairs: int) -> dict[str, Any]:
    low, high = (math.log(each) for each in case.span)
    rng = random.Random(3)
    drawn = sorted({round(math.exp(rng.uniform(low, high))) for _ in range(2 * sizes)})
    rows = []
    for size in sorted(rng.sample(drawn, min(sizes, len(drawn)))):
        call, restore = case.make(size)
        restore()
        plain = tensors_of(call())
        with tuner.applied(folder) as used:
            restore()
            found = tensors_of(call())
            hits, misses = count(used, case)
        if case.waits:
            ratio = take_turns(call, restore, folder, pairs)
        else:
            own = capture_graph(call, restore)
            with tuner.applied(folder):
                table = capture_graph(call, restore)
            ratio = judged(own, table, restore, pairs)
        error = max(map(difference, plain, found))
        rows.append([size, hits, misses, error, ratio["speedup"], *ratio["interval"]])
    return rows_of(rows) | {"rows": rows}


def rows_of(rows: list[Any]) -> dict[str, Any]:
    hits, misses = (sum(row[at] for row in rows) for at in (1, 2))
    speedups = [row[4] for row in rows]
    return {
        "sizes": len(rows),
        "hit rate": hits / max(1, hits + misses),
        "largest difference": max(row[3] for row in rows),
        "geometric mean": math.exp(sum(map(math.log, speedups)) / len(speedups)),
        "surely slower": [row[0] for row in rows if row[6] < 0.995],
        "least": min(speedups),
    }


def count(used: Any, case: Case) -> tuple[int, int]:
    """Hits and misses of the case's kernel."""
    uses = [use for use in used.kernels if use.kernel.endswith(case.kernel)]
    return sum(use.hits for use in uses), sum(use.misses for use in uses)


def repeat(case: Case, folder: Path) -> dict[str, Any]:
    """Calls whose scalars change from step to step."""
    call, _ = case.make(case.sizes[-1])
    with tuner.applied(folder) as used:
        for step in range(case.steps):
            _STEP[0] = 11 + step
            call()
        hits, misses = count(used, case)
    _STEP[0] = 10
    return {"steps": case.steps, "hits": hits, "misses": misses}


def take_turns(call: Any, restore: Any, folder: Path, pairs: int) -> dict[str, Any]:
    """As `judged`: calls without and with the table, whose order changes from pair to pair."""
    times: tuple[list[float], list[float]] = ([], [])
    for at in range(pairs):
        for which in (0, 1) if at % 2 else (1, 0):
            with tuner.applied(folder) if which else nullcontext():
                for _ in range(_CALLS):  # only the last one is timed
                    restore()
                    torch.cuda.synchronize()
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record()
                    call()
                    end.record()
                    torch.cuda.synchronize()
                times[which].append(start.elapsed_time(end))
    ratios = [own / other for own, other in zip(*times, strict=True)]
    return {"speedup": statistics.median(ratios), "interval": median_interval(ratios)}


def tensors_of(found: Any) -> list[torch.Tensor]:
    parts = found if isinstance(found, tuple | list) else [found]
    return [each.detach().clone() for each in parts if isinstance(each, torch.Tensor)]


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    one, other = one.double(), other.double()
    return float((one - other).norm() / (one.norm() + 1e-30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--sizes", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=48)
    options = parser.parse_args()
    result: dict[str, Any] = {"toolchain": facts(), "cases": {}}
    session = tuner.session() if GPU else None
    for name in options.only:
        case, found = CASES[name], {}
        result["cases"][name] = found
        try:
            found |= tune(case, session, options.out / name)
            if GPU:
                found |= judge(case, options.out / name, options.sizes, options.pairs)
            if GPU and case.steps:
                found |= repeat(case, options.out / name)
        except Exception as error:
            traceback.print_exc()
            found["fault"] = f"{type(error).__name__}: {error}"[:1000]
        print(name, {k: v for k, v in found.items() if k != "rows"}, flush=True)
        text = json.dumps(result, indent=1, default=str)
        (options.out / "captured_ranges.json").write_text(text + "\n")
    if session is not None:
        session.close()


if __name__ == "__main__":
    main()
