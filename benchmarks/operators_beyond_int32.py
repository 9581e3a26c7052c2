"""Operators on tensors of 2**31 elements and a few less and more, against torch, on a GPU.

    python benchmarks/operators_beyond_int32.py --out results/h200 [--only NAME ...]

Every call runs its kernel with the default config. Rows at the beginning, at the end and around the
element 2**31 are compared with torch on these rows alone: an offset that wraps in 32 bits reads or
writes elsewhere. Writes OUT/operators_beyond_int32.json; fails where a call raises or differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/ops")]

import torch  # noqa: E402
import triton  # noqa: E402
from edge_samples import run_kernels  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tuner import ops  # noqa: E402
from tuner.ops.operator import OPERATORS  # noqa: E402

LIMIT = 2**31
HALF = torch.bfloat16


def draw(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    """Random numbers: a block of them, repeated, which takes no further memory."""
    count = 1
    for size in shape:
        count *= size
    block = torch.randn(min(count, 2**22 + 1), device="cuda", dtype=dtype)
    found = torch.empty(count, device="cuda", dtype=dtype)
    for first in range(0, count, len(block)):
        part = found[first : first + len(block)]
        part.copy_(block[: len(part)])
    return found.view(shape)


def places(rows: int, width: int) -> torch.Tensor:
    """The first and the last rows, and those around the element 2**31."""
    middle = LIMIT // width
    near = {0, 1, rows // 2, middle - 1, middle, middle + 1, rows - 2, rows - 1}
    return torch.tensor(sorted(at for at in near if 0 <= at < rows), device="cuda")


def rows_case(
    ours: Callable[[torch.Tensor], Any],
    torchs: Callable[[torch.Tensor], Any],
    width: int,
    rows: int,
) -> float:
    """The largest difference on some rows of an operator over rows."""
    x = draw(rows, width)
    at = places(rows, width)
    return differ(ours(x), torchs(x[at]), at)


def differ(found: Any, wanted: Any, at: torch.Tensor | None = None) -> float:
    found, wanted = (one if isinstance(one, tuple) else (one,) for one in (found, wanted))
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        rows = one if at is None else one[at]
        off = (rows.double() - other.double()).abs() / (1 + other.double().abs())
        worst = max(worst, float(off.max()))
    return worst


def cases() -> Iterator[tuple[str, Callable[[], float]]]:
    for extra in (-8, 0, 8):
        n = LIMIT + extra
        yield f"activation {n}", lambda n=n: whole(lambda x: ops.activation(x, "silu"), F.silu, n)
    for rows, width in ((2**20 + 3, 2048), (2**16 + 1, 32768)):
        w = draw(width)
        more: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
            "softmax": (ops.softmax, lambda x: torch.softmax(x, -1)),
            "log_softmax": (ops.log_softmax, lambda x: torch.log_softmax(x, -1)),
            "rms_norm": (
                lambda x, w=w: ops.rms_norm(x, (len(w),), w, 1e-5),
                lambda x, w=w: F.rms_norm(x, (len(w),), w, 1e-5),
            ),
            "layer_norm": (
                lambda x, w=w: ops.layer_norm(x, (len(w),), w, w),
                lambda x, w=w: F.layer_norm(x, (len(w),), w, w),
            ),
            "swiglu": (ops.swiglu, lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]),
        }
        for name, (ours, torchs) in more.items():
            yield (
                f"{name} {rows} x {width}",
                lambda o=ours, t=torchs, r=rows, c=width: rows_case(o, t, c, r),
            )
    yield "cross_entropy 16400 x 131072", lambda: cross_entropy(16400, 131072)
    yield (
        "topk_routing 2**24 + 3 x 128",
        lambda: rows_case(
            lambda x: ops.topk_routing(x, 4)[0],
            lambda x: torch.softmax(x.float(), -1).topk(4, -1).values,
            128,
            2**24 + 3,
        ),
    )
    yield "quantize rows 2**20 + 3 x 2048", lambda: rows_case(quantized, quantized_by_torch, 2048,
                                                              2**20 + 3)  # fmt: skip
    for extra in (-8, 8):
        n = LIMIT + extra
        yield f"quantize one scale {n}", lambda n=n: one_scale(n)
    yield "matmul N 2**24 + 8", lambda: product(16, 2**24 + 8, 384)
    yield "matmul M 2**24 + 8", lambda: product(2**24 + 8, 136, 136)
    yield "linear N 2**24 + 8", lambda: linear(16, 2**24 + 8, 136)
    yield "embedding 2**20 + 3 x 2048", embedding
    yield "rotary 2**18 + 3 tokens", rotary
    yield "attention 2**31 elements", attention
    yield "group_norm 2**31 elements", group_norm
    yield "nearest_center 2**24 + 3 x 129", nearest_center


def whole(ours: Any, torchs: Any, n: int) -> float:
    x = draw(n // 8, 8)
    found = ours(x).view(-1)
    x = x.view(-1)
    worst = 0.0
    for part in (slice(0, 64), slice(LIMIT - 70, n), slice(n // 2, n // 2 + 64), slice(n - 64, n)):
        worst = max(worst, differ(found[part], torchs(x[part])))
    return worst


def quantized(x: torch.Tensor) -> torch.Tensor:
    codes, scales = ops.quantize(x, torch.int8, "row")
    at = places(*x.shape) if x.numel() > LIMIT else slice(None)
    found = torch.zeros(len(x), 1, device="cuda", dtype=torch.float64)
    # One number a row stands for its codes, so that all of them fit.
    found[at] = (codes[at].double() * scales[at].double().view(-1, 1)).abs().sum(-1, keepdim=True)
    return found / x.shape[1]


def quantized_by_torch(x: torch.Tensor) -> torch.Tensor:
    scales = x.double().abs().amax(-1, keepdim=True) / 127
    return ((x.double() / scales).round() * scales).abs().mean(-1, keepdim=True)


def one_scale(n: int) -> float:
    x = draw(n // 8, 8)
    codes, scale = ops.quantize(x, torch.int8, "tensor")
    part = torch.cat([codes[:8], codes[-8:]]).double() * scale.double()
    return max(0.0, differ(part, torch.cat([x[:8], x[-8:]]).double()) - float(scale))


def product(m: int, n: int, k: int) -> float:
    a, b = draw(m, k), draw(k, n)
    found = ops.matmul(a, b)
    worst = 0.0
    for cols in (slice(0, 64), slice(n - 64, n), slice(n // 2, n // 2 + 64)):
        for rows in (slice(0, 16), slice(m - 16, m)):
            worst = max(worst, differ(found[rows, cols], a[rows].float() @ b[:, cols].float()))
    return worst


def linear(m: int, n: int, k: int) -> float:
    x, w = draw(m, k), draw(n, k)
    found = ops.linear(x, w, None, "gelu")
    at = places(n, k)
    return differ(found[:, at], F.gelu(x.float() @ w[at].float().t()))


def cross_entropy(rows: int, cols: int) -> float:
    x = draw(rows, cols)
    target = torch.randint(cols, (rows,), device="cuda")
    at = places(rows, cols)
    found = ops.cross_entropy(x, target, reduction="none")
    return differ(found[at], F.cross_entropy(x[at].float(), target[at], reduction="none"))


def embedding() -> float:
    w = draw(2**20 + 3, 2048)
    at = places(*w.shape)
    return differ(ops.embedding(at, w), w[at])


def rotary() -> float:
    tokens, heads, dim = 2**18 + 3, 64, 128
    q, k, angles = draw(tokens, heads, dim), draw(tokens, 1, dim), draw(tokens, dim // 2).float()
    at = places(tokens, heads * dim)
    found, _ = ops.rotary(q, k, angles.cos(), angles.sin())
    few, _ = ops.rotary(q[at], k[at], angles[at].cos(), angles[at].sin())
    plain = q[at].float()
    left, right = plain.chunk(2, -1)
    cos, sin = angles[at].cos()[:, None], angles[at].sin()[:, None]
    wanted = torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
    return max(differ(found, few, at), differ(found, wanted, at))


def attention() -> float:
    q = draw(33, 32, 16384, 128)
    found = ops.attention(q, q, q, is_causal=True)
    worst = 0.0
    for batch in (0, 31, 32):
        one = q[batch : batch + 1]
        wanted = F.scaled_dot_product_attention(one, one, one, is_causal=True)
        worst = max(worst, differ(found[batch : batch + 1], wanted))
    return worst


def group_norm() -> float:
    x = draw(33, 64, 1024, 1024)
    w = draw(64)
    found = ops.group_norm(x, 8, w, w)
    worst = 0.0
    for batch in (0, 31, 32):
        wanted = F.group_norm(x[batch : batch + 1], 8, w, w)
        worst = max(worst, differ(found[batch : batch + 1], wanted))
    return worst


def nearest_center() -> float:
    x, centers = draw(2**24 + 3, 129), draw(64, 129)
    at = places(*x.shape)
    ids, _ = ops.nearest_center(x, centers)
    wanted = torch.cdist(x[at].float(), centers.float()).argmin(-1)
    return float((ids[at] != wanted).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    run_kernels()
    found: dict[str, Any] = {}
    with torch.no_grad():
        for name, call in cases():
            if options.only and name.split()[0] not in options.only:
                continue
            torch.manual_seed(0)
            for each in OPERATORS.values():
                each.forget()
            try:
                off = call()
                ran = sorted(f"{use.implementation}: {use.reason}" for use in ops.report())
                found[name] = {"difference": round(off, 5), "ran": ran, "right": off < 0.03}
            except Exception as error:
                found[name] = {"right": False, "error": f"{type(error).__name__}: {error}"[:300]}
            print(name, found[name], flush=True)
            torch.cuda.empty_cache()
    document = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cases": found,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "operators_beyond_int32.json").write_text(json.dumps(document, indent=1) + "\n")
    return int(not all(one["right"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
