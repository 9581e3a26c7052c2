# mypy: ignore-errors
"""Kernels whose tensors need care when a call is made again."""

import enum

import triton
import triton.language as tl
from capture_kernels import measured

SIZES = [triton.Config({"BLOCK": block}) for block in (32, 64)]


def zero_total(args):
    args["total"].zero_()


def fill_total(args):
    args["total"].fill_(1.0)


@triton.autotune(SIZES, key=["n"], do_bench=measured, restore_value=["x"])
@triton.jit
def in_place(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2.0 * tl.load(x + at, at < n) + 1.0, at < n)


@triton.autotune(SIZES, key=["n"], do_bench=measured)
@triton.jit
def every_third(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + 1.0, (at < n) & (at % 3 == 0))


def zeroing(name):
    return lambda args: args[name].zero_()


def hooked(make_hook):
    return [triton.Config({"BLOCK": block}, pre_hook=make_hook()) for block in (32, 64)]


def adding(configs=SIZES, **options):
    """A kernel that adds up by atomics."""

    @triton.autotune(configs, key=["n"], do_bench=measured, **options)
    @triton.jit
    def add(x, total, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.atomic_add(total + at % 4, tl.load(x + at, at < n, 0.0), at < n)

    return add


add_to = adding()
add_reset = adding(reset_to_zero=["total"])
add_hooked = adding(hooked(lambda: zero_total))
add_filled = adding(hooked(lambda: fill_total))
add_by_closures = adding(hooked(lambda: zeroing("total")))


@triton.autotune(SIZES, key=["n"], do_bench=measured)
@triton.jit
def counted(x, counter, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    while tl.load(counter) > 1000:  # a poisoned counter would never end this
        pass
    tl.atomic_add(counter, 1)
    tl.store(out + at, tl.load(x + at, at < n) + 1.0, at < n)


@triton.autotune(SIZES, key=["n"], do_bench=measured)
@triton.jit
def scattered(x, index, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.load(index + at, at < n, 0)
    tl.store(out + rows, tl.load(x + at, at < n), at < n)


@triton.autotune(SIZES, key=["n"], do_bench=measured)
@triton.jit
def wrong_for_some(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + (BLOCK == 64), at < n)


@triton.jit
def strided(x, out, n, stride_x, stride_out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at * stride_out, tl.load(x + at * stride_x, at < n) * 2.0, at < n)


@triton.jit
def doubled(value):
    return value * 2.0


@triton.jit
def applied(pair, out, n, F: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(pair[0] + at, at < n) * pair[1]
    tl.store(out + at, F(value).to(DTYPE), at < n)


@triton.jit
def root(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sqrt(tl.load(x + at, at < n)), at < n)


@triton.jit
def idle(x, BLOCK: tl.constexpr):
    tl.load(x + tl.arange(0, BLOCK))


def set_blocks(args):
    args["source"].block_shape = [args["BLOCK"]]
    args["target"].block_shape = [args["BLOCK"]]


@triton.autotune(hooked(lambda: set_blocks), key=["n"], do_bench=measured)
@triton.jit
def by_descriptor(source, target, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    target.store([start], source.load([start]) * 2.0)


def in_a_list(pruner):
    """The pruner, whose configs Triton 3.9 counts; earlier versions take any iterable."""
    return lambda *arguments, **named: list(pruner(*arguments, **named))


@in_a_list
def made_by_pruning(configs, named, *, out, **more):
    """As gemlite's: makes its configs, with a constexpr and a hook that the decorator lacks."""
    for item in configs:
        block, parts = item.kwargs["BLOCK"], item.kwargs["PARTS"]
        yield triton.Config(
            {"BLOCK": block, "PARTS": min(parts, 4), "EVEN": named["n"] % block == 0},
            num_warps=item.num_warps,
            pre_hook=zeroing("out") if parts > 1 else None,
        )


@triton.autotune(
    [triton.Config({"BLOCK": block, "PARTS": p}) for block in (32, 64) for p in (2, 1, 8)],
    key=["n"],
    prune_configs_by={"early_config_prune": made_by_pruning},
    do_bench=measured,
)
@triton.jit
def split_sum(x, n, out, BLOCK: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr):
    """out[at] is the sum of eight rows of x; several programs share it where PARTS > 1."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for row in range(8 // PARTS):
        of = x + (tl.program_id(1) * (8 // PARTS) + row) * n
        total += tl.load(of + at) if EVEN else tl.load(of + at, at < n)
    if PARTS > 1:
        tl.atomic_add(out + at, total, at < n)
    else:
        tl.store(out + at, total, at < n)


@triton.jit
def masked_fill(mask, out, n, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.where(tl.load(mask + at, at < n) != 0, 5.0, 0.0)
    if KEEP:
        value = tl.where(tl.load(mask + at, at < n) != 0, 5.0, tl.load(out + at, at < n))
    tl.store(out + at, value, at < n)


@triton.jit
def set_bit(x, n, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.full((BLOCK,), 1, tl.uint8)
    if KEEP:
        value = tl.load(x + at, at < n) | 1
    tl.store(x + at, value, at < n)


@triton.jit
def add_residual(x, out, n, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n)
    if KEEP:
        value += tl.load(out + at, at < n)
    tl.store(out + at, value, at < n)


@triton.jit
def positions(out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, at.to(tl.float32), at < n)


@triton.jit
def adam(p, g, m, v, absmax, steps, n, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    """A step of an optimiser with five tensors that are updated in place, two of them in bytes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    grad, scale = tl.load(g + at, inside, 0.0), tl.load(absmax + at, inside, 1.0)
    first = tl.load(m + at, inside, 0).to(tl.float32) / 128 * scale * 0.9 + 0.1 * grad
    second = tl.load(v + at, inside, 0).to(tl.float32) / 255 * 0.99 + 0.01 * grad * grad
    count = tl.load(steps + at, inside, 0.0) + 1.0
    old = tl.load(p + at, inside, 0.0) if KEEP else 0.0
    tl.store(p + at, old - 0.01 * first / (tl.sqrt(second) + 0.001), inside)
    tl.store(absmax + at, tl.abs(first) + 0.001, inside)
    tl.store(m + at, (first / (tl.abs(first) + 0.001) * 100 + 100).to(tl.uint8), inside)
    tl.store(v + at, tl.minimum(second * 255, 255.0).to(tl.uint8), inside)
    tl.store(steps + at, count, inside)


def with_option(name, value):
    """A kernel whose only config sets an option of the compiler among its constants."""

    @triton.autotune([triton.Config({"BLOCK": 32, name: value})], key=["n"], do_bench=measured)
    @triton.jit
    def optioned(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) * 2.0, at < n)

    return optioned


known_option = with_option("enable_fp_fusion", False)
unknown_option = with_option("enable_time_travel", True)


@triton.autotune(
    [triton.Config({"ROWS": rows, "COLS": 32}) for rows in (2, 4)],
    key=["n_cols"],
    do_bench=measured,
)
@triton.jit
def scaled_rows(x, w, out, stride, n_rows, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    inside = (rows < n_rows) & (cols < n_cols)
    value = tl.load(x + rows * stride + cols, inside) * tl.load(w + cols, cols < n_cols)
    tl.store(out + rows * n_cols + cols, value, inside)


@triton.jit
def flat_rows(x, out, total, n_rows, n_cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < total) & (at // n_cols < n_rows)
    tl.store(out + at, tl.load(x + at, inside) + 1.0, inside)


@triton.autotune(SIZES, key=["n"], do_bench=measured)
@triton.jit
def gathered_again(x, index, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.load(index + at, at < n, 0)
    tl.store(out + at, tl.load(x + rows, at < n), at < n)


@triton.jit
def persistent(x, out, n, BLOCK: tl.constexpr):
    for tile in range(tl.program_id(0), (n + BLOCK - 1) // BLOCK, tl.num_programs(0)):
        at = tile * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) * 3.0, at < n)


@triton.jit
def scaled_blocks(x, ends, scales, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n) * tl.load(scales + tl.program_id(0))
    tl.store(out + at, value + tl.load(ends + at + 1, at < n), at < n)


@triton.jit
def doubled_rows(x, out, n_cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * n_cols
    tl.store(out + start + at, tl.load(x + start + at, at < n_cols) * 2.0, at < n_cols)


class Mode(enum.Enum):
    ADD = "add"
    DOUBLE = "double"


class Policy(enum.IntEnum):
    NONE = 0
    DOUBLE = 8


class Name(str, enum.Enum):  # noqa: UP042 - as libraries for Python 3.10 have them
    DOUBLE = "double"


DOUBLE_MODE = tl.constexpr(Mode.DOUBLE)


@triton.jit
def by_mode(x, out, n, MODE: tl.constexpr, pair, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    factor = 2.0 if MODE == DOUBLE_MODE else 1.0
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


@triton.jit
def running_maximum(x, out, top, n, low, LOW: tl.constexpr, BLOCK: tl.constexpr):
    """`top` stays at -inf in the rows of x that are masked, as in attention."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, (at < n) & (at % 4 != 3), LOW)
    tl.store(top + at, tl.maximum(value, low), at < n)
    tl.store(out + at, tl.exp(value), at < n)


@triton.jit
def halves(x, out, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Doubles x in PARTS steps of one program, whatever PARTS is."""
    for part in tl.static_range(PARTS):
        at = part * (BLOCK // PARTS) + tl.arange(0, BLOCK // PARTS)
        tl.store(out + at, tl.load(x + at, at < n) * 2.0, at < n)
