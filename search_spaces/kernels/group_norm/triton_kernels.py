# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of the group norm, in float32 whatever the dtype.

A program works on tiles of three dimensions. With channels last, these are BLOCK pixels, BLOCK_G
groups and the WIDTH channels of a group, WIDTH a power of two. Otherwise a group is one stretch of
memory: BLOCK elements of one group in words of VEC. The pixels (elements) of a group are its
places; a program has a part of them.

Channels that come last are words of memory whatever the groups, if each is taken for a group of its
own: their moments are merged to those of the groups by a launch in between.

Held groups are centred before they are squared, so that nothing cancels; others keep a running mean
and sum of squared deviations in every lane (Welford, 1962), which are merged at the end (Chan,
Golub and LeVeque, 1979).
"""

import triton
import triton.language as tl


@triton.jit
def _lanes(LAST: tl.constexpr, BLOCK: tl.constexpr, VEC: tl.constexpr):
    """Places of a tile, from the first one."""
    if LAST:
        place = tl.arange(0, BLOCK)[:, None, None]
    else:
        place = (tl.arange(0, BLOCK // VEC) * VEC)[:, None, None] + tl.arange(0, VEC)[None, None, :]
    return place


@triton.jit
def _values(
    ptr, start, place, lane, real, end, LAST: tl.constexpr, CHANNELS: tl.constexpr,
    EVEN: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """Values of a tile, 0 outside the part, and what is inside."""
    here = start + place
    at = here * CHANNELS + lane if LAST else here
    inside = (here < end) & real if LAST else here < end
    if EVEN:
        x = tl.load(ptr + at, eviction_policy=POLICY)
    else:
        x = tl.load(ptr + at, inside, 0.0, eviction_policy=POLICY)
    return x.to(tl.float32), at, inside


@triton.jit
def _summed(tile):
    """Sums of the groups of a tile."""
    return tl.sum(tl.sum(tile, 2), 0)


@triton.jit
def _part_moments(
    x_ptr, begin, end, place, lane, real, shape: tl.constexpr, WIDE: tl.constexpr,
    LAST: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    POLICY: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations from it of a part of each group; WIDE values a place."""
    mean = tl.zeros(shape, tl.float32)
    spread = tl.zeros(shape, tl.float32)
    blocks = 0.0
    for start in tl.range(begin, end, BLOCK, num_stages=LOAD_STAGES):
        x, _, inside = _values(x_ptr, start, place, lane, real, end, LAST, CHANNELS, EVEN, POLICY)
        blocks += 1.0
        away = x - mean
        if not EVEN:
            away = tl.where(inside, away, 0.0)
        mean += away * (1.0 / blocks)
        spread += away * (x - mean)
    places = tl.maximum(end - begin, 0)
    # The last block may have left some lanes with one value fewer, or with none at all.
    seen = (places // BLOCK + (place < places % BLOCK).to(tl.int32)).to(tl.float32)
    if LAST:
        seen = tl.where(real, seen, 0.0)
    counted = tl.maximum(places, 1).to(tl.float32) * WIDE
    total = _summed(mean * seen) / counted
    away = mean - total[None, :, None]
    return total, _summed(spread + seen * away * away)


@triton.jit
def _merged(mean, spread, PART: tl.constexpr, SPLITS: tl.constexpr, LENGTH: tl.constexpr):
    """Mean and mean squared deviation of groups from those of their parts, [groups, SPLITS]."""
    split = tl.arange(0, SPLITS)
    share = tl.minimum(tl.maximum(LENGTH - split * PART, 0), PART).to(tl.float32) / LENGTH
    total = tl.sum(mean * share[None, :], 1)
    away = mean - total[:, None]
    # `spread` has the sums of `WIDE` values a place divided by WIDE.
    return total, tl.sum(spread / LENGTH + share[None, :] * away * away, 1)


@triton.jit
def _write_tile(
    x, mean, scale, weight_ptr, bias_ptr, out_ptr, at, inside, channel, known,
    EVEN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    if EVEN:
        weight = tl.load(weight_ptr + channel).to(tl.float32)
        bias = tl.load(bias_ptr + channel).to(tl.float32)
    else:
        weight = tl.load(weight_ptr + channel, known, 0.0).to(tl.float32)
        bias = tl.load(bias_ptr + channel, known, 0.0).to(tl.float32)
    out = (x - mean[None, :, None]) * (scale[None, :, None] * weight) + bias
    out = out.to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptr + at, out, cache_modifier=store_policy)
    else:
        tl.store(out_ptr + at, out, inside, cache_modifier=store_policy)


@triton.jit
def _channels(
    start, place, lane, real, end, first, LAST: tl.constexpr, PIXELS: tl.constexpr,
    PER_GROUP: tl.constexpr, BLOCK: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """The channels of a tile, and which of them exist; one of each word where it has only one."""
    if LAST:
        channel = first * PER_GROUP + lane
        known = real
    else:
        here = start + place
        if PIXELS % VEC == 0:
            here = start + (tl.arange(0, BLOCK // VEC) * VEC)[:, None, None]
        channel = first * PER_GROUP + here // PIXELS
        known = here < end
    return channel, known


@triton.jit
def _write_part(
    x_ptr, weight_ptr, bias_ptr, out_ptr, begin, end, first, place, lane, real, mean, scale,
    LAST: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr, PER_GROUP: tl.constexpr,
    BLOCK: tl.constexpr, VEC: tl.constexpr, EVEN: tl.constexpr, STREAM: tl.constexpr,
    LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    drop: tl.constexpr = "evict_first" if STREAM else ""
    # fmt: off
    for start in tl.range(begin, end, BLOCK, num_stages=LOAD_STAGES):
        x, at, inside = _values(x_ptr, start, place, lane, real, end, LAST, CHANNELS, EVEN, drop)
        channel, known = _channels(start, place, lane, real, end, first,
                                   LAST, PIXELS, PER_GROUP, BLOCK, VEC)
        _write_tile(x, mean, scale, weight_ptr, bias_ptr, out_ptr, at, inside, channel, known,
                    EVEN, STREAM)
    # fmt: on


@triton.jit
def merge_channels_kernel(
    mean_ptr, spread_ptr, group_mean_ptr, group_scale_ptr, PIXELS: tl.constexpr,
    PER_GROUP: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr, SPLITS: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """Mean and reciprocal deviation of group i from the moments of its channels' parts.

    mean and spread: [groups of all images, PER_GROUP, SPLITS] of PART pixels each. WIDTH is
    PER_GROUP or the next power of two.
    """
    group = tl.program_id(0)
    lane, split = tl.arange(0, WIDTH)[:, None], tl.arange(0, SPLITS)[None, :]
    at = (group.to(tl.int64) * PER_GROUP + lane) * SPLITS + split
    real = (lane < PER_GROUP) & (split < SPLITS)
    share = tl.minimum(tl.maximum(PIXELS - split * PART, 0), PART).to(tl.float32)
    share = tl.where(real, share * (1.0 / (PIXELS * PER_GROUP)), 0.0)
    mean = tl.load(mean_ptr + at, real, 0.0)
    spread = tl.load(spread_ptr + at, real, 0.0) * (1.0 / (PIXELS * PER_GROUP))
    total = tl.sum(tl.sum(mean * share, 1), 0)
    away = mean - total
    variance = tl.sum(tl.sum(spread + share * away * away, 1), 0)
    tl.store(group_mean_ptr + group, total)
    tl.store(group_scale_ptr + group, tl.rsqrt(variance + EPS))


@triton.jit
def group_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, spread_ptr, CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_G: tl.constexpr, VEC: tl.constexpr, PART: tl.constexpr, SPLITS: tl.constexpr,
    LAST: tl.constexpr, EVEN: tl.constexpr, STREAM: tl.constexpr, EPS: tl.constexpr,
    LOAD_STAGES: tl.constexpr, PHASE: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Program (i, j) has part j of BLOCK_G groups of an image; x is [batch, pixels, channels] with
    LAST, else [batch, channels, pixels].

    PHASE `held` has groups in one tile. PHASE `whole` reads a group twice: for its moments, and to
    be written. PHASE `sum` leaves the moments of its part in `mean` and `spread`, each
    [batch, groups, SPLITS], from which PHASE `write` has those of the whole group. PHASE `apply`
    has groups of one channel; SHARED of them have a mean and a reciprocal deviation (`spread`)
    together. EVEN: there is nothing to mask. With STREAM, the first reading asks the caches to keep
    x and the last lets it go. LOAD_STAGES tiles are in flight.
    """
    PER_GROUP: tl.constexpr = CHANNELS // GROUPS
    LENGTH: tl.constexpr = PIXELS if LAST else PIXELS * PER_GROUP
    WIDE: tl.constexpr = PER_GROUP if LAST else 1
    shape: tl.constexpr = (BLOCK, BLOCK_G, WIDTH) if LAST else (BLOCK // VEC, 1, VEC)
    keep: tl.constexpr = "evict_last" if STREAM else ""
    drop: tl.constexpr = "evict_first" if STREAM else ""
    # fmt: off
    across: tl.constexpr = (GROUPS + BLOCK_G - 1) // BLOCK_G
    image = (tl.program_id(0) // across).to(tl.int64)
    first, split = tl.program_id(0) % across * BLOCK_G, tl.program_id(1)
    group = first + tl.arange(0, BLOCK_G)
    begin = split * PART
    end = tl.minimum(begin + PART, LENGTH)
    if LENGTH % VEC == 0 and not LAST:
        end = tl.multiple_of(end, VEC)
    place = _lanes(LAST, BLOCK, VEC)
    width = tl.arange(0, WIDTH)[None, None, :]
    lane = (tl.arange(0, BLOCK_G) * PER_GROUP)[None, :, None] + width
    real = (width < PER_GROUP) & (group < GROUPS)[None, :, None]
    base = image * (CHANNELS * PIXELS) + first * (PER_GROUP if LAST else LENGTH)
    x_ptr += base
    out_ptr += base
    slot = (image * GROUPS + group) * SPLITS
    if PHASE == "held":
        x, at, inside = _values(x_ptr, begin, place, lane, real, end, LAST, CHANNELS, EVEN, drop)
        mean = _summed(x) * (1.0 / (LENGTH * WIDE))
        away = x - mean[None, :, None]
        if not EVEN:
            away = tl.where(inside, away, 0.0)
        scale = tl.rsqrt(_summed(away * away) * (1.0 / (LENGTH * WIDE)) + EPS)
        channel, known = _channels(begin, place, lane, real, end, first,
                                   LAST, PIXELS, PER_GROUP, BLOCK, VEC)
        _write_tile(x, mean, scale, weight_ptr, bias_ptr, out_ptr, at, inside, channel, known,
                    EVEN, STREAM)
    if PHASE == "whole" or PHASE == "sum":
        mean, spread = _part_moments(x_ptr, begin, end, place, lane, real, shape, WIDE,
                                     LAST, CHANNELS, BLOCK, EVEN, keep, LOAD_STAGES)
        spread *= 1.0 / WIDE
    if PHASE == "sum":
        tl.store(mean_ptr + slot + split, mean, group < GROUPS)
        tl.store(spread_ptr + slot + split, spread, group < GROUPS)
    if PHASE == "apply":
        shared = image * (GROUPS // SHARED) + group // SHARED
        mean = tl.load(mean_ptr + shared, group < GROUPS, 0.0)
        scale = tl.load(spread_ptr + shared, group < GROUPS, 0.0)
        _write_part(x_ptr, weight_ptr, bias_ptr, out_ptr, begin, end, first, place, lane, real,
                    mean, scale, LAST, CHANNELS, PIXELS, PER_GROUP, BLOCK, VEC, EVEN, STREAM,
                    LOAD_STAGES)
    if PHASE == "whole" or PHASE == "write":
        variance = spread * (1.0 / LENGTH) if PHASE == "whole" else 0.0
        if PHASE == "write":
            parts, exist = slot[:, None] + tl.arange(0, SPLITS)[None, :], (group < GROUPS)[:, None]
            mean, variance = _merged(tl.load(mean_ptr + parts, exist, 0.0),
                                     tl.load(spread_ptr + parts, exist, 0.0), PART, SPLITS, LENGTH)
        _write_part(x_ptr, weight_ptr, bias_ptr, out_ptr, begin, end, first, place, lane, real,
                    mean, tl.rsqrt(variance + EPS), LAST, CHANNELS, PIXELS, PER_GROUP, BLOCK, VEC,
                    EVEN, STREAM, LOAD_STAGES)
    # fmt: on
