"""What the linear cross-entropy has in common forward and backward: workloads and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log, sqrt
from typing import TYPE_CHECKING, ClassVar

from search_spaces.dims import Dims
from search_spaces.kernel import Kernel
from search_spaces.kernels.dtypes import ELEMENT_BYTES, ROUNDING
from search_spaces.records import Workload
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")
#: The standard deviation of the logits: some words are likely, so that all parts of a gradient
#: count.
_SPREAD = 2.0
#: Logits that inputs and references hold at a time.
_LOGITS = 2**28


class LinearCrossEntropyKernel(Kernel):
    """A kernel of hidden[tokens, dim], weight[vocab, dim] and target[tokens]."""

    #: Names of the float32 inputs that a kernel has besides, one number for each token.
    per_token: ClassVar[tuple[str, ...]] = ()

    dims = Dims(tokens=2**24, dim=2**16, vocab=2**24, dtype=DTYPES)
    small = {"tokens": 21, "dim": 39, "vocab": 301}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 4096, 128256, "bfloat16"),  # Llama-3 8B
            (4096, 8192, 128256, "bfloat16"),  # Llama-3 70B
            (8192, 2048, 151936, "bfloat16"),  # Qwen3 1.7B
            (4096, 7168, 129280, "bfloat16"),  # DeepSeek-V3
            (4096, 2880, 201088, "bfloat16"),  # GPT-OSS 120B
            (4096, 4096, 32000, "bfloat16"),  # Mixtral
            (1024, 1280, 51866, "float16"),  # Whisper large-v3
            (333, 771, 30522, "float16"),
        )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        tokens, dim, vocab = workload.sizes("tokens", "dim", "vocab")
        source = generator(seed, device)
        scale = sqrt(_SPREAD / sqrt(dim))
        inputs = {
            "hidden": random_tensor(workload.spec(tokens, dim), source, device, scale),
            "weight": random_tensor(workload.spec(vocab, dim), source, device, scale),
            "target": random_tensor(
                workload.spec(tokens, dtype="int64"), source, device, limits=(0, vocab)
            ),
        }
        for name in self.per_token:
            inputs[name] = random_tensor(workload.spec(tokens, dtype="float32"), source, device)
        if "lse" in self.per_token and device != "meta":
            weight = inputs["weight"].float()
            for rows in token_blocks(workload):
                logits = inputs["hidden"][rows].float() @ weight.T
                inputs["lse"][rows] = logits.logsumexp(1)
        return inputs


def moved_bytes(workload: Workload) -> int:
    """Bytes of hidden and weight, read or written once."""
    tokens, dim, vocab = workload.sizes("tokens", "dim", "vocab")
    return (tokens + vocab) * dim * ELEMENT_BYTES[workload.text("dtype")]


def product_flops(workload: Workload) -> float:
    """Operations of one product of all tokens, words and elements of a row."""
    tokens, dim, vocab = workload.sizes("tokens", "dim", "vocab")
    return 2.0 * tokens * dim * vocab


def logit_rounding(workload: Workload) -> float:
    """Relative error of a loss whose logits, of the order of `_SPREAD`, are rounded to the dtype,
    as those of torch's linear layer are. The loss is of the order of the vocabulary's logarithm."""
    return _SPREAD * ROUNDING[workload.text("dtype")] / max(1.0, log(workload.size("vocab")))


def token_blocks(workload: Workload) -> Iterator[slice]:
    """Tokens, as many at a time as have 2**28 logits."""
    tokens, _, vocab = workload.sizes("tokens", "dim", "vocab")
    rows = max(1, _LOGITS // vocab)
    return (slice(first, min(first + rows, tokens)) for first in range(0, tokens, rows))


def exact(tensors: Mapping[str, torch.Tensor], *names: str) -> tuple[torch.Tensor, ...]:
    """These tensors in float64."""
    return tuple(tensors[name].double() for name in names)
