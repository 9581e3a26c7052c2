"""The cost of recording a launch after the first of its kind: microseconds, printed.

Usage: python benchmarks/capture_overhead.py [LAUNCHES]

The launch itself does nothing here, so the difference of the two loops is the recorder's work: the
hook, the key of the launch and the look-up. A GPU adds CUDA events around the second to fourth
launch of a kind, which is not in the figure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

import tuner


@triton.jit
def kernel(x, y, out, n, scale, BLOCK: tl.constexpr):
    pass


def shortest_us(launch: Callable[[], Any], launches: int) -> float:
    """The least time of a launch over seven loops."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(launches):
            launch()
        times.append(time.perf_counter() - start)
    return 1e6 * min(times) / launches


def main() -> None:
    launches = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    JITFunction.run = lambda self, *args, **kwargs: None
    for count in (1, 3, 6):
        tensors = [torch.zeros(64, 64) for _ in range(count)]

        def launch(tensors: list[torch.Tensor] = tensors) -> None:
            kernel[lambda meta: (1,)](*tensors, *[4096] * (6 - len(tensors)), BLOCK=128)

        plain = shortest_us(launch, launches)
        with tuner.capture():
            recorded = shortest_us(launch, launches)
        print(f"{count} tensors, {7 - count} scalars: {recorded - plain:.2f} us per launch")


if __name__ == "__main__":
    main()
