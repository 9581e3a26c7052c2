"""1-D causal depthwise convolution of sequences, as state space models have it before their scan.

Memory-bound: the least traffic is one read and one write of the sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Preference
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.causal_convolution.triton_kernels import (
    channels_first_kernel,
    channels_last_kernel,
)
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.limits import BLOCK_EXISTS, fits_registers, integer, keeps_threads_busy
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

LAYOUTS = ("blc", "bcl")
_NARROWEST, _WIDEST = 2, 4
_MOST_SIZE = 65535
#: Steps of all sequences, and rows of all channels, whose numbers are 32-bit integers.
_MOST_NUMBERED = 2**31 - 2**16
#: Results that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 2
_WORD_BYTES = 16


class CausalConvolution(Kernel):
    """Convolution of every channel of a sequence with its own kernel, which sees no later steps;
    dims batch, length, channels, width, layout, bias, silu and dtype.

    width: taps of the kernel, 2 to 4. layout: blc is x[batch, length, channels], bcl is
    x[batch, channels, length]; out is alike. bias: whether each channel has one. silu: whether the
    result goes through x sigmoid(x). The weights are [channels, width], as in Mamba.
    """

    name = "causal_convolution"
    edges = SPECIAL_EDGES
    dims = Dims(
        batch=_MOST_SIZE,
        length=2**24,
        channels=_MOST_SIZE,
        width=tuple(range(_NARROWEST, _WIDEST + 1)),
        layout=LAYOUTS,
        bias=bool,
        silu=bool,
        dtype=DTYPES,
    )
    small = {"batch": 2, "length": 69, "channels": 13}
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8, 2048, 1536, 4, "bcl", True, True, "float16"),  # Mamba-130m
            (4, 4096, 5120, 4, "bcl", True, True, "bfloat16"),  # Mamba-2.8b
            (4, 4096, 5376, 4, "blc", True, True, "bfloat16"),  # Mamba-2 2.7b
            (1, 16384, 8192, 4, "bcl", True, True, "bfloat16"),  # Falcon-Mamba 7B
            (2, 8192, 8192, 4, "blc", True, True, "bfloat16"),  # Jamba 1.5 Mini
            (2, 8192, 8192, 4, "blc", False, True, "bfloat16"),  # Qwen3-Next 80B
            (16, 1024, 2304, 3, "blc", True, False, "float16"),  # Hyena
            (2, 2048, 5120, 4, "bcl", True, True, "float32"),
            (3, 1021, 389, 2, "bcl", True, True, "float32"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        batch = workload.size("batch")
        for name in ("length", "channels"):
            if batch * workload.size(name) > _MOST_NUMBERED:
                raise WorkloadError(
                    f"{self.name} [{workload.key}]: batch x {name} is more than {_MOST_NUMBERED}",
                    "give a smaller batch",
                )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        # Scaled so that outputs are of the order of one.
        scale = 1 / sqrt(workload.size("width"))
        found = {
            "x": _sequences(workload),
            "weight": workload.spec("channels", "width", scale=scale),
        }
        return found | ({"bias": workload.spec("channels", scale=0.5)} if workload["bias"] else {})

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": _sequences(workload)}

    def flops(self, workload: Workload) -> float:
        channels, width = workload.sizes("channels", "width")
        elements = workload.size("batch") * workload.size("length") * channels
        each = 2.0 * width + 4.0 * bool(workload["silu"])
        return each * elements

    def space(self, workload: Workload) -> SearchSpace:
        channels = next_power_of_two(workload.size("channels"))
        length = next_power_of_two(workload.size("length"))
        if _channels_last(workload):
            parameters: list[Parameter] = [
                PowerOfTwo("BLOCK_T", 8, max(8, min(256, length))),
                PowerOfTwo("BLOCK_C", min(16, channels), min(512, channels)),
                PowerOfTwo("steps", 1, 8),
            ]
        else:
            least = _word(workload)
            parameters = [
                PowerOfTwo("BLOCK_T", max(32, least), max(32, min(4096, length))),
                PowerOfTwo("BLOCK_C", 1, min(16, channels)),
            ]
        parameters.append(PowerOfTwo("num_warps", 1, 8))
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK_T", "BLOCK_C"))

    def default_config(self, workload: Workload, device: Device) -> Config:
        return _default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        batch, length = workload.sizes("batch", "length")
        channels = workload.size("channels")
        block_t, block_c = integer(config, "BLOCK_T"), integer(config, "BLOCK_C")
        constants: dict[str, Any] = {
            "LENGTH": length,
            "CHANNELS": channels,
            "WIDTH": workload.size("width"),
            "BIAS": bool(workload["bias"]),
            "SILU": bool(workload["silu"]),
            "BLOCK_T": block_t,
            "BLOCK_C": block_c,
            "num_warps": config["num_warps"],
        }
        pointers = (tensors["x"], tensors["weight"], tensors.get("bias"), tensors["out"])
        if _channels_last(workload):
            steps = integer(config, "steps")
            strips = batch * ceil_div(length, steps)
            grid = (ceil_div(strips, block_t // steps), ceil_div(channels, block_c))
            constants["STEPS"] = steps
            return [Launch(channels_last_kernel, grid, (*pointers, strips), constants)]
        rows = batch * channels
        constants["WORD"] = _word(workload)
        programs = ceil_div(rows, block_c) * ceil_div(length, block_t)
        return [Launch(channels_first_kernel, (programs,), (*pointers, rows), constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(
            x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            return _convolved(workload, x, weight, bias)

        return eager


def _channels_last(workload: Workload) -> bool:
    return workload.text("layout") == "blc"


def _word(workload: Workload) -> int:
    """Elements of the widest load."""
    return _WORD_BYTES // ELEMENT_BYTES[workload.text("dtype")]


def _sequences(workload: Workload) -> TensorSpec:
    batch, length = workload.sizes("batch", "length")
    inner = (workload.size("channels"), length)
    return workload.spec(batch, *(reversed(inner) if _channels_last(workload) else inner))


def _convolved(
    workload: Workload, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The result by plain torch, as Mamba's own reference has it."""
    import torch

    last = _channels_last(workload)
    channels, width = weight.shape
    rows = x.transpose(1, 2) if last else x
    convolution = torch.nn.functional.conv1d
    out = convolution(rows, weight[:, None], bias, padding=width - 1, groups=channels)
    out = out[..., : rows.shape[-1]]
    if workload["silu"]:
        out = torch.nn.functional.silu(out)
    return out.transpose(1, 2) if last else out


def _default_point(bound: BoundSpace) -> Config:
    """A word of 16 bytes for each of 128 threads; in channels, strips of four steps."""
    sizes = {item.name: int(str(item.values()[-1])) for item in bound.parameters}
    word = _word(bound.workload)
    for warps in (4, 2, 1):
        held = warps * (bound.device.warp_size or 32) * word
        if _channels_last(bound.workload):
            block_c = min(64, sizes["BLOCK_C"])
            block_t = max(8, min(held // block_c * 4, sizes["BLOCK_T"]))
        else:
            block_t = min(held, sizes["BLOCK_T"])
            block_c = max(1, min(held // block_t, sizes["BLOCK_C"]))
        config = bound.complete(
            {"BLOCK_T": block_t, "BLOCK_C": block_c, "steps": 4, "num_warps": warps}
        )
        if bound.feasible(config):
            return config
    bound.require_feasible()
    return next(bound.enumerate())


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_T") * integer(config, "BLOCK_C")


def _has_strips(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "steps") <= integer(config, "BLOCK_T")


CONSTRAINTS = (
    BLOCK_EXISTS,
    Preference("strips", _has_strips, "a program would have less than one strip of steps"),
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
)
