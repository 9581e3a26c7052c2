"""Routing of tokens to experts, and the order of their slots for each BLOCK_SIZE_M.

A slot is one expert of one token: slot s is of token s // top_k. Popularity of experts is uneven,
five to one from the first to the last, as in trained models with a balancing loss; which experts
are popular is random.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from search_spaces.records import Workload

if TYPE_CHECKING:
    import torch


def slot_count(workload: Workload) -> int:
    """Rows of the output: an expert of a token each."""
    return workload.size("tokens") * workload.size("top_k")


def active_experts(workload: Workload) -> int:
    """Experts that have a token: as many as are expected, so that the traffic of the weights
    depends on the workload alone."""
    tokens, top_k = workload.sizes("tokens", "top_k")
    chosen = (min(1.0, top_k * share) for share in _shares(workload.size("experts")))
    expected = round(sum(1 - (1 - chance) ** tokens for chance in chosen))
    return max(top_k, min(expected, workload.size("experts"), slot_count(workload)))


def most_blocks(slots: int, experts: int, block: int) -> int:
    """Blocks of slots if as many experts as possible have a part of one."""
    reached = min(experts, slots)
    return reached + (slots - reached) // block


def routed(workload: Workload, source: torch.Generator | None, device: str) -> torch.Tensor:
    """The experts of each token, all different, as int32 [tokens, top_k]; some of each active one.

    Experts are drawn without replacement by the largest of their log shares plus Gumbel noise.
    """
    import torch

    tokens, top_k, experts = workload.sizes("tokens", "top_k", "experts")
    shares = torch.tensor(_shares(experts), device=device).log()

    def noise(*shape: int) -> torch.Tensor:
        return -torch.empty(shape, device=device).exponential_(generator=source).log()

    active = active_experts(workload)
    chosen = (shares + noise(experts)).topk(active).indices
    keys = torch.full((tokens, experts), float("-inf"), device=device)
    keys[:, chosen] = (shares + noise(tokens, experts))[:, chosen]
    at = torch.arange(active, device=device)
    keys[at // top_k, chosen] = float("inf")
    renamed = torch.randperm(experts, generator=source, device=device)
    return renamed[keys.topk(top_k, dim=1).indices].int()


def slots_by_expert(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All slots, ordered by expert, and where those of each expert end, both int32.

    Like the functions below, it does not wait for the device.
    """
    import torch

    ordered, slots = ids.reshape(-1).sort(stable=True)
    numbers = torch.arange(experts, dtype=ids.dtype, device=ids.device)
    return slots.int(), torch.searchsorted(ordered, numbers, right=True, out_int32=True)


def block_places(
    ends: torch.Tensor, slots: int, block: int, blocks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The place of each slot, in order of experts, in whole blocks of one expert, int64; and the
    expert of each block, int32 [blocks], -1 of those without a slot."""
    import torch

    begins = torch.nn.functional.pad(ends[:-1], (1, 0))
    per_expert = (ends - begins + block - 1) // block
    block_ends = per_expert.cumsum(0)
    at = torch.arange(slots, dtype=ends.dtype, device=ends.device)
    expert = torch.searchsorted(ends, at, right=True)
    place = (block_ends - per_expert)[expert] * block + (at - begins[expert])
    numbers = torch.arange(blocks, dtype=block_ends.dtype, device=ends.device)
    of_block = torch.searchsorted(block_ends, numbers, right=True, out_int32=True)
    return place, of_block.masked_fill(of_block == ends.shape[0], -1)


def block_order(
    ordered: torch.Tensor, ends: torch.Tensor, block: int, blocks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots in whole blocks of one expert, int32 [blocks * block], and the expert of each block.
    Places without a slot have the number of slots.

    ordered, ends: as `slots_by_expert` gives them.
    """
    slots = ordered.shape[0]
    place, of_block = block_places(ends, slots, block, blocks)
    order = ordered.new_full((blocks * block,), slots)
    return order.index_copy_(0, place, ordered), of_block


def _shares(experts: int) -> list[float]:
    """The share of each expert of all choices, the most popular first."""
    weights = [1 / (rank + experts / 4) for rank in range(experts)]
    total = sum(weights)
    return [weight / total for weight in weights]
