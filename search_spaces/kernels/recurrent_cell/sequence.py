"""A whole sequence of an LSTM or GRU of few units, with the recurrent weights held on chip.

Bound by the latency of a step: its product has to wait for the gates of the step before. The
products of all inputs are made beforehand by a launch of the convolution family's kernel, of which
a matrix product is a special case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import triton

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.convolution.triton_kernels import convolution_kernel
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.images import Windows
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    TENSOR_FLOATS,
    block_parameter,
    fits_shared,
    has_capability,
    integer,
    threads,
)
from search_spaces.kernels.recurrent_cell.problem import (
    CELLS,
    gates,
    has_cell_state,
    make_inputs,
    names,
    rounding,
    step,
    vendors,
)
from search_spaces.kernels.recurrent_cell.triton_kernels import sequence_kernel
from search_spaces.params import Boolean, Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch

_MOST_STEPS, _MOST_BATCH, _MOST_INPUT = 2**20, 2**20, 16384
#: Rows of all steps, whose numbers are 32-bit integers.
_MOST_ROWS = 2**31 - 2**16
#: Recurrent weights that a program can hold, in bytes.
_MOST_WEIGHTS = 128 * 1024
#: Registers of a thread besides what is counted, the most it may have, and those of a block.
_OTHER_REGISTERS, _MOST_REGISTERS, _REGISTERS = 80, 255, 65536
#: The product of the inputs: sums that a thread holds at most, and stages.
_MOST_SUMS, _STAGES = 64, 3


class RecurrentSequence(Kernel):
    """All steps of a recurrent layer from x[sequence, batch, input] and states [batch, hidden];
    dims sequence, batch, input, hidden, cell, dtype and, optionally, tolerance (relative error).

    cell: lstm or gru, as torch's layers of that name with one layer and one direction. The result
    is the hidden state after every step, out[sequence, batch, hidden], and an LSTM's c after the
    last. The recurrent weights of all gates, with hidden rounded up to a power of two, have at most
    128 KiB, so that one program can hold them: 128 units in 16 bits, 64 in float32.
    """

    name = "recurrent_sequence"
    edges = ALL_EDGES
    dims = Dims(
        sequence=_MOST_STEPS,
        batch=_MOST_BATCH,
        input=_MOST_INPUT,
        hidden=4096,
        cell=CELLS,
        dtype=DTYPES,
        tolerance=float,
    )

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (512, 64, 128, 128, "lstm", "float16"),  # Silero VAD
            (400, 32, 600, 128, "lstm", "float16"),  # DrQA's document reader
            (200, 512, 100, 100, "gru", "float16"),  # GRU4Rec
            (1000, 16, 128, 96, "gru", "bfloat16"),  # RNNoise's widest layer
            (168, 2048, 64, 40, "lstm", "bfloat16"),  # DeepAR, a week of hours
            (50, 4096, 128, 128, "lstm", "bfloat16"),  # char-rnn
            (168, 1024, 64, 40, "lstm", "float32"),
            (101, 33, 41, 24, "gru", "float32"),  # RNNoise's speech detector
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        where = f"{self.name} [{workload.key}]"
        if _weight_bytes(workload) > _MOST_WEIGHTS:
            raise WorkloadError(
                f"{where}: the recurrent weights of {workload.size('hidden')} units take "
                f"{_weight_bytes(workload)} bytes, more than the {_MOST_WEIGHTS} of one program",
                "give at most 128 units in 16 bits or 64 in float32, or use recurrent_cell",
            )
        if workload.size("sequence") * workload.size("batch") > _MOST_ROWS:
            raise WorkloadError(
                f"{where}: sequence x batch is more than {_MOST_ROWS}", "give a smaller batch"
            )

    def small_workload(self, workload: Workload) -> Workload:
        few = min(workload.size("hidden"), 37)
        return workload.with_dims(sequence=5, batch=19, input=21, hidden=few)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        return make_inputs(workload, seed, device, (workload.size("sequence"),))

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        state = (workload.size("batch"), workload.size("hidden"))
        found = {"out": workload.spec("sequence", *state)}
        return found | ({"c_out": workload.spec(*state)} if has_cell_state(workload) else {})

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        rows = workload.size("sequence") * workload.size("batch")
        return {"projected": workload.spec(rows, _columns(workload), dtype="float32")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = (inputs[name].double() for name in names(workload))
        return dict(zip(self.outputs(workload), _unrolled(step, *exact), strict=True))

    def tolerance(self, workload: Workload) -> Tolerance:
        """Twice the rounding error of one output.

        The state is rounded to the dtype before each product. Less than half of its error reaches
        the next state, through recurrent weights of a spectral norm near one and gates that pass a
        part of it on, so that the errors of all steps add up to less than twice that of one.
        """
        return rounding(workload, 2.0)

    def flops(self, workload: Workload) -> float:
        inner, hidden = workload.sizes("input", "hidden")
        rows = workload.size("sequence") * workload.size("batch")
        return 2.0 * rows * _columns(workload) * (inner + hidden)

    def space(self, workload: Workload) -> SearchSpace:
        parameters: list[Parameter] = [
            block_parameter("BLOCK_B", workload.size("batch"), 16, 128),
            PowerOfTwo("num_warps", 2, 16),
            Boolean("ahead"),
            PowerOfTwo("BLOCK_M", 64, 128),
            PowerOfTwo("BLOCK_N", 32, 128),
            PowerOfTwo("BLOCK_K", 16, 64),
        ]
        if workload["dtype"] == "float32":
            parameters.append(Choice("precision", ("ieee", "tf32x3", "tf32")))
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK_B",))

    def default_config(self, workload: Workload, device: Device) -> Config:
        return _default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        batch, block = workload.size("batch"), integer(config, "BLOCK_B")
        constants = {
            "HIDDEN": workload.size("hidden"),
            "UNITS": _units(workload),
            "LSTM": has_cell_state(workload),
            "AHEAD": bool(config["ahead"]),
            "BLOCK_B": block,
            "PRECISION": config.get("precision", "ieee"),
            "INTERPRETED": bool(triton.knobs.runtime.interpret),
            "num_warps": config["num_warps"],
            # The loop has nothing to pipeline: each step needs the one before.
            "num_stages": 1,
        }
        arguments = (
            tensors["projected"],
            tensors["h"],
            tensors.get("c"),
            *(tensors[name] for name in ("w_hh", "b_ih", "b_hh", "out")),
            tensors.get("c_out"),
            workload.size("sequence"),
            batch,
        )
        recurrence = Launch(sequence_kernel, (ceil_div(batch, block),), arguments, constants)
        return [_projection(workload, config, tensors), recurrence]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        outputs, arguments = tuple(self.outputs(workload)), names(workload)

        def one_step(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return step(*inputs)

        def loop(each: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., Tensors]:
            # A loop of hundreds of steps is too long to be compiled whole.
            return named(outputs, lambda *inputs: _unrolled(each, *inputs), *arguments)

        return {
            "eager": loop(one_step),
            "compile": loop(compiled(one_step)),
            **vendors(workload, outputs, lambda cudnn: cudnn),
        }


def _unrolled(
    each: Callable[..., tuple[torch.Tensor, ...]],
    x: torch.Tensor,
    h: torch.Tensor,
    *rest: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """h after every step and, of an LSTM, the last c, by a function of one step."""
    import torch

    weights, c, states = rest[:4], list(rest[4:]), []
    for row in x:
        h, *c = each(row, h, *weights, *c)
        states.append(h)
    return (torch.stack(states), *c)


def _units(workload: Workload) -> int:
    """Units of a program: a power of two that tensor cores take."""
    return max(16, next_power_of_two(workload.size("hidden")))


def _columns(workload: Workload) -> int:
    return gates(workload) * workload.size("hidden")


def _weight_bytes(workload: Workload) -> int:
    """Recurrent weights of a program."""
    each = ELEMENT_BYTES[workload.text("dtype")]
    return gates(workload) * _units(workload) ** 2 * each


def _projection(workload: Workload, config: Config, tensors: Tensors) -> Launch:
    """projected = x @ w_ih^T: a convolution of one row of pixels by 1 x 1 taps."""
    inner, columns = workload.size("input"), _columns(workload)
    rows = workload.size("sequence") * workload.size("batch")
    windows = Windows(1, 1, rows, 1, 1, stride=1, padding_h=0, padding_w=0, dilation=1)
    blocks = {name: integer(config, name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
    constants = {
        **windows.constants(),
        **blocks,
        "CHANNELS": inner,
        "OUT_CHANNELS": columns,
        "GROUP_IN": inner,
        "GROUP_OUT": columns,
        "BUNDLE": 1,
        "BY_ROW": False,
        "GROUP_M": 1,
        "SPLIT_K": 1,
        "WIDE": rows * max(inner, columns) >= 2**30,
        "PRECISION": config.get("precision", "ieee"),
        "INTERPRETED": bool(triton.knobs.runtime.interpret),
        "num_warps": 8 if _large(config) else 4,
        "num_stages": _STAGES,
    }
    tiles = ceil_div(rows, blocks["BLOCK_M"]) * ceil_div(columns, blocks["BLOCK_N"])
    arguments = (tensors["x"], tensors["w_ih"], tensors["projected"], rows)
    return Launch(convolution_kernel, (tiles, 1), arguments, constants)


def _large(config: Config) -> bool:
    """Whether the tile of the product of the inputs needs 8 warps."""
    return integer(config, "BLOCK_M") * integer(config, "BLOCK_N") > 128 * _MOST_SUMS


def _default_point(bound: BoundSpace) -> Config:
    """Few batch rows per program, so that a step is short, and 16 sums of it for each thread.

    The product of the inputs takes long steps, and float32 is multiplied by three parts of TF32,
    as precise, where there are tensor cores.
    """
    sums = 16 * gates(bound.workload) * _units(bound.workload)
    usual = max(4, min(16, 1 << (sums // (16 * (bound.device.warp_size or 32))).bit_length() - 1))
    deep = min(64, max(16, next_power_of_two(bound.workload.size("input"))))
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": deep}
    single = bound.workload["dtype"] == "float32"
    for block in (16, 32, 64, 128):
        for warps in (usual, 8, 16, 4, 2):
            for precision in ("tf32x3", "ieee") if single else (None,):
                sums_of = {} if precision is None else {"precision": precision}
                config = bound.complete(
                    {**tile, **sums_of, "BLOCK_B": block, "num_warps": warps, "ahead": True}
                )
                if bound.feasible(config):
                    return config
    bound.require_feasible()
    return next(bound.enumerate())


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    """For each gate the sum and, loaded ahead, the next step's input; and both states."""
    lanes = threads(config, device)
    tiles = (2 if config["ahead"] else 1) * gates(workload) + 3
    held = tiles * integer(config, "BLOCK_B") * _units(workload)
    most = min(_MOST_REGISTERS, (device.registers or _REGISTERS) // lanes)
    return held <= lanes * (most - _OTHER_REGISTERS)


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    """The recurrent weights and both states on CUDA, and the operands of the product of the inputs.

    AMD's matrix cores take both operands from registers.
    """
    sides = integer(config, "BLOCK_M") + integer(config, "BLOCK_N")
    each = ELEMENT_BYTES[workload.text("dtype")]
    needed = sides * integer(config, "BLOCK_K") * each * _STAGES
    if has_capability(device, 0):
        state = integer(config, "BLOCK_B") * _units(workload) * each
        needed = max(needed, _weight_bytes(workload) + 2 * state)
    return fits_shared(needed, device)


def _has_terms(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "BLOCK_K") <= max(16, next_power_of_two(workload.size("input")))


CONSTRAINTS = (
    BLOCK_EXISTS,
    Constraint("registers", _fits_registers, "a thread would hold too many sums and states"),
    Constraint("shared", _fits_shared, "weights or tiles do not fit into shared memory"),
    Preference("terms", _has_terms, "half of BLOCK_K would be empty"),
    TENSOR_FLOATS,
)
