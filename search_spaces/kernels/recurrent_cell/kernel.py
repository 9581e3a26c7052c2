"""One step of an LSTM or GRU: the products of inputs and states, and the gates, in one launch.

Bound by reading the weights for small batches, by arithmetic for large ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import triton

from search_spaces.block_sizes import ceil_div
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.features import tile_features
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    TENSOR_FLOATS,
    block_parameter,
    fits_shared,
    integer,
    programs_at_once,
    threads,
)
from search_spaces.kernels.recurrent_cell.problem import (
    CELLS,
    Cudnn,
    gates,
    has_cell_state,
    make_inputs,
    names,
    rounding,
    step,
    vendors,
)
from search_spaces.kernels.recurrent_cell.triton_kernels import cell_kernel
from search_spaces.params import Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch

_MOST_BATCH, _MOST_SIZE = 2**20, 16384
#: float32 sums that a thread holds at most: of a warp group, whose operands stay in shared memory,
#: and of warps that load operands into registers.
_MOST_SUMS, _MOST_WITH_OPERANDS = 128, 64
#: Usual tiles without tuning: rows, units and terms at a time, warps and stages.
_USUAL = (
    (128, 64, 64, 8, 4),
    (64, 32, 64, 4, 4),
    (16, 32, 128, 4, 4),
    (16, 32, 32, 4, 3),
    (16, 16, 128, 2, 4),
    (16, 16, 32, 2, 3),
    (16, 16, 32, 2, 2),
)


class RecurrentCell(Kernel):
    """One step of a recurrent cell from x[batch, input] and states [batch, hidden]; dims batch,
    input, hidden, cell, dtype and, optionally, tolerance (relative error).

    cell: lstm, which has a second state c, or gru. Weights and biases are those of torch's
    LSTMCell and GRUCell: w_ih[gates * hidden, input], w_hh[gates * hidden, hidden], b_ih and b_hh,
    with 4 or 3 gates.
    """

    name = "recurrent_cell"
    edges = ALL_EDGES
    dims = Dims(
        batch=_MOST_BATCH,
        input=_MOST_SIZE,
        hidden=_MOST_SIZE,
        cell=CELLS,
        dtype=DTYPES,
        tolerance=float,
    )
    small = {"batch": 19, "input": 83, "hidden": 37}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (64, 1024, 1024, "lstm", "float16"),  # GNMT
            (512, 1024, 1024, "lstm", "float16"),
            (16, 640, 640, "lstm", "bfloat16"),  # Parakeet RNN-T's prediction network
            (32, 768, 1024, "lstm", "float16"),  # Tacotron 2's attention
            (64, 2560, 2560, "gru", "float16"),  # Deep Speech 2
            (1, 896, 896, "gru", "bfloat16"),  # WaveRNN, one voice
            (256, 4096, 4096, "lstm", "bfloat16"),  # OpenAI Five
            (512, 100, 100, "gru", "float32"),  # GRU4Rec
            (80, 400, 1150, "lstm", "float32"),  # AWD-LSTM
        )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        return make_inputs(workload, seed, device)

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        spec = workload.spec("batch", "hidden")
        return dict.fromkeys(_outputs(workload), spec)

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = (inputs[name].double() for name in names(workload))
        return dict(zip(_outputs(workload), step(*exact), strict=True))

    def tolerance(self, workload: Workload) -> Tolerance:
        return rounding(workload)

    def flops(self, workload: Workload) -> float:
        batch, inner, hidden = workload.sizes("batch", "input", "hidden")
        rows = gates(workload) * hidden
        return 2.0 * batch * rows * (inner + hidden)

    def space(self, workload: Workload) -> SearchSpace:
        longest = max(workload.size("input"), workload.size("hidden"))
        single = workload["dtype"] == "float32"
        parameters: list[Parameter] = [
            block_parameter("BLOCK_M", workload.size("batch"), 16, 128),
            block_parameter("BLOCK_N", workload.size("hidden"), 16, 64),
            block_parameter("BLOCK_K", longest, 16 if single else 32, 32 if single else 128),
            PowerOfTwo("num_warps", 2, 8),
            Integer("num_stages", 2, 5),
        ]
        if single:
            parameters.append(Choice("precision", ("ieee", "tf32x3", "tf32")))
        return SearchSpace(
            parameters,
            CONSTRAINTS,
            kernel=self.name,
            features=features,
            admits=("BLOCK_M", "BLOCK_N", "BLOCK_K"),
        )

    def default_config(self, workload: Workload, device: Device) -> Config:
        return _default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        pointers = (
            *(tensors[name] for name in ("x", "h")),
            tensors.get("c"),
            *(tensors[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh", "h_out")),
            tensors.get("c_out"),
        )
        constants = {
            "INPUT": workload.size("input"),
            "HIDDEN": workload.size("hidden"),
            "LSTM": has_cell_state(workload),
            **{name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
            "PRECISION": config.get("precision", "ieee"),
            "INTERPRETED": bool(triton.knobs.runtime.interpret),
            **{name: config[name] for name in ("num_warps", "num_stages")},
        }
        arguments = (*pointers, workload.size("batch"))
        return [Launch(cell_kernel, (_programs(config, workload),), arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        outputs, arguments = _outputs(workload), names(workload)

        def eager(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return step(*inputs)

        def one_step(cudnn: Cudnn) -> Callable[..., tuple[torch.Tensor, ...]]:
            def run(x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
                out, *states = cudnn(x[None], *rest)
                return (out[0], *states)

            return run

        return {
            "eager": named(outputs, eager, *arguments),
            "compile": named(outputs, compiled(eager), *arguments),
            "cell": named(outputs, _torch_cell, *arguments),
            **vendors(workload, outputs, one_step),
        }


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of a launch's tiles."""
    return tile_features(
        device,
        shared_bytes=_stage_bytes(config, workload) * integer(config, "num_stages"),
        sums=_sums(config, workload),
        warps=integer(config, "num_warps"),
        programs=_programs(config, workload),
    )


def _outputs(workload: Workload) -> tuple[str, ...]:
    return ("h_out", "c_out") if has_cell_state(workload) else ("h_out",)


def _torch_cell(x: torch.Tensor, h: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """torch's own cell, which has two products and one kernel for all gates."""
    import torch

    weights, c = rest[:4], rest[4:]
    if c:
        new_h, new_c = torch.lstm_cell(x, (h, c[0]), *weights)
        return new_h, new_c
    return (torch.gru_cell(x, h, *weights),)


def _default_point(bound: BoundSpace) -> Config:
    """The largest usual tile of which every second multiprocessor has one, else the smallest.

    A step of one cell waits for its weights: more programs have more of them on their way, and
    float32 by three parts of TF32 is as precise on tensor cores.
    """
    least = programs_at_once(bound.device) // 2
    found = [config for config in _usual_configs(bound) if bound.feasible(config)]
    parts = [config for config in found if config.get("precision") != "ieee"]
    for config in parts or found:
        if _programs(config, bound.workload) >= least:
            return config
    if found:
        # The first of equal tiles has the longest steps.
        return min(parts or found, key=lambda config: _sums(config, bound.workload))
    bound.require_feasible()
    return next(bound.enumerate())


def _usual_configs(bound: BoundSpace) -> Iterator[Config]:
    """The usual tiles, cut to the problem; of float32 in parts of TF32 first."""
    most = {item.name: item.values()[-1] for item in bound.parameters}
    for precision in ("tf32x3", "ieee") if "precision" in most else (None,):
        for tile in _USUAL:
            blocks = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile[:3], strict=True))
            cut = {name: min(size, int(str(most[name]))) for name, size in blocks.items()}
            config = bound.complete({**cut, "num_warps": tile[3], "num_stages": tile[4]})
            yield config if precision is None else {**config, "precision": precision}


def _programs(config: Config, workload: Workload) -> int:
    rows = ceil_div(workload.size("batch"), integer(config, "BLOCK_M"))
    return rows * ceil_div(workload.size("hidden"), integer(config, "BLOCK_N"))


def _sums(config: Config, workload: Workload) -> int:
    """Sums of a program: those of a GRU's new gate are two."""
    return 4 * integer(config, "BLOCK_M") * integer(config, "BLOCK_N")


def _stage_bytes(config: Config, workload: Workload) -> int:
    """Shared memory of one stage: a tile of the inputs, and one of each gate's weights."""
    rows = integer(config, "BLOCK_M") + gates(workload) * integer(config, "BLOCK_N")
    return rows * integer(config, "BLOCK_K") * ELEMENT_BYTES[workload.text("dtype")]


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    return fits_shared(_stage_bytes(config, workload) * integer(config, "num_stages"), device)


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    grouped = integer(config, "num_warps") >= 4 and workload["dtype"] != "float32"
    most = _MOST_SUMS if grouped else _MOST_WITH_OPERANDS
    return _sums(config, workload) <= most * threads(config, device)


def _pipelines(config: Config, workload: Workload, device: Device) -> bool:
    longest = max(workload.size("input"), workload.size("hidden"))
    steps = ceil_div(longest, integer(config, "BLOCK_K"))
    return integer(config, "num_stages") <= max(2, steps)


CONSTRAINTS = (
    BLOCK_EXISTS,
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    Constraint("registers", _fits_registers, "a thread would hold too many sums"),
    Preference("pipeline", _pipelines, "a program has too few steps to load so far ahead"),
    TENSOR_FLOATS,
)
