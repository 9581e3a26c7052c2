"""Random calls of operators at the edges of dtypes and shapes, each beside torch's function.

A sample holds the operator, torch's function of the same tensors, and the tensors. `difference`
runs both and says in which of error, shape, dtype, places of NaN and infinities, values and
gradients they differ. All follows from the state of one `random.Random`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from operator_calls import results_of
from torch.nn import functional

from search_spaces import registry
from search_spaces.errors import TunerError
from tuner import ops
from tuner.ops import operator
from tuner.ops.choosing import EAGER, TUNED, Choice
from tuner.ops.operator import OPERATORS
from workers.device import offline

#: Relative error of a result, and of the largest of its tensor.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 5e-4, torch.float16: 6e-3, torch.bfloat16: 4e-2}
_ANY = ("plain", "equal", "zeros", "tiny", "inf", "-inf", "nan", "masked row")
#: Sums of products and squares overflow in another order than torch's.
_EDGES, _LARGE = _ANY, (*_ANY, "largest", "smallest")
_SIZES = (1, 2, 3, 5, 8, 17, 33)


@dataclass(frozen=True)
class Sample:
    """One call. Not all results have one right answer: the first `results` are compared."""

    ours: Callable[..., Any]
    torchs: Callable[..., Any]
    tensors: Sequence[torch.Tensor]
    results: int | None = None
    gradients: bool = True


class Sampler:
    """Draws tensors. halves: whether kernels are interpreted, whose products of bfloat16 are
    wrong."""

    def __init__(self, seed: int, interpreted: bool = False) -> None:
        self.random, self.interpreted = random.Random(seed), interpreted
        self.source = torch.Generator().manual_seed(seed)

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def size(self) -> int:
        return int(self.pick(*_SIZES, *([0] if self.random.random() < 0.2 else [])))

    def dtype(self, product: bool = False) -> torch.dtype:
        halves = (
            [torch.float16] if product and self.interpreted else [torch.float16, torch.bfloat16]
        )
        return self.pick(torch.float32, torch.float32, torch.float64, *halves)  # type: ignore[no-any-return]

    def tensor(
        self, *shape: int, dtype: torch.dtype, edges: Sequence[str] = ("plain",)
    ) -> torch.Tensor:
        """Of normal numbers with an edge, and now and then strided or of another dtype."""
        x = torch.randn(shape, generator=self.source, dtype=torch.float64).to(dtype)
        self._spoil(x, self.pick(*edges))
        if x.ndim > 1 and self.random.random() < 0.15:
            x = x.mT.contiguous().mT
        if self.random.random() < 0.04:
            x = x.to(self.pick(torch.float32, torch.float16))
        return x

    def _spoil(self, x: torch.Tensor, edge: str) -> None:
        limits = torch.finfo(x.dtype)
        values = {
            "inf": float("inf"), "-inf": float("-inf"), "nan": float("nan"),
            "largest": limits.max, "smallest": limits.min, "tiny": limits.smallest_normal / 4,
        }  # fmt: skip
        if edge in ("equal", "zeros"):
            x.fill_(0.0 if edge == "zeros" else 1.5)
        elif edge == "masked row" and x.numel() and x.ndim > 1:
            x[self.random.randrange(x.shape[0])] = float("-inf")
        elif edge in values and x.numel():
            some = torch.rand(x.shape, generator=self.source) < self.pick(0.05, 0.5, 1.0)
            x.masked_fill_(some, values[edge])

    def ids(self, *shape: int, below: int) -> torch.Tensor:
        """Places 0 .. below - 1, now and then one out of range."""
        found = torch.randint(max(below, 1), shape, generator=self.source)
        if found.numel() and self.random.random() < 0.05:
            found.view(-1)[0] = below
        return found


# -- samples of each operator ----------------------------------------------------------------------
def _rows(s: Sampler, name: str) -> Sample:
    x = s.tensor(s.size(), s.size(), dtype=s.dtype(), edges=_LARGE)
    ours, torchs = getattr(ops, name), getattr(torch, name)
    return Sample(lambda x: ours(x, -1), lambda x: torchs(x, -1), [x])


def _norms(s: Sampler, name: str) -> Sample:
    # Two elements are normed to -1 and 1, and their gradient is what rounding leaves.
    dtype, cols = s.dtype(), s.pick(0, 1, 3, 5, 8, 17, 33)
    rows = s.size()
    x, y = (s.tensor(each, cols, dtype=dtype, edges=_EDGES) for each in (rows, s.pick(rows, 1)))
    w, b = (s.tensor(cols, dtype=dtype) for _ in "wb")
    if name == "layer_norm":
        return Sample(
            lambda *g: ops.layer_norm(g[0], (cols,), *g[1:]),
            lambda *g: functional.layer_norm(g[0], (cols,), *g[1:]),
            [x, w, b],
        )
    if name == "rms_norm":
        return Sample(
            lambda x, w: ops.rms_norm(x, (cols,), w, 1e-5),
            lambda x, w: functional.rms_norm(x, (cols,), w, 1e-5),
            [x, w],
        )
    return Sample(
        ops.add_rms_norm,
        lambda x, y, w: (functional.rms_norm(x + y, (cols,), w, 1e-5), x + y),
        [x, y, w],
    )


def _group_norm(s: Sampler) -> Sample:
    dtype, groups = s.dtype(), s.pick(1, 2, 3)
    channels = groups * s.pick(1, 2, 4)
    x = s.tensor(s.size(), channels, s.size(), dtype=dtype, edges=_EDGES)
    given = [x, *(s.tensor(channels, dtype=dtype) for _ in "wb")]
    return Sample(
        lambda x, w, b: ops.group_norm(x, groups, w, b),
        lambda x, w, b: functional.group_norm(x, groups, w, b),
        given,
    )


def _products(s: Sampler, name: str) -> Sample:
    dtype, depth, cols = s.dtype(product=True), s.size(), s.size()
    x = s.tensor(s.size(), depth, dtype=dtype, edges=_EDGES)
    if name == "matmul":
        return Sample(ops.matmul, torch.matmul, [x, s.tensor(depth, cols, dtype=dtype)])
    activation = s.pick("none", "gelu", "silu", "swiglu")
    if s.interpreted and activation != "none":  # torch's -inf * 0 is a limit in the kernel
        x = x.nan_to_num(0.0, 1.0, -1.0)
    reference = OPERATORS["linear"].reference
    given = [x, s.tensor(2 * cols, depth, dtype=dtype), s.tensor(2 * cols, dtype=dtype)]
    return Sample(
        lambda *g: ops.linear(*g, activation), lambda *g: reference(*g, activation), given
    )


def _activations(s: Sampler) -> Sample:
    function = s.pick("gelu", "gelu_tanh", "silu", "relu", "sigmoid", "tanh", "swiglu", "geglu")
    x = s.tensor(s.size(), 2 * s.size(), dtype=s.dtype(), edges=_LARGE)
    reference = OPERATORS["activation"].reference
    return Sample(lambda x: ops.activation(x, function), lambda x: reference(x, function), [x])


def _losses(s: Sampler, name: str) -> Sample:
    rows, ignored = s.size(), s.pick(-100, 0)
    classes = s.size() if name == "cross_entropy" else s.pick(0, 1, 65, 100)
    target = s.ids(rows if s.random.random() < 0.95 else 1, below=classes)
    if target.numel():
        target[0] = ignored
    more = {"reduction": s.pick("mean", "sum", "none"), "ignore_index": ignored}
    if name == "cross_entropy":
        x = s.tensor(rows, classes, dtype=s.dtype(), edges=_EDGES)
        return Sample(
            lambda x: ops.cross_entropy(x, target, **more),
            lambda x: functional.cross_entropy(x, target, **more),
            [x],
        )
    dtype, dim = s.dtype(product=True), s.pick(1, 9, 40)
    dtype = torch.float32 if dtype is torch.float64 else dtype  # in which its losses are anyway
    given = [s.tensor(each, dim, dtype=dtype) for each in (rows, classes)]

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional.linear(x, w).float(), target, **more)

    return Sample(lambda x, w: ops.fused_linear_cross_entropy(x, w, target, **more), plain, given)


def _attention(s: Sampler) -> Sample:
    dtype, causal = s.dtype(product=True), s.pick(True, False)
    batch, heads, queries, dim = s.size(), s.pick(2, 4), s.size(), s.pick(8, 16, 64)
    kv_heads, keys = s.pick(heads, heads // 2), queries if causal else s.size()
    q = s.tensor(batch, heads, queries, dim, dtype=dtype)
    k, v = (s.tensor(batch, kv_heads, keys, dim, dtype=dtype) for _ in "kv")
    more = {"is_causal": causal, "enable_gqa": s.pick(True, kv_heads != heads)}
    return Sample(
        lambda *g: ops.attention(*g, **more),
        lambda *g: functional.scaled_dot_product_attention(*g, **more),
        [q, k, v],
    )


def _rotary(s: Sampler) -> Sample:
    dtype, tokens, dim, interleaved = s.dtype(), s.size(), s.pick(2, 16, 64), s.pick(True, False)
    q, k = (s.tensor(tokens, s.pick(1, 2), dim, dtype=dtype, edges=_EDGES) for _ in "qk")
    angles = [s.tensor(tokens, dim // 2, dtype=dtype) for _ in "cs"]
    reference = OPERATORS["rotary"].reference
    return Sample(
        lambda *g: ops.rotary(*g, interleaved=interleaved),
        lambda *g: reference(*g, interleaved),
        [q, k, *angles],
    )


def _quantize(s: Sampler) -> Sample:
    scales = s.pick("row", "block128", "tensor")
    # A rounding to float8 that reaches the next power of two gives half of it in the interpreter.
    to = "int8" if s.interpreted else s.pick("float8_e4m3fn", "int8")
    x = s.tensor(s.size(), s.pick(0, 1, 17, 128, 300), dtype=s.dtype(), edges=_EDGES)
    reference = OPERATORS["quantize"].reference
    if "nan" in f"{x}" or "inf" in f"{x}":  # codes of what is no number have no right value
        return Sample(
            lambda x: ops.quantize(x, getattr(torch, to), scales)[1],
            lambda x: reference(x, scales, to)[1], [x], gradients=False,
        )  # fmt: skip

    def values(codes: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return codes.bfloat16(), scale  # a code may be rounded to its neighbour

    return Sample(
        lambda x: values(*ops.quantize(x, getattr(torch, to), scales)),
        lambda x: values(*reference(x, scales, to)), [x], gradients=False,
    )  # fmt: skip


def _fp8_linear(s: Sampler) -> Sample:
    x, w = (s.tensor(s.size(), d, dtype=s.dtype()) for d in [s.size()] for _ in "xw")
    quantized, product = OPERATORS["quantize"].reference, OPERATORS["scaled_matmul"].reference

    def plain(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        a, of_rows = quantized(x, "row", "float8_e4m3fn")
        return product(a, codes, of_rows, scale)

    if s.interpreted:  # exact codes: see `_quantize`
        x = x.sign()
    given = [x, *quantized(w, "row", "float8_e4m3fn")]
    return Sample(ops.fp8_linear, plain, given, gradients=False)


def _nearest(s: Sampler) -> Sample:
    dtype, dim = s.dtype(product=True), s.pick(1, 3, 16)
    given = [s.tensor(rows, dim, dtype=dtype) for rows in (s.size(), s.pick(1, 5, 33))]

    def plain(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x.double(), c.double()).min(1)[0].square().float()

    return Sample(lambda x, c: ops.nearest_center(x, c)[1], plain, given, gradients=False)


def _embedding(s: Sampler) -> Sample:
    weight = s.tensor(s.size(), s.size(), dtype=s.dtype(), edges=_LARGE)
    ids = s.ids(s.size(), s.pick(1, 3), below=weight.shape[0]).to(s.pick(torch.int64, torch.int32))
    return Sample(lambda w: ops.embedding(ids, w), lambda w: functional.embedding(ids, w), [weight])


def _routing(s: Sampler) -> Sample:
    logits = s.tensor(s.size(), s.pick(1, 3, 8, 17), dtype=s.dtype(), edges=_LARGE)
    k, renormalize = s.pick(1, 2, 8), s.pick(True, False)
    reference = OPERATORS["topk_routing"].reference
    return Sample(
        lambda x: ops.topk_routing(x, k, renormalize=renormalize),
        lambda x: reference(x, k, renormalize),
        [logits],
        results=1,
    )


def _convolution(s: Sampler) -> Sample:
    dtype, groups, last = s.dtype(product=True), s.pick(1, 2), torch.channels_last
    x = s.tensor(s.size(), 2 * groups, s.size(), s.size(), dtype=dtype)
    w = s.tensor(2 * groups, 2, s.pick(1, 3), s.pick(1, 3), dtype=dtype)
    more = {"stride": s.pick(1, 2), "padding": s.pick(0, 1, (0, 2)), "groups": groups}
    given = [each.contiguous(memory_format=last) for each in (x, w)]
    return Sample(
        lambda *g: ops.conv2d(*g, **more), lambda *g: functional.conv2d(*g, **more), given
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


def _experts(s: Sampler) -> Sample:
    tokens, dtype = s.size(), s.dtype(product=True)
    shapes = ((tokens, 16), (3, 32, 16), (3, 16, 16), (tokens, 2))
    x, up, down, w = (torch.randn(each, generator=s.source).to(dtype) for each in shapes)
    ids = torch.randint(3, (tokens, 2), generator=s.source).int()

    def plain(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, w: torch.Tensor) -> Any:
        gate, value = torch.einsum("tk,tsnk->tsn", x, up[ids.long()]).chunk(2, -1)
        out = torch.einsum("tsk,tsnk->tsn", functional.silu(gate) * value, down[ids.long()])
        return (out * w.to(out.dtype)[..., None]).sum(1)

    return Sample(lambda *g: ops.moe(*g, ids), plain, [x, up, down, w.float()])


SAMPLES: dict[str, Callable[[Sampler], Sample]] = {
    "softmax": lambda s: _rows(s, "softmax"),
    "log_softmax": lambda s: _rows(s, "log_softmax"),
    "rms_norm": lambda s: _norms(s, "rms_norm"),
    "layer_norm": lambda s: _norms(s, "layer_norm"),
    "add_rms_norm": lambda s: _norms(s, "add_rms_norm"),
    "group_norm": _group_norm,
    "matmul": lambda s: _products(s, "matmul"),
    "linear": lambda s: _products(s, "linear"),
    "activation": _activations,
    "cross_entropy": lambda s: _losses(s, "cross_entropy"),
    "fused_linear_cross_entropy": lambda s: _losses(s, "fused_linear_cross_entropy"),
    "attention": _attention,
    "rotary": _rotary,
    "quantize": _quantize,
    "fp8_linear": _fp8_linear,
    "nearest_center": _nearest,
    "embedding": _embedding,
    "topk_routing": _routing,
    "conv2d": _convolution,
    "varlen_attention": _varlen,
    "paged_attention": _paged,
    "moe": _experts,
}


# -- comparison ------------------------------------------------------------------------------------
def difference(sample: Sample) -> str:
    """Where the operator differs from torch's function; empty where they agree."""
    found, expected = (_run(each, sample) for each in (sample.ours, sample.torchs))
    bound = max(TOLERANCES.get(each.dtype, 0.0) for each in sample.tensors)
    if isinstance(found, Exception) or isinstance(expected, Exception):
        alike = type(found) is type(expected)
        return "" if alike else f"error {_say(found)} for {_say(expected)}"
    for kind, one, other in zip(("result", "gradient"), found, expected, strict=True):
        for ours, torchs in zip(one, other, strict=True):
            if why := _differ(ours, torchs, bound):
                return f"{kind}: {why}"
    return ""


def _say(found: Any) -> str:
    return f"{type(found).__name__}: {found}"[:90] if isinstance(found, Exception) else "a result"


def _run(function: Callable[..., Any], sample: Sample) -> Any:
    given = [
        each.detach().clone().requires_grad_(sample.gradients and each.is_floating_point())
        for each in sample.tensors
    ]
    try:
        with torch.no_grad():
            plain = results_of(function(*given))[: sample.results]
        if not sample.gradients:
            return plain, []
        out = [
            each for each in results_of(function(*given))[: sample.results] if each.requires_grad
        ]
        pulls = [torch.linspace(-1, 2, each.numel()).view(each.shape).to(each) for each in out]
        return plain, list(torch.autograd.grad(out, given, pulls, allow_unused=True))
    except Exception as error:
        return error


def _differ(ours: torch.Tensor | None, torchs: torch.Tensor | None, bound: float) -> str:
    if ours is None or torchs is None:
        return "" if ours is torchs else "one has no gradient"
    if ours.shape != torchs.shape or ours.dtype != torchs.dtype:
        return f"{tuple(ours.shape)} {ours.dtype} for {tuple(torchs.shape)} {torchs.dtype}"
    one, other = ours.double(), torchs.double()
    finite = other.isfinite()
    if not torch.equal(one.nan_to_num(7, 8, 9)[~finite], other.nan_to_num(7, 8, 9)[~finite]):
        return "NaN or infinities of torch elsewhere"
    if not bool(one[finite].isfinite().all()):
        return "NaN or infinities where torch has none"
    bound = max(bound, TOLERANCES.get(torchs.dtype, 0.0)) if torchs.is_floating_point() else 0.0
    largest = float(other[finite].abs().max()) if bool(finite.any()) else 0.0
    error = (one - other)[finite].abs() - bound * (other[finite].abs() + min(largest, 1e30) + 0.1)
    return "" if not bool((error > 0).any()) else f"values differ by {float(error.max()):.3g}"


def run_kernels() -> None:
    """Let every call that a kernel takes run it with its default config."""

    def choose(problem: Any, without: Any = ()) -> Choice:
        kernel = registry.load(problem.kernel)
        try:
            kernel.check_workload(problem.workload)
            config = kernel.default_config(problem.workload, offline("cuda:90"))
        except TunerError as error:
            return Choice(EAGER, error.message)
        return Choice(EAGER if without else TUNED, "default config", kernel, config)

    operator.choose = choose  # type: ignore[assignment]
