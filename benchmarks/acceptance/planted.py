# mypy: ignore-errors
"""Kernels whose work is an argument, so that a test can add a known share of it.

`copy` only selects one of two modules with the same code: the copies differ in nothing but the
address of their code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

from workers.measure.timers.timer import Candidate

#: One warp per multiprocessor of an H200: warps share nothing, so sharing cannot vary.
_PROGRAMS, _LANES = 132, 32


@triton.jit(do_not_specialize=["trips"])
def counting_kernel(out, trips, LANES: tl.constexpr, COPY: tl.constexpr):
    """A chain of `trips` dependent multiply-adds in every thread."""
    at = tl.program_id(0) * LANES + tl.arange(0, LANES)
    x = at.to(tl.float32)
    for _ in range(trips):
        x = x * 1.0001 + 0.5
    tl.store(out + at, x)


@triton.jit
def scaling_kernel(x, y, COPY: tl.constexpr):
    """y = 2 x over 1024 elements of each program: the grid is the work."""
    at = tl.program_id(0).to(tl.int64) * 1024 + tl.arange(0, 1024)
    tl.store(y + at, tl.load(x + at) * 2)


@triton.jit(do_not_specialize=["wait_ns"])
def waiting_kernel(out, wait_ns):
    """Wait until the device's own clock, in nanoseconds, has advanced by `wait_ns`."""
    begin = tl.extra.cuda.globaltimer()
    now = begin
    while now - begin < wait_ns:
        now = tl.extra.cuda.globaltimer()
    tl.store(out, now - begin)


@dataclass(slots=True)
class Counting:
    """A latency-bound kernel: its time is linear in the work."""

    name: str
    target_us: float
    first: int = 2_000
    out: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.out = torch.empty(_PROGRAMS * _LANES, device="cuda")

    def runner(self, work: int, copy: int = 0):
        launch, out = counting_kernel[(_PROGRAMS,)], self.out
        return lambda: launch(out, work, LANES=_LANES, COPY=copy, num_warps=1) and None


@dataclass(slots=True)
class Scaling:
    """A memory-bound kernel: every 1024 elements are one block."""

    name: str
    target_us: float
    first: int = 20_000
    x: torch.Tensor = field(init=False)
    y: torch.Tensor = field(init=False)

    def __post_init__(self):
        # Room for 1.5 times the target's traffic at 5 TB/s, read and written.
        elements = int(1.5 * self.target_us * 5e6 / 8)
        self.x = torch.randn(max(elements, 4 * 1024 * self.first), device="cuda")
        self.y = torch.empty_like(self.x)

    def runner(self, work: int, copy: int = 0):
        launch, x, y = scaling_kernel[(work,)], self.x, self.y
        return lambda: launch(x, y, COPY=copy, num_warps=4) and None


def waiting(us: float) -> Candidate:
    """A candidate that takes a given time by the device's clock."""
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    launch, wait_ns = waiting_kernel[(1,)], round(us * 1000)
    return Candidate(f"wait {us:g} us", lambda: launch(out, wait_ns, num_warps=1) and None)


def fit_work(harness, kernel, shares) -> dict[float, int]:
    """Work by share of extra time; share 0.0 takes the kernel's target time.

    Two readings of the device's own record determine it, under the assumption that time is linear
    in the work.
    """
    timer = harness.timer("cupti")

    def time_us(work: int) -> float:
        candidate = Candidate(kernel.name, kernel.runner(work))
        candidate.run()
        return harness.median_us(timer, candidate, 30)

    few, many = kernel.first, 4 * kernel.first
    short, long = time_us(few), time_us(many)
    for _ in range(2):
        slope = (long - short) / (many - few)
        base = max(1, round(few + (kernel.target_us - short) / slope))
        # Repeat around the work that the first estimate gave.
        few, many = base, max(base + 1, round(1.1 * base))
        short, long = time_us(few), time_us(many)
    slope = (long - short) / (many - few)
    found = {0.0: base}
    for share in shares:
        found[share] = base + max(1, round(share * short / slope))
    return found
