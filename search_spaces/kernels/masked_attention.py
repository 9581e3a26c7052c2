"""What the attention families share: the keys that a query sees, and exact attention.

Notation: query i of `queries` has place i + keys - queries among the keys, so that the last query
stands at the last key. Heads come in groups: head h of the queries reads head h // group of the
keys and values. Module level imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Tolerance
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.records import Workload

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")
MOST_HEADS, MOST_TOKENS = 1024, 2**20
#: Inputs of forward attention, and their standard deviations. Scores have one of 2: some keys
#: matter more, and the largest so far moves.
SCALES = {"q": 2.0, "k": 1.0, "v": 1.0}
#: Relative error in bfloat16, where the rounding of the weights adds to that of the output.
_BFLOAT16_ROUNDING = 6e-3
#: Scores that exact attention holds at a time, in float64.
_SCORES = 2**24


@dataclass(frozen=True, slots=True)
class Mask:
    """The keys that a query sees."""

    #: Whether a query sees no key after its own place.
    causal: bool
    #: The most keys that a query sees, those up to its own place; 0 is no limit.
    window: int = 0

    def pairs(self, queries: int, keys: int) -> int:
        """Pairs of a query and a key that it sees."""
        if not self.causal:
            return queries * keys
        most = self.window or keys
        before = keys - queries
        ramp = _triangle(min(keys, most)) - _triangle(min(before, most))
        return ramp + most * (max(keys - most, 0) - max(before - most, 0))

    def hides_nothing(self, queries: int, keys: int) -> bool:
        """Whether every query sees every key."""
        return self.pairs(queries, keys) == queries * keys

    def is_plain_causal(self, queries: int, keys: int) -> bool:
        """Whether torch's `is_causal`, which puts the first query at the first key, is the same."""
        return self.causal and queries == keys and not 0 < self.window < keys

    def seen(self, places: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Whether the query at each of `places` sees each of `keys`: bool, of their joint shape."""
        if not self.causal:
            return (keys >= 0) & (places >= 0)
        seen = keys <= places
        return seen & (keys > places - self.window) if self.window else seen


def mask_of(workload: Workload) -> Mask:
    """The mask that the dims causal and, where there is one, window mean."""
    return Mask(bool(workload["causal"]), int(str(workload.get("window", 0))))


def check_groups(where: str, workload: Workload) -> None:
    """Raise `WorkloadError` unless all heads of keys serve equally many heads of queries."""
    q_heads, kv_heads = workload.sizes("q_heads", "kv_heads")
    if q_heads % kv_heads:
        raise WorkloadError(
            f"{where}: q_heads is {q_heads}, not a multiple of kv_heads {kv_heads}",
            f"give q_heads={kv_heads * max(1, round(q_heads / kv_heads))}",
        )


def check_window(where: str, workload: Workload) -> None:
    """Raise `WorkloadError` for a window of queries that see later keys."""
    if workload["window"] and not workload["causal"]:
        raise WorkloadError(
            f"{where}: a window of {workload['window']} keys ends at the query's own place",
            "give causal=true, or window=0",
        )


def group_of(workload: Workload) -> int:
    """Heads of queries that share a head of keys and values."""
    return workload.size("q_heads") // workload.size("kv_heads")


def attention_tolerance(dtype: str) -> Tolerance:
    """The error of rounding the weights to the dtype, and then the output."""
    relative = _BFLOAT16_ROUNDING if dtype == "bfloat16" else ROUNDING[dtype]
    return Tolerance(relative, 2 * relative)


def exact_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: Mask
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(q @ k.T / sqrt(head_dim)) @ v in float64, and the logarithm of each softmax's sum.

    q is [q_heads, queries, head_dim], k and v are [kv_heads, keys, head_dim]. A head of keys and
    some queries at a time: at most 2**24 scores are held.
    """
    import torch

    (heads, queries, dim), (kv_heads, keys, _) = q.shape, k.shape
    group = heads // kv_heads
    grouped = q.reshape(kv_heads, group, queries, dim)
    out = q.new_empty((kv_heads, group, queries, v.shape[2]), dtype=torch.float64)
    sums = q.new_empty((kv_heads, group, queries), dtype=torch.float64)
    rows = max(_SCORES // (keys * group), 1)
    at_keys = torch.arange(keys, device=q.device)
    for head in range(kv_heads):
        key, value = k[head].double(), v[head].double()
        for first in range(0, queries, rows):
            some = grouped[head, :, first : first + rows].double()
            scores = (some @ key.T).mul_(1 / sqrt(dim))
            if mask.causal:
                places = torch.arange(first, first + some.shape[1], device=q.device)[:, None]
                hidden = ~mask.seen(places + (keys - queries), at_keys)
                scores.masked_fill_(hidden, float("-inf"))
            out[head, :, first : first + rows] = torch.softmax(scores, -1) @ value
            sums[head, :, first : first + rows] = torch.logsumexp(scores, -1)
    return out.reshape(heads, queries, v.shape[2]), sums.reshape(heads, queries)


def exact_gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, *, mask: Mask
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv of `exact_attention` for the gradient dout of its output, in float64.

    A head of queries and some queries at a time: at most 2**24 scores are held.
    """
    import torch

    (heads, queries, dim), (kv_heads, keys, _) = q.shape, k.shape
    group, scale, rows = heads // kv_heads, 1 / sqrt(dim), max(_SCORES // keys, 1)
    dq, dk, dv = (torch.zeros_like(tensor, dtype=torch.float64) for tensor in (q, k, v))
    at_keys = torch.arange(keys, device=q.device)
    for head in range(heads):
        key, value = k[head // group].double(), v[head // group].double()
        for first in range(0, queries, rows):
            some, slope = (tensor[head, first : first + rows].double() for tensor in (q, dout))
            scores = (some @ key.T).mul_(scale)
            if mask.causal:
                places = torch.arange(first, first + len(some), device=q.device)[:, None]
                hidden = ~mask.seen(places + (keys - queries), at_keys)
                scores.masked_fill_(hidden, float("-inf"))
            weights = torch.softmax(scores, -1)
            dv[head // group] += weights.T @ slope
            slopes = slope @ value.T
            slopes -= (slopes * weights).sum(-1, keepdim=True)
            slopes *= weights * scale
            dq[head, first : first + rows] = slopes @ key
            dk[head // group] += slopes.T @ some
    return dq, dk, dv


def spread_lengths(tokens: int, sequences: int) -> list[int]:
    """Lengths of `sequences` sequences, at least 1 and `tokens` together, on a straight line."""
    spare = tokens - sequences
    ends = [spare * (at * at) // (sequences * sequences) for at in range(sequences + 1)]
    return [1 + last - first for first, last in pairwise(ends)]


def longest_length(tokens: int, sequences: int) -> int:
    """The largest of `spread_lengths`, or one more."""
    return 1 + ceil_div((tokens - sequences) * (2 * sequences - 1), sequences * sequences)


def shuffled(lengths: list[int], source: torch.Generator | None, device: str) -> torch.Tensor:
    """The lengths in an order drawn from the generator, as int32 on the device."""
    import torch

    order = torch.randperm(len(lengths), generator=source, device=device)
    return torch.tensor(lengths, dtype=torch.int32, device=device)[order]


def _triangle(size: int) -> int:
    return size * (size + 1) // 2
