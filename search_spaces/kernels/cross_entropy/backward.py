"""The gradient of the cross-entropy of each row of logits.

Memory-bound: the least traffic is one read of the logits and one write of their gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Preference
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.cross_entropy.kernel import CrossEntropy
from search_spaces.kernels.cross_entropy.triton_kernels import cross_entropy_backward_kernel
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import BLOCK_EXISTS, fits_registers, integer, keeps_threads_busy
from search_spaces.kernels.long_rows import reached_places, vector_of
from search_spaces.params import Boolean, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

#: Logits that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 2
_LEAST_BLOCK, _MOST_BLOCK, _MOST_STEPS = 256, 16384, 64
#: The longest row whose smallest blocks fit into the second axis of a grid.
_LONGEST = 2**23
#: Difference, exponential, product and the target's difference of one logit.
_FLOPS = 4.0
_INPUTS = ("x", "target", "lse", "grad")


class CrossEntropyBackward(Kernel):
    """out[rows, cols] = grad (softmax(x) - onehot(target)) of logits x[rows, cols]; dims rows, cols
    and dtype.

    lse is the logarithm of the sum of exponentials of each row, as the forward pass leaves it, and
    grad the gradient of each row's loss; both are float32. out has the dtype of the logits.
    """

    name = "cross_entropy_backward"
    edges = ALL_EDGES
    dims = Dims(rows=int, cols=_LONGEST, dtype=DTYPES)
    small = {"rows": 7, "cols": 509}
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return CrossEntropy().workloads()

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        rows, cols = workload.sizes("rows", "cols")
        source, logits = generator(seed, device), workload.spec(rows, cols)
        x = random_tensor(logits, source, device, scale=2.0)
        target = random_tensor(workload.spec(rows, dtype="int64"), source, device, limits=(0, cols))
        grad = random_tensor(workload.spec(rows, dtype="float32"), source, device)
        lse = random_tensor(workload.spec(rows, dtype="float32"), None, device)
        if device != "meta":
            lse = x.float().logsumexp(1)
        return {"x": x, "target": target, "lse": lse, "grad": grad}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        x, target, lse, grad = (inputs[name] for name in _INPUTS)
        shares = x.double().sub_(lse.double()[:, None])
        return {"out": _in_place(shares, target, grad.double())}

    def flops(self, workload: Workload) -> float:
        rows = workload.size("rows")
        logits = rows * workload.size("cols")
        return _FLOPS * logits

    def space(self, workload: Workload) -> SearchSpace:
        cols = workload.size("cols")
        widest = max(_LEAST_BLOCK, min(_MOST_BLOCK, next_power_of_two(cols)))
        steps = min(_MOST_STEPS, next_power_of_two(ceil_div(cols, _LEAST_BLOCK)))
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK", _LEAST_BLOCK, widest),
            PowerOfTwo("num_warps", 1, 16),
            PowerOfTwo("steps", 1, steps),
            Integer("stages", 1, 4),
            Boolean("stream"),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK", "steps"))

    def default_config(self, workload: Workload, device: Device) -> Config:
        """One block of 4,096 logits by 8 warps, fewer where rows are shorter."""
        block = max(_LEAST_BLOCK, min(4096, next_power_of_two(workload.size("cols"))))
        warps = max(1, min(8, block // (_LEAST_HELD * (device.warp_size or 32))))
        return {"BLOCK": block, "num_warps": warps, "steps": 1, "stages": 1, "stream": False}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        constants = {
            "COLS": workload.size("cols"),
            "BLOCK": config["BLOCK"],
            "VEC": vector_of(workload),
            "STEPS": config["steps"],
            "LOAD_STAGES": config["stages"],
            "STREAM": config["stream"],
            "num_warps": config["num_warps"],
        }
        parts = ceil_div(_blocks(config, workload), integer(config, "steps"))
        arguments = tuple(tensors[name] for name in (*_INPUTS, "out"))
        grid = (workload.size("rows"), parts)
        return [Launch(cross_entropy_backward_kernel, grid, arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        """`eager` works in place; `compile` has no scattered write and fuses all."""

        def eager(
            x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor
        ) -> torch.Tensor:
            return _in_place(x - lse[:, None], target, grad).to(x.dtype)

        def fused(
            x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor
        ) -> torch.Tensor:
            import torch

            places = torch.arange(x.shape[1], device=x.device)
            shares = (x.float() - lse[:, None]).exp() - (places == target[:, None]).float()
            return (shares * grad[:, None]).to(x.dtype)

        return {
            "eager": named("out", eager, *_INPUTS),
            "compile": named("out", compiled(fused), *_INPUTS),
        }


def _in_place(shares: torch.Tensor, target: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """grad (exp(shares) - onehot(target)), in the memory of `shares`."""
    shares.exp_()
    shares.scatter_add_(1, target[:, None], shares.new_full((len(target), 1), -1.0))
    return shares.mul_(grad[:, None])


def _block(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK")


def _blocks(config: Config, workload: Workload) -> int:
    return ceil_div(reached_places(workload), integer(config, "BLOCK"))


def _has_steps(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "steps") < 2 * _blocks(config, workload)


def _pipelines_steps(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "stages") <= integer(config, "steps")


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_block, _MOST_HELD),
    keeps_threads_busy(_block, _LEAST_HELD),
    Preference("steps", _has_steps, "a row has fewer blocks"),
    Preference("pipeline", _pipelines_steps, "a program has too few blocks to load so far ahead"),
)
