# mypy: ignore-errors
"""Prints what Triton's interpreter makes of reductions and scans with functions of a kernel."""

import json

from workers.backends.interpreter.arithmetic import extend

extend()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402


@triton.jit
def affine(a, b, c, d):
    """(c, d) after (a, b), of x -> a x + b: the order counts."""
    return a * c, b * c + d


@triton.jit
def last(a, b):
    return b


@triton.jit
def chosen(a, b):
    """For scalars only, as it branches."""
    r = a
    if a < b:
        r = b
    return r


@triton.jit
def tile(X, OUT, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(X + at)
    a, b = tl.reduce((x, x + 1), 1, affine)
    tl.store(OUT + tl.arange(0, M), a + b)
    OUT += M
    a, b = tl.reduce((x, x + 1), 0, affine, keep_dims=True)
    tl.store(OUT + tl.arange(0, N)[None, :], a + b)
    OUT += N
    tl.store(OUT, tl.reduce(x, None, last))
    OUT += 1
    tl.store(OUT + tl.arange(0, N), tl.reduce(x, 0, chosen))
    OUT += N
    a, b = tl.associative_scan((x, x + 1), 1, affine)
    tl.store(OUT + at, a + b)
    OUT += M * N
    a, b = tl.associative_scan((x, x + 1), 0, affine, reverse=True)
    tl.store(OUT + at, a + b)
    OUT += M * N
    value, place = tl.max(x, 1, return_indices=True, return_indices_tie_break_left=False)
    tl.store(
        OUT + tl.arange(0, M),
        value + tl.where(tl.load(X + tl.arange(0, M) * N + place) == value, 0, 99),
    )


def followed(pairs):
    """The sum of both values of the maps, one after another."""
    a, b = pairs[0]
    for c, d in pairs[1:]:
        a, b = a * c, b * c + d
    return a + b


def expected(x):
    m, n = x.shape
    maps = [[(value, value + 1) for value in row] for row in x.tolist()]
    columns = [[maps[i][j] for i in range(m)] for j in range(n)]
    yield from (followed(row) for row in maps)
    yield from (followed(column) for column in columns)
    yield x[-1, -1].item()
    yield from x.amax(0).tolist()
    yield from (followed(row[: j + 1]) for row in maps for j in range(n))
    yield from (followed(columns[j][i:][::-1]) for i in range(m) for j in range(n))
    yield from x.amax(1).tolist()


M, N = 4, 16
x = torch.rand(M, N, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
x[1, 3] = x[1, 7] = 1.75
wanted = torch.tensor(list(expected(x)), dtype=torch.float64)
out = torch.full_like(wanted, float("nan"))
tile[(1,)](x, out, M, N)
print(json.dumps((out - wanted).abs().max().item()))
