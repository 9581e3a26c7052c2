"""The gradients of the cross-entropy of a linear layer, from recomputed logits.

Bound by arithmetic: three products of tokens x vocab x dim, of which the first computes the logits
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import alignment, ceil_div
from search_spaces.kernel import Launch
from search_spaces.kernels.limits import integer
from search_spaces.kernels.linear_cross_entropy.problem import (
    LinearCrossEntropyKernel,
    exact,
    product_flops,
    token_blocks,
)
from search_spaces.kernels.linear_cross_entropy.space import (
    backward_space,
    default_point,
    slice_words,
)
from search_spaces.kernels.linear_cross_entropy.triton_kernels import (
    hidden_gradient_kernel,
    logit_gradient_kernel,
    weight_gradient_kernel,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch

_INPUTS = ("hidden", "weight", "target", "lse", "grad")


class LinearCrossEntropyBackward(LinearCrossEntropyKernel):
    """d_hidden[tokens, dim] and d_weight[vocab, dim] of the losses of linear_cross_entropy; dims
    tokens, dim, vocab and dtype.

    The inputs are those of the forward kernel, its lse and the gradient of each loss. The logits
    are computed again, one of `slices` slices of the vocabulary after the other; the gradient of a
    slice's logits is stored in the dtype. No atomics: results repeat.
    """

    name = "linear_cross_entropy_backward"
    edges = (
        "inf",
        "-inf",
        "nan",
        "zero",
        "tiny",
        "denormal",
        "half inf",
        "half -inf",
        "half nan",
    )
    elementwise = 4
    per_token = ("lse", "grad")

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        tokens, dim, vocab = workload.sizes("tokens", "dim", "vocab")
        return {
            "d_hidden": workload.spec(tokens, dim),
            "d_weight": workload.spec(vocab, dim),
        }

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        tokens, dim, _ = workload.sizes("tokens", "dim", "vocab")
        words = slice_words(workload, config)
        return {
            "slice": workload.spec(tokens, words),
            "sum": workload.spec(tokens, dim, dtype="float32"),
        }

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """In float64, some tokens at a time."""
        import torch

        hidden, weight, lse, grad = exact(inputs, "hidden", "weight", "lse", "grad")
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        for rows in token_blocks(workload):
            gradient = (hidden[rows] @ weight.T).sub_(lse[rows, None]).exp_()
            target = inputs["target"][rows, None]
            gradient.scatter_add_(1, target, gradient.new_full(target.shape, -1.0))
            gradient *= grad[rows, None]
            d_hidden[rows] = gradient @ weight
            d_weight += gradient.T @ hidden[rows]
        return {"d_hidden": d_hidden, "d_weight": d_weight}

    def flops(self, workload: Workload) -> float:
        return 3 * product_flops(workload)

    def space(self, workload: Workload) -> SearchSpace:
        return backward_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        words = slice_words(workload, config)
        starts = range(0, workload.size("vocab"), words)
        return [
            launch for first in starts for launch in _slice(workload, config, tensors, first, words)
        ]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        """`eager` works in place; `compile` has no scattered write, and fuses all in between."""

        def eager(
            hidden: torch.Tensor,
            weight: torch.Tensor,
            target: torch.Tensor,
            lse: torch.Tensor,
            grad: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            import torch

            logits = torch.nn.functional.linear(hidden, weight).float()
            shares = logits.sub_(lse[:, None]).exp_()
            shares.scatter_add_(1, target[:, None], shares.new_full((len(target), 1), -1.0))
            gradient = shares.mul_(grad[:, None]).to(hidden.dtype)
            return gradient @ weight, gradient.T @ hidden

        def fused(
            hidden: torch.Tensor,
            weight: torch.Tensor,
            target: torch.Tensor,
            lse: torch.Tensor,
            grad: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            import torch

            logits = torch.nn.functional.linear(hidden, weight).float()
            words = torch.arange(weight.shape[0], device=weight.device)
            shares = (logits - lse[:, None]).exp() - (words == target[:, None]).float()
            gradient = (shares * grad[:, None]).to(hidden.dtype)
            return gradient @ weight, gradient.T @ hidden

        outputs = ("d_hidden", "d_weight")
        return {
            "eager": named(outputs, eager, *_INPUTS),
            "compile": named(outputs, compiled(fused), *_INPUTS),
        }


def _slice(
    workload: Workload, config: Config, tensors: Tensors, first: int, words: int
) -> list[Launch]:
    """The three launches of the slice from word `first` on."""
    tokens, dim, vocab = workload.sizes("tokens", "dim", "vocab")
    block_m, block_n, block_k = (integer(config, f"BLOCK_{name}") for name in "MNK")
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
    constants: dict[str, Any] = {name: config[name] for name in names}
    constants |= {"ALIGN": alignment(dim), "SLICE": words}
    even_dim = dim % block_n == 0
    known = min(words, vocab - first)
    rows, cols = ceil_div(tokens, block_m), ceil_div(dim, block_n)
    # The slice is written up to the end of the last block in which it is read.
    written = ceil_div(ceil_div(known, block_k) * block_k, block_n)
    last = (first, tokens, vocab, dim)
    hidden, weight, held = tensors["hidden"], tensors["weight"], tensors["slice"]
    return [
        Launch(
            logit_gradient_kernel,
            (rows * written,),
            (*(tensors[name] for name in _INPUTS), held, *last),
            {**constants, "EVEN_K": dim % block_k == 0},
        ),
        Launch(
            weight_gradient_kernel,
            (ceil_div(known, block_m) * cols,),
            (held, hidden, tensors["d_weight"], *last),
            {**constants, "EVEN_TOKENS": tokens % block_k == 0, "EVEN_DIM": even_dim},
        ),
        Launch(
            hidden_gradient_kernel,
            (rows * cols,),
            (held, weight, tensors["sum"], tensors["d_hidden"], *last),
            {**constants, "EVEN_DIM": even_dim},
        ),
    ]
