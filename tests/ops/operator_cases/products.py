"""Cases of `tuner/ops/products.py`."""

from __future__ import annotations

from functools import partial

import torch
from edge_samples import EDGES, Sample, Sampler
from torch.nn import functional

from operator_cases.case import Case, KernelCase, draw
from operator_cases.elements import gated
from tuner import ops
from tuner.ops.operator import OPERATORS

_M = draw(48, 32)
_IMAGES = torch.ones(3, 4, 3, 3).to(memory_format=torch.channels_last)
_CONV = {"stride": 2, "padding": (1, 2), "groups": 2}


def _products(s: Sampler, name: str) -> Sample:
    dtype, depth, cols = s.dtype(product=True), s.size(), s.size()
    x = s.tensor(s.size(), depth, dtype=dtype, edges=EDGES)
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


def _convolution(s: Sampler) -> Sample:
    dtype, groups = s.dtype(product=True), s.pick(1, 2)
    x = s.tensor(s.size(), 2 * groups, s.size(), s.size(), dtype=dtype)
    w = s.tensor(2 * groups, 2, s.pick(1, 3), s.pick(1, 3), dtype=dtype)
    more = {"stride": s.pick(1, 2), "padding": s.pick(0, 1, (0, 2)), "groups": groups}
    return Sample(
        lambda *g: ops.conv2d(*g, **more),
        lambda *g: functional.conv2d(*g, **more),
        [_last(x), _last(w)],
    )


def _quantize(s: Sampler) -> Sample:
    scales = s.pick("row", "block128", "tensor")
    # A rounding to float8 that reaches the next power of two gives half of it in the interpreter.
    to = "int8" if s.interpreted else s.pick("float8_e4m3fn", "int8")
    x = s.tensor(s.size(), s.pick(0, 1, 17, 128, 300), dtype=s.dtype(), edges=EDGES)
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


def _last(x):
    return x.contiguous(memory_format=torch.channels_last)


def _scaled_arguments():
    rows, scale = draw(4, 6), torch.rand(4)
    return *ops.quantize(rows)[:1], *ops.quantize(draw(3, 6))[:1], scale, scale[:3]


def _call_linear(workload, t):
    if workload["epilogue"] not in ("none", "gelu", "silu", "swiglu"):
        return None
    return lambda: ops.linear(t["a"], t["w"], t.get("bias"), workload.text("epilogue"))


def _call_scaled(workload, t):
    if workload["scales"] != "row":
        return None
    given = [t[name] for name in ("a", "b", "a_scale", "b_scale")]
    return lambda: OPERATORS["scaled_matmul"](*given)


def _convolve(workload, x, weight):
    images, weights = x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    padding = workload.size("padding_h"), workload.size("padding_w")
    rest = (workload.size(name) for name in ("dilation", "groups"))
    found = ops.conv2d(images, weights, None, workload.size("stride"), padding, *rest)
    return found.permute(0, 2, 3, 1)


CASES = {
    "matmul": Case(
        edges=partial(_products, name="matmul"),
        counterparts={
            "matmul": (ops.matmul, torch.matmul, ((2, 3, 4), (4, 5))),
            "matmul of batches": (ops.matmul, torch.matmul, ((2, 3, 4), (2, 4, 5))),
            "matmul of a vector": (ops.matmul, torch.matmul, ((4,), (4, 5))),
        },
        graphs={"matmul": lambda x: ops.matmul(x, _M.T.contiguous())},
        arguments={"matmul": lambda: (draw(4, 6), draw(6, 3))},
        kernels={
            "matmul": KernelCase(lambda _, t: lambda: ops.matmul(t["a"], t["b"]), multiplies=True)
        },
        signature="input other",
    ),
    "linear": Case(
        edges=partial(_products, name="linear"),
        counterparts={
            "linear": (ops.linear, functional.linear, ((2, 3, 4), (5, 4), (5,))),
            "linear without bias": (ops.linear, functional.linear, ((2, 3, 4), (5, 4))),
            "linear with gelu": (
                partial(ops.linear, activation="gelu"),
                lambda x, w, b: functional.gelu(functional.linear(x, w, b)),
                ((3, 4), (5, 4), (5,)),
            ),
            "linear with swiglu": (
                partial(ops.linear, activation="swiglu"),
                lambda x, w: gated(functional.linear(x, w)),
                ((3, 4), (6, 4)),
            ),
        },
        graphs={"linear": lambda x: ops.linear(x, _M, None, "gelu")},
        arguments={
            "linear": lambda: (draw(4, 6), draw(3, 6), None, "gelu"),
            "plain_linear": lambda: (draw(4, 6), draw(3, 6), draw(3)),
        },
        kernels={"linear": KernelCase(_call_linear, multiplies=True)},
        signature="input weight bias",
    ),
    "conv2d": Case(
        edges=_convolution,
        counterparts={
            "conv2d": (
                lambda x, w: ops.conv2d(_last(x), _last(w), **_CONV),
                partial(functional.conv2d, **_CONV),
                ((2, 4, 7, 9), (6, 2, 3, 3)),
            ),
            "conv2d of rows of pixels": (
                partial(ops.conv2d, padding="same"),
                partial(functional.conv2d, padding="same"),
                ((2, 4, 7, 9), (6, 4, 3, 3), (6,)),
            ),
        },
        graphs={
            "conv2d": lambda x: ops.conv2d(
                x.view(-1, 4, 2, 4).permute(0, 3, 1, 2), _IMAGES, padding=1
            )
        },
        autocast=(ops.conv2d, functional.conv2d, ((1, 2, 4, 4),) * 2),
        arguments={"conv2d": lambda: (draw(2, 5, 6, 4), draw(3, 3, 3, 4), 2, 1, 1, 1, 1)},
        kernels={
            "convolution": KernelCase(
                lambda workload, t: lambda: _convolve(workload, t["x"], t["weight"]),
                defaults=True,
                multiplies=True,
            )
        },
        signature="input weight bias stride padding dilation groups",
    ),
    "quantize": Case(
        edges=_quantize,
        graphs={
            f"quantize {scales}": lambda x, scales=scales: ops.quantize(x, torch.int8, scales)
            for scales in ("row", "tensor", "block128")
        },
        arguments={"quantize": lambda: (draw(4, 6), "row", "int8")},
        kernels={
            "quantize": KernelCase(
                lambda workload, t: (
                    lambda: ops.quantize(
                        t["x"], getattr(torch, workload.text("to")), workload.text("scales")
                    )
                ),
                interpreted=False,
            )
        },
    ),
    "fp8_linear": Case(
        edges=_fp8_linear,
        graphs={
            "fp8_linear": lambda x: ops.fp8_linear(x, _M.to(torch.float8_e4m3fn), torch.ones(48))
        },
        arguments={"scaled_matmul": _scaled_arguments},
        kernels={"fp8_matmul": KernelCase(_call_scaled, interpreted=False)},
    ),
}
