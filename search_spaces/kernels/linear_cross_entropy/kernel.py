"""The cross-entropy of a linear layer, forward: the loss of each token without stored logits.

Bound by arithmetic: one product of tokens x vocab x dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import alignment, ceil_div
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Launch, Tolerance
from search_spaces.kernels.limits import integer
from search_spaces.kernels.linear_cross_entropy.problem import (
    LinearCrossEntropyKernel,
    exact,
    logit_rounding,
    product_flops,
    token_blocks,
)
from search_spaces.kernels.linear_cross_entropy.space import default_point, forward_space
from search_spaces.kernels.linear_cross_entropy.triton_kernels import (
    combine_loss_kernel,
    partial_loss_kernel,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

_PARTIAL = ("top", "total", "chosen")
#: Parts and tokens of a program that merges results.
_COMBINED_PARTS, _COMBINED_TOKENS = 64, 16


class LinearCrossEntropy(LinearCrossEntropyKernel):
    """loss[tokens] and lse[tokens] of hidden[tokens, dim] and weight[vocab, dim]; dims tokens, dim,
    vocab and dtype.

    lse is the logarithm of the sum of exponentials of a token's logits hidden @ weight.T, loss is
    lse minus the target's logit; both are float32. The logits are float32 and are not stored.
    """

    name = "linear_cross_entropy"
    edges = SPECIAL_EDGES
    output = ("loss", "lse")

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        spec = workload.spec("tokens", dtype="float32")
        return {"loss": spec, "lse": spec}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        spec = workload.spec(_parts(workload, config), "tokens", dtype="float32")
        return dict.fromkeys(_PARTIAL, spec)

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """In float64, some tokens at a time."""
        import torch

        hidden, weight = exact(inputs, "hidden", "weight")
        loss, lse = torch.empty_like(hidden[:, 0]), torch.empty_like(hidden[:, 0])
        for rows in token_blocks(workload):
            logits = hidden[rows] @ weight.T
            lse[rows] = logits.logsumexp(1)
            loss[rows] = lse[rows] - logits.gather(1, inputs["target"][rows, None])[:, 0]
        return {"loss": loss, "lse": lse}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The error of rounding the logits, which eager torch makes and variants do not."""
        relative = logit_rounding(workload)
        return Tolerance(relative, 4 * relative)

    def flops(self, workload: Workload) -> float:
        return product_flops(workload)

    def space(self, workload: Workload) -> SearchSpace:
        return forward_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        tokens, dim, vocab = workload.sizes("tokens", "dim", "vocab")
        parts = _parts(workload, config)
        partial = tuple(tensors[name] for name in _PARTIAL)
        inputs = tuple(tensors[name] for name in ("hidden", "weight", "target"))
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
        constants = {
            **{name: config[name] for name in names},
            "ALIGN": alignment(dim),
            "STEPS": config["steps"],
            "EVEN_K": dim % integer(config, "BLOCK_K") == 0,
        }
        grid = (ceil_div(tokens, integer(config, "BLOCK_M")) * parts,)
        arguments = (*inputs, *partial, tokens, vocab, dim, parts)
        combined = {"BLOCK_P": _COMBINED_PARTS, "BLOCK_T": _COMBINED_TOKENS, "num_warps": 4}
        results = (*partial, tensors["loss"], tensors["lse"], tokens, parts)
        return [
            Launch(partial_loss_kernel, grid, arguments, constants),
            Launch(combine_loss_kernel, (ceil_div(tokens, _COMBINED_TOKENS),), results, combined),
        ]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(
            hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            import torch

            logits = torch.nn.functional.linear(hidden, weight).float()
            lse = logits.logsumexp(1)
            return lse - logits.gather(1, target[:, None])[:, 0], lse

        return eager


def _parts(workload: Workload, config: Config) -> int:
    blocks = ceil_div(workload.size("vocab"), integer(config, "BLOCK_N"))
    return ceil_div(blocks, integer(config, "steps"))
