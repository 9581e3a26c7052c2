"""What the kernel library is to reach on an H200, and what the committed results show.

Memory-bound kernels are compared with a copy: the share of the copy bandwidth that the device's
calibration measured. A goal is a geometric mean over the workloads that have a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from search_spaces.records import Workload

#: Least traffic of a workload that fills the device and its caches twice over.
LARGE_BYTES = 128e6
#: Operations for each byte of traffic up to which 16-bit products wait for memory: the data sheet
#: of the H200 has 989e12 of them, and 4.8e12 bytes, a second.
_FEW_OPERATIONS = 989 / 4.8
#: The names under which torch calls cuBLAS, cuDNN's convolutions and `torch._scaled_mm`: `compile`
#: without autotuning leaves convolutions to cuDNN too.
_CUBLAS = ("eager", "vendor")
_CUDNN = ("eager", "compile", "vendor")
_SCALED_MM = ("vendor", "vendor_fast")
#: torch's attention by one backend each; `compile` takes the one that torch chooses.
_FUSED_ATTENTION = ("vendor", "flash", "compile")
#: Kernels that move their operands once and compute little.
MEMORY_BOUND = frozenset(
    [
        "activation",
        "activation_backward",
        "add_norm",
        "adaptive_pooling",
        "amax",
        "causal_convolution",
        "cross_entropy",
        "cross_entropy_backward",
        "cumulative_sum",
        "depthwise_convolution",
        "dequantize",
        "elementwise",
        "elementwise_chain",
        "embedding",
        "group_norm",
        "index_add",
        "layer_norm",
        "norm_backward",
        "online_softmax",
        "permute",
        "pooling",
        "quantize",
        "reduction",
        "rms_norm",
        "rotary",
        "softmax",
        "softmax_backward",
        "topk_routing",
        "transpose",
    ]
)


class Result(Protocol):
    """A result, as far as goals need it."""

    kernel: str
    workload: Workload
    median_us: float
    flops: float
    bytes: float
    over_baselines: dict[str, float]

    @property
    def over_fastest(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Goal:
    """A geometric mean that is to reach a bound."""

    text: str
    bound: float
    #: The figure of a result; None where the goal does not concern it.
    figure: Callable[[Result], float | None]


def rows(found: Sequence[Result], copy_bytes_per_us: float) -> Iterator[tuple[str, ...]]:
    """One row per goal: its text, its bound, what was reached, and over how many workloads."""
    for goal in goals(copy_bytes_per_us):
        figures = [figure for item in found if (figure := goal.figure(item)) is not None]
        reached = _mean(figures)
        shown = "" if reached is None else f"{reached:.2f}"
        verdict = "" if reached is None else "yes" if reached >= goal.bound else "no"
        yield goal.text, f"{goal.bound:.2f}", shown, f"{len(figures)}", verdict


def goals(copy_bytes_per_us: float) -> tuple[Goal, ...]:
    """The goals of the library."""

    def bandwidth(item: Result) -> float | None:
        large = item.kernel in MEMORY_BOUND and item.bytes >= LARGE_BYTES
        return item.bytes / item.median_us / copy_bytes_per_us if large else None

    return (
        Goal("memory-bound kernels over their fastest baseline", 1.1, _fastest(MEMORY_BOUND)),
        Goal(
            "memory-bound kernels of 128 MB and more, share of the copy bandwidth", 0.92, bandwidth
        ),
        Goal("bfloat16 matmul, M from 1,024 on, over cuBLAS", 1.0, _over(_large_matmul, *_CUBLAS)),
        Goal("matmul and gemv, M to 64, over cuBLAS", 1.02, _over(_decode, *_CUBLAS)),
        Goal(
            "fp8 matmul over torch._scaled_mm, with or without fast accumulation",
            0.97,
            _over(_is("fp8_matmul"), *_SCALED_MM),
        ),
        Goal(
            "linear layers that wait for memory, over their fastest baseline", 1.2, _over(_producer)
        ),
        Goal(
            "attention forward, head dim 128, no window, over the faster of cuDNN and flash",
            0.95,
            _over(_long_attention, *_FUSED_ATTENTION),
        ),
        Goal("decode attention over its fastest baseline", 1.0, _over(_decode_attention)),
        Goal("convolutions of ResNet-50 over cuDNN", 0.9, _over(_resnet, *_CUDNN)),
        Goal("moe matmul over its fastest baseline", 1.0, _over(_is("moe_matmul"))),
    )


def _fastest(kernels: frozenset[str]) -> Callable[[Result], float | None]:
    return lambda item: item.over_fastest if item.kernel in kernels else None


def _over(chosen: Callable[[Result], bool], *names: str) -> Callable[[Result], float | None]:
    """The time of the fastest of the named baselines (without names: of all) over the winner's."""

    def figure(item: Result) -> float | None:
        over = [value for name, value in item.over_baselines.items() if not names or name in names]
        return min(over, default=None) if chosen(item) else None

    return figure


def _is(kernel: str) -> Callable[[Result], bool]:
    return lambda item: item.kernel == kernel


def _large_matmul(item: Result) -> bool:
    work = item.workload
    return item.kernel == "matmul" and work["dtype"] == "bfloat16" and work.size("M") >= 1024


def _decode(item: Result) -> bool:
    return item.kernel == "gemv" or (item.kernel == "matmul" and item.workload.size("M") <= 64)


def _producer(item: Result) -> bool:
    return (
        item.kernel == "linear"
        and item.flops < _FEW_OPERATIONS * item.bytes
        and item.workload["dtype"] != "float32"
    )


def _long_attention(item: Result) -> bool:
    if item.kernel not in ("attention", "grouped_attention") or item.workload["head_dim"] != 128:
        return False
    # Neither decoding nor a window of few keys: there cuDNN reads what the mask hides.
    work = item.workload
    return not work.get("window") and work.get("queries") == work.get("keys")


def _decode_attention(item: Result) -> bool:
    few = item.kernel == "grouped_attention" and item.workload.size("queries") < 16
    return few or item.kernel == "paged_decode"


def _resnet(item: Result) -> bool:
    work = item.workload
    return item.kernel == "convolution" and (
        work.size("batch") == 64 and work["dtype"] == "float16" and work["groups"] == 1
    )


def _mean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
