"""Cases of `tuner/ops/attention.py`."""

from __future__ import annotations

from functools import partial

import torch
from edge_samples import EDGES, Sample, Sampler
from torch.nn import functional

from operator_cases.case import Case, KernelCase, draw
from tuner import ops
from tuner.ops.operator import OPERATORS

torchs_attention = functional.scaled_dot_product_attention


def _attention(s: Sampler) -> Sample:
    dtype, causal = s.dtype(product=True), s.pick(True, False)
    batch, heads, queries, dim = s.size(), s.pick(2, 4), s.size(), s.pick(8, 16, 64)
    kv_heads, keys = s.pick(heads, heads // 2), queries if causal else s.size()
    q = s.tensor(batch, heads, queries, dim, dtype=dtype)
    k, v = (s.tensor(batch, kv_heads, keys, dim, dtype=dtype) for _ in "kv")
    more = {"is_causal": causal, "enable_gqa": s.pick(True, kv_heads != heads)}
    return Sample(
        lambda *g: ops.attention(*g, **more), lambda *g: torchs_attention(*g, **more), [q, k, v]
    )


def _rotary(s: Sampler) -> Sample:
    dtype, tokens, dim, interleaved = s.dtype(), s.size(), s.pick(2, 16, 64), s.pick(True, False)
    q, k = (s.tensor(tokens, s.pick(1, 2), dim, dtype=dtype, edges=EDGES) for _ in "qk")
    angles = [s.tensor(tokens, dim // 2, dtype=dtype) for _ in "cs"]
    reference = OPERATORS["rotary"].reference
    return Sample(
        lambda *g: ops.rotary(*g, interleaved=interleaved),
        lambda *g: reference(*g, interleaved),
        [q, k, *angles],
    )


def _varlen(s: Sampler) -> Sample:
    dtype, tokens = s.dtype(product=True), s.pick(1, 8, 17)
    q, k, v = (s.tensor(tokens, heads, 64, dtype=dtype) for heads in (4, 2, 2))
    bounds = torch.tensor([0, s.random.randrange(tokens + 1), tokens], dtype=torch.int32)
    reference, causal = OPERATORS["varlen_attention"].reference, s.pick(True, False)
    return Sample(
        lambda *g: ops.varlen_attention(*g, bounds, causal=causal),
        lambda *g: reference(*g, bounds, causal, 0), [q, k, v],
    )  # fmt: skip


def _paged(s: Sampler) -> Sample:
    dtype = s.dtype(product=True)
    q = s.tensor(2, 4, 64, dtype=dtype)
    k, v = (torch.randn(7, 16, 2, 64, generator=s.source).to(q.dtype) for _ in "kv")
    table = torch.tensor([[3, 0, 4], [1, 5, 2]], dtype=torch.int32)
    lengths = torch.tensor([s.pick(1, 5, 12), s.pick(1, 4, 9)], dtype=torch.int32)
    reference = OPERATORS["paged_attention"].reference
    return Sample(
        lambda *g: ops.paged_attention(*g, table, lengths),
        lambda *g: reference(*g, table, lengths), [q, k, v],
    )  # fmt: skip


def paged(dtype=torch.float32):
    """Two sequences of 5 and 9 keys in pages of 4, and a page that neither has, of no numbers."""
    k, v = draw(7, 4, 2, 8, dtype=dtype), draw(7, 4, 2, 8, dtype=dtype)
    k[6] = v[6] = float("nan")
    table = torch.tensor([[3, 0, 99], [1, 5, 2]], dtype=torch.int32)
    k[0, 1:], v[2, 1:] = float("nan"), float("nan")
    return draw(2, 4, 8, dtype=dtype), k, v, table, torch.tensor([5, 9], dtype=torch.int32)


def _rotary_arguments():
    angles = draw(4, 4)
    return draw(4, 2, 8), draw(4, 1, 8), angles.cos(), angles.sin(), False


def _varlen_arguments():
    packed = draw(4, 4, 8), draw(4, 2, 8), draw(4, 2, 8)
    return *packed, torch.tensor([0, 2, 4], dtype=torch.int32), True, 2


def _call_attention(workload, t):
    return lambda: ops.attention(t["q"], t["k"], t["v"], is_causal=bool(workload["causal"]))


def _call_grouped(workload, t):
    causal = bool(workload["causal"])
    if workload["window"] or (causal and workload["queries"] != workload["keys"]):
        return None
    return lambda: ops.attention(t["q"], t["k"], t["v"], is_causal=causal, enable_gqa=True)


def _call_rotary(workload, t):
    given, interleaved = [t[name] for name in ("q", "k", "cos", "sin")], workload["interleaved"]
    return lambda: ops.rotary(*given, interleaved=bool(interleaved))


def _call_varlen(workload, t):
    given = [t[name] for name in ("q", "k", "v", "cu_seqlens")]
    causal, window = bool(workload["causal"]), int(str(workload["window"]))
    return lambda: ops.varlen_attention(*given, causal=causal, window=window)


def _call_paged(_, t):
    given = [t[name] for name in ("q", "k_cache", "v_cache", "block_table", "lengths")]
    return lambda: ops.paged_attention(*given)


CASES = {
    "attention": Case(
        edges=_attention,
        counterparts={
            "attention": (ops.attention, torchs_attention, ((2, 3, 5, 8),) * 3),
            "causal attention of groups": (
                partial(ops.attention, is_causal=True, enable_gqa=True),
                partial(torchs_attention, is_causal=True, enable_gqa=True),
                ((2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
            ),
            "attention with a scale": (
                partial(ops.attention, scale=0.3),
                partial(torchs_attention, scale=0.3),
                ((2, 3, 5, 8),) * 3,
            ),
        },
        graphs={"attention": lambda x: ops.attention(*[x[None, None]] * 3, is_causal=True)},
        arguments={"attention": lambda: (*[draw(1, 2, 4, 8)] * 3, True)},
        kernels={
            "attention": KernelCase(_call_attention, interpreted=False),
            "grouped_attention": KernelCase(_call_grouped, interpreted=False),
        },
        signature="query key value attn_mask dropout_p is_causal scale enable_gqa",
    ),
    "rotary": Case(
        edges=_rotary,
        graphs={
            "rotary": lambda x: ops.rotary(*[x.view(-1, 2, 16)] * 2, x[:, :8], x[:, 8:16]),
        },
        arguments={"rotary": _rotary_arguments},
        kernels={"rotary": KernelCase(_call_rotary)},
    ),
    "varlen_attention": Case(
        edges=_varlen,
        graphs={
            "varlen_attention": lambda x: ops.varlen_attention(
                *[x.view(-1, 2, 16)] * 3, torch.tensor([0, 5], dtype=torch.int32), causal=True
            )
        },
        arguments={"varlen_attention": _varlen_arguments},
        kernels={"varlen_attention": KernelCase(_call_varlen, defaults=True, multiplies=True)},
    ),
    "paged_attention": Case(
        edges=_paged,
        arguments={"paged_attention": paged},
        kernels={"paged_decode": KernelCase(_call_paged, defaults=True, multiplies=True)},
    ),
}
