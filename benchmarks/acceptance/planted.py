# mypy: ignore-errors
"""Kernels whose work is an argument, so that a known share of it can be added.

`copy` changes only which of two modules with the same code is launched: twins share everything but
the place of their code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

from workers.measure.timers.timer import Candidate

#: one warp on each multiprocessor of an H200: nothing to share, so no luck in who shares it
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
    """Returns when the device's own clock, in nanoseconds, has advanced by `wait_ns`."""
    begin = tl.extra.cuda.globaltimer()
    now = begin
    while now - begin < wait_ns:
        now = tl.extra.cuda.globaltimer()
    tl.store(out, now - begin)


@dataclass(slots=True)
class Counting:
    """Bound by latency: time is linear in the work."""

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
    """Bound by memory: every 1024 elements are a block of their own."""

    name: str
    target_us: float
    first: int = 20_000
    x: torch.Tensor = field(init=False)
    y: torch.Tensor = field(init=False)

    def __post_init__(self):
        # Room for 1.5 times what the target needs at 5 TB/s, read and written.
        elements = int(1.5 * self.target_us * 5e6 / 8)
        self.x = torch.randn(max(elements, 4 * 1024 * self.first), device="cuda")
        self.y = torch.empty_like(self.x)

    def runner(self, work: int, copy: int = 0):
        launch, x, y = scaling_kernel[(work,)], self.x, self.y
        return lambda: launch(x, y, COPY=copy, num_warps=4) and None


def waiting(us: float) -> Candidate:
    """As long as the device's clock says."""
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    launch, wait_ns = waiting_kernel[(1,)], round(us * 1000)
    return Candidate(f"wait {us:g} us", lambda: launch(out, wait_ns, num_warps=1) and None)


def fit_work(harness, kernel, shares) -> dict[float, int]:
    """The work whose time is the kernel's target, at 0.0, and that with each share of time more.

    From two readings of the device's own record: time is taken to be linear in the work.
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
        # Once more, around the work that was found.
        few, many = base, max(base + 1, round(1.1 * base))
        short, long = time_us(few), time_us(many)
    slope = (long - short) / (many - few)
    found = {0.0: base}
    for share in shares:
        found[share] = base + max(1, round(share * short / slope))
    return found
