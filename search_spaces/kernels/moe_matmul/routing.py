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


def most_blocks(workload: Workload, block: int) -> int:
    """Blocks of slots if as many experts as possible have a part of one."""
    slots = slot_count(workload)
    reached = min(workload.size("experts"), slots)
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
    """All slots, ordered by expert, and how many slots each expert has, both int64."""
    import torch

    flat = ids.reshape(-1).long()
    return torch.argsort(flat, stable=True), torch.bincount(flat, minlength=experts)


def block_order(
    ids: torch.Tensor, experts: int, block: int, blocks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots in whole blocks of one expert, int32 [blocks * block], and the expert of each block,
    int32 [blocks]. Places without a slot have the number of slots, blocks without one -1."""
    import torch

    ordered, counts = slots_by_expert(ids, experts)
    per_expert = (counts + block - 1) // block
    expert = ids.reshape(-1).long()[ordered]
    # The rank of a slot among those of its expert, behind the whole blocks of earlier experts.
    rank = torch.arange(len(ordered), device=ids.device) - (counts.cumsum(0) - counts)[expert]
    place = (per_expert.cumsum(0) - per_expert)[expert] * block + rank
    order = torch.full((blocks * block,), len(ordered), dtype=torch.int32, device=ids.device)
    order[place] = ordered.int()
    of_block = torch.full((blocks,), -1, dtype=torch.int32, device=ids.device)
    numbers = torch.arange(experts, dtype=torch.int32, device=ids.device)
    used = torch.repeat_interleave(numbers, per_expert)
    of_block[: len(used)] = used
    return order, of_block


def _shares(experts: int) -> list[float]:
    """The share of each expert of all choices, the most popular first."""
    weights = [1 / (rank + experts / 4) for rank in range(experts)]
    total = sum(weights)
    return [weight / total for weight in weights]
