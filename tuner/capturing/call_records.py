"""Records of captured calls: plain values that JSON can hold.

A buffer is a stretch of device memory that a call reads or writes. A view is a tensor argument in a
buffer. Tensors whose memory overlaps share one buffer, so that a call which is made again has the
aliasing of the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from search_spaces.records import Config, digest

#: An argument in terms of JSON; `tuner.capturing.arguments` says how each kind is written.
Encoded: TypeAlias = Any

#: Bytes to which Triton specialises addresses.
ALIGNMENT = 16


class Following(int):
    """A number that follows a size, which its text says: `n`, `2*n+1`, `cdiv(n,256)`."""

    text: str

    def __new__(cls, value: int, text: str) -> Following:
        found = super().__new__(cls, value)
        found.text = text
        return found

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Values:
    """The distribution of a tensor's finite values: of floats from a sample, of integers exact
    limits."""

    #: Average.
    mean: float
    #: Standard deviation.
    std: float
    #: The least value.
    low: float
    #: The largest value.
    high: float

    def identity_state(self) -> tuple[float | bool, ...]:
        """Limits of integers; of floats the sign alone, since their values are drawn at random."""
        if float(self.low).is_integer() and float(self.high).is_integer():
            return self.low, self.high
        return (self.low >= 0,)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A stretch of memory; its first byte belongs to a view."""

    #: The name of the first argument in it.
    name: str
    #: Its size.
    bytes: int
    #: Its address modulo 16.
    misalignment: int
    #: How values are drawn for it; None: normally distributed ones.
    values: Values | None = None
    #: SHA-256 of its kept contents; empty where they are not kept.
    contents: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A tensor argument."""

    #: Position of its buffer in the call.
    buffer: int
    #: torch's name of the dtype.
    dtype: str
    #: Sizes, outermost first.
    shape: tuple[int, ...]
    #: Elements between neighbours in every dimension.
    strides: tuple[int, ...]
    #: Bytes from the start of the buffer to the first element.
    offset: int


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of a call, as a function of the tuned parameters that it reads."""

    #: The grid of the call itself.
    sizes: tuple[int, ...]
    #: Whether it was given as a callable; a tuple says nothing about other configs.
    callable: bool = False
    #: The tuned parameters that the callable reads.
    reads: tuple[str, ...] = ()
    #: Values of these parameters, and the grid for them.
    rows: tuple[tuple[tuple[Any, ...], tuple[int, ...]], ...] = ()
    #: Scalar arguments whose other values change the grid, or what heuristics compute.
    steered_by: tuple[str, ...] = ()

    def of(self, values: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The grid for a config, given by its launch values; None where it is not known."""
        if not self.reads:
            return self.sizes
        wanted = tuple(values.get(name) for name in self.reads)
        return next((sizes for read, sizes in self.rows if read == wanted), None)


@dataclass(frozen=True, slots=True)
class Written:
    """What the library's own config does to a buffer that it writes."""

    #: Position of the buffer in the call.
    buffer: int
    #: Whether the result depends on what the buffer holds before, as in-place updates do.
    updated: bool
    #: Whether elements stay as they are.
    partial: bool
    #: Root mean square of the finite values that it holds afterwards.
    scale: float
    #: The largest relative difference of two runs on the same inputs; 0 for equal bits.
    noise: float

    def identity_state(self) -> tuple[int, bool, bool]:
        """Without what was measured."""
        return self.buffer, self.updated, self.partial


@dataclass(frozen=True, slots=True)
class Call:
    """One distinct specialised launch of a kernel."""

    #: The name of the `@triton.jit` function.
    kernel: str
    #: Where the launched object is: `module:object` or `path/to/file.py:object`.
    place: str
    #: The decorators, outermost first, such as `("heuristics", "autotune")`.
    decorators: tuple[str, ...]
    #: The arguments by name, without those that the decorators compute.
    arguments: Mapping[str, Encoded]
    #: The arguments that the caller passed by keyword.
    keywords: tuple[str, ...]
    #: Compiler options that the caller passed, such as `num_warps`.
    options: Config
    buffers: tuple[Buffer, ...]
    views: tuple[View, ...]
    grid: Grid
    #: The number of configs under autotune; 0 without it.
    configs: int = 0
    #: The config that the library launched; None where the call did not succeed.
    default: Config | None = None
    #: How often it was launched.
    count: int = 1
    #: Total GPU time in microseconds; None where it was not measured.
    gpu_us: float | None = None
    #: Why it cannot be tuned, in one line; empty where it can.
    problem: str = ""
    #: What it writes; None until that was tried.
    written: tuple[Written, ...] | None = None
    #: Tensor arguments that the library's hooks set to zero before every launch.
    zeroed: tuple[str, ...] = field(default=())
    #: Arguments whose values do not change the work; None until that was asked.
    free: tuple[str, ...] | None = None

    @property
    def digest(self) -> str:
        """A digest of the arguments and the memory they refer to, without what was measured."""
        return digest(
            [
                self.kernel,
                self.place,
                self.problem,
                dict(self.arguments),
                dict(self.options),
                [[view.buffer, view.dtype, view.shape, view.strides, view.offset]
                 for view in self.views],
                [[buffer.bytes, buffer.misalignment, buffer.contents] for buffer in self.buffers],
                self.grid.sizes,
            ]
        )  # fmt: skip

    def identity_state(self) -> Call:
        """Without what was measured."""
        return replace(self, count=1, gpu_us=None)

    def with_problem(self, problem: str) -> Call:
        return replace(self, problem=problem)
