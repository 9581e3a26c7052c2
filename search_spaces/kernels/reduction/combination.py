"""The launch that combines partial results, whichever family found them. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.kernel import Launch
from search_spaces.kernels.reduction.triton_kernels import combine_kernel

if TYPE_CHECKING:
    import torch

#: Partial results that a program combines at a time, and the fewest and most results of one.
_COMBINED, _LEAST_RESULTS, _MOST_RESULTS = 2048, 8, 256


def combining(
    value: torch.Tensor | None,
    place: torch.Tensor | None,
    out: torch.Tensor,
    operation: str,
    splits: int,
    results: int,
    length: int = 1,
) -> Launch:
    """`out[results]` from value[splits, results] and, for argmax, their places; splits is a power
    of two. length: the elements of a mean."""
    block = min(max(_COMBINED // splits, _LEAST_RESULTS), _MOST_RESULTS)
    block = min(block, next_power_of_two(results))
    constants = {"OPERATION": operation, "SPLITS": splits, "BLOCK": block, "num_warps": 4}
    arguments = (value, place, out, results, length)
    return Launch(combine_kernel, (ceil_div(results, block),), arguments, constants)
