"""The launches of a problem, planned once and repeated on other tensors.

Notation: a slot is the place of a tensor among all tensors of a plan: the inputs, then what the
launches write, the outputs last but for the scratch buffers. An argument of a launch
that is a tensor is a slot and an offset in bytes; all others are constant, since a plan serves only
calls whose shapes, strides, dtypes, alignments and scalars are equal (`operator.py` has the key).

The launches are made once. Their Triton functions are compiled without a launch, and a call of
the plan passes addresses to the compiled kernels: what it costs is the allocation of the outputs
and Triton's C launcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from search_spaces.kernel import Kernel, Launch
from search_spaces.records import Config, TensorSpec
from search_spaces.shape_tensor import torch_dtype
from search_spaces.tensors import empty_tensors
from tuner.ops.launching import Launcher, bind
from tuner.ops.problem import Problem

#: A position among the arguments of a launch, the slot, and the offset in bytes.
_Address: TypeAlias = tuple[int, int, int]
#: The slot of a contiguous tensor that is allocated alike, in less time, or None; shape and dtype.
_Buffer: TypeAlias = tuple[int | None, tuple[int, ...], torch.dtype]
#: A position, the slot, and the class and the fields of a descriptor without its tensor.
_Described: TypeAlias = tuple[int, int, type, Mapping[str, Any]]


class PlanError(Exception):
    """A launch that cannot be repeated on other tensors; the message says why."""


class Plan:
    """The launches of one problem on one device."""

    def __init__(
        self, problem: Problem, kernel: Kernel, config: Config, arguments: Sequence[Any]
    ) -> None:
        """Compile the launches.

        arguments: those of the operator; the problem's tensors are views of its tensors, in their
        order. Raises `PlanError`, and whatever the compilation raises.
        """
        made, launches = _pose(problem, kernel, config)
        places = [at for at, each in enumerate(arguments) if isinstance(each, torch.Tensor)]
        given = [arguments[at] for at in places]
        alone = slice(places[0], places[0] + 1)
        self._inputs = itemgetter(*places) if len(places) > 1 else itemgetter(alone)
        device = given[0].device
        self._device, self._index = device, device.index
        self._buffers: list[_Buffer] = []
        known = [(each.shape, each.dtype) if each.is_contiguous() else () for each in given]
        for name, spec in made.items():
            shape = tuple(problem.outputs.get(name, spec.shape))
            buffer = shape, torch_dtype(spec.dtype)
            self._buffers.append((known.index(buffer) if buffer in known else None, *buffer))
            known.append(buffer)
        names = [*problem.tensors, *made]
        slots = [names.index(name, len(problem.tensors)) for name in problem.outputs]
        self._results = itemgetter(*slots)
        tensors = {**_distinct(problem.tensors), **empty_tensors(made, str(device))}
        first = [tensors[name] for name in names]
        self._launches = [
            (_compile(launch, device), (*launch.grid, 1, 1)[:3], Template(launch, first).fill)
            for launch in launches(tensors)
        ]

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """The output for the arguments of the operator, or all outputs in the problem's order."""
        if torch._C._cuda_getDevice() != self._index:
            with torch.cuda.device(self._device):
                return self(arguments)
        tensors = [*self._inputs(arguments)]
        for like, shape, dtype in self._buffers:
            if like is None:
                tensors.append(torch.empty(shape, dtype=dtype, device=self._device))
            else:
                tensors.append(torch.empty_like(tensors[like]))
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        for launch, grid, fill in self._launches:
            launch(grid, stream, fill(tensors))
        return self._results(tensors)


class Template:
    """The arguments of one launch, to be filled with the tensors of another call.

    It holds no tensor: a plan lives as long as its operator. tensors: those that the launch was
    made with, in the order of the slots; none overlaps another. Raises `PlanError` where an
    argument belongs to none of them.
    """

    def __init__(self, launch: Launch, tensors: Sequence[torch.Tensor]) -> None:
        given = dict(zip(launch.fn.arg_names, launch.args, strict=False)) | dict(launch.kwargs)
        self._values = [given.get(each.name, each.default) for each in launch.fn.params]
        self._addresses: list[_Address] = []
        self._described: list[_Described] = []
        places = [_place(tensor) for tensor in tensors]
        for at, value in enumerate(self._values):
            held = value if _is_tensor(value) else _tensor_of(value)
            if held is None:
                continue
            slot, offset = _find(held, places)
            self._values[at] = None
            if held is value:
                self._addresses.append((at, slot, offset))
            elif offset:
                raise PlanError("a descriptor begins inside of a tensor")
            else:
                fields = {name: each for name, each in vars(value).items() if name != "base"}
                self._described.append((at, slot, type(value), fields))

    def fill(self, tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
        """All arguments in their order; tensors are passed by their addresses."""
        values = self._values.copy()
        for at, slot, offset in self._addresses:
            values[at] = tensors[slot].data_ptr() + offset
        if not self._described:
            return values
        for at, slot, kind, fields in self._described:
            # The descriptor's checks have passed; `copy` takes several times as long.
            described: Any = object.__new__(kind)
            described.__dict__.update(fields, base=tensors[slot])
            values[at] = described
        return tuple(values)


def _compile(launch: Launch, device: torch.device) -> Launcher:
    """What launches the compiled kernel on that device."""
    with torch.cuda.device(device):
        grid = (*launch.grid, 1, 1)[:3]
        return bind(launch.fn.run(*launch.args, grid=grid, warmup=True, **launch.kwargs))


def _is_tensor(value: object) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "untyped_storage")


def _tensor_of(value: object) -> torch.Tensor | None:
    """The tensor that a descriptor describes; None for a constant."""
    found = getattr(value, "base", None) if is_dataclass(value) else None
    return found if _is_tensor(found) else None


def _place(tensor: torch.Tensor) -> range:
    """The addresses of a tensor's elements; one at least."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.data_ptr()
    return range(first, first + (last + 1) * tensor.element_size())


def _find(tensor: torch.Tensor, places: Sequence[range]) -> tuple[int, int]:
    """The slot and the offset of a tensor that a launch receives."""
    address = tensor.data_ptr()
    for slot, place in enumerate(places):
        if address in place:
            return slot, address - place.start
    raise PlanError("a launch receives a tensor that the kernel made itself")


def _distinct(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors, copied where two of them overlap: a slot is found by its address."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        mine = _place(tensor)
        overlaps = any(
            mine.start < other.stop and other.start < mine.stop
            for other in map(_place, found.values())
        )
        found[name] = _copy(tensor) if overlaps else tensor
    return found


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy at an address of the same alignment to 16 bytes, with the same strides."""
    shift = tensor.data_ptr() % 16 // tensor.element_size()
    size = len(_place(tensor)) // tensor.element_size()
    whole = torch.empty(size + shift, dtype=tensor.dtype, device=tensor.device)
    return whole.as_strided(tensor.shape, tensor.stride(), shift).copy_(tensor)


def _pose(
    problem: Problem, kernel: Kernel, config: Config
) -> tuple[dict[str, TensorSpec], Callable[[Mapping[str, torch.Tensor]], list[Launch]]]:
    """What the launches of a problem write, and the launches on all tensors."""
    workload, before = problem.workload, problem.preparation
    prepared = before.outputs(config, problem.tensors) if before else {}

    def launches(tensors: Mapping[str, torch.Tensor]) -> list[Launch]:
        first = [before.launch(config, tensors)] if before else []
        return [*first, *kernel.launches(workload, config, tensors)]

    return {**prepared, **kernel.outputs(workload), **kernel.scratch(workload, config)}, launches


def launch_all(
    problem: Problem, kernel: Kernel, config: Config, device: torch.device
) -> dict[str, torch.Tensor]:
    """All tensors of a problem after launches as the kernel makes them, for the interpreter."""
    made, launches = _pose(problem, kernel, config)
    tensors = {**problem.tensors, **empty_tensors(made, str(device))}
    for launch in launches(tensors):
        launch.fn[launch.grid](*launch.args, **launch.kwargs)
    return tensors
