"""The tensors of a task on a device, kept between jobs: inputs, references, output buffers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search_spaces.baselines import list_baselines
from search_spaces.edges import put_edges
from search_spaces.errors import KernelError
from search_spaces.kernel import Kernel
from search_spaces.records import TensorSpec, Workload
from tuner.base.tracing import span
from workers.job_records import KernelRef
from workers.measure.gate.buffers import ALIGNMENT, Arena, GuardedTensor

if TYPE_CHECKING:
    import torch


#: Output dtypes for which float32 references are precise enough, if their norm is within the limits
#: below, where squares neither underflow nor overflow.
_COARSE = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
#: Integers that are places, counts or keys; smaller ones may be rounded values.
_WIDE_INTEGERS = ("int32", "uint32", "int64", "uint64")
_LONGS = ("int64", "uint64")
_SMALLEST_NORM = 1e-6
_LARGEST_NORM = 1e12
_MOST_COPIES = 255


@dataclass(frozen=True, slots=True)
class Expected:
    """One reference output."""

    #: float64; float32 where that is precise enough, which halves the traffic of every comparison.
    values: torch.Tensor
    #: Euclidean norm over all elements.
    norm: float
    #: The largest absolute error allowed for each element.
    bound: torch.Tensor
    #: The bits of a reference of 64-bit integers, which float64 does not hold; None for others.
    integers: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a variant that passed."""

    #: The largest relative error of all seeds.
    error: float
    #: Whether a repetition on the same inputs, over other poison, left the same bits; None without
    #: a repetition.
    deterministic: bool | None
    #: Digest of the bits of single rows; None where they were not compared.
    row_bits: str | None = None


class TaskTensors:
    """Kernel, workload and their tensors on one device.

    All candidates read the same `inputs` and write the same `outputs`; `load(position)` copies the
    inputs of one seed there. Variants receive these tensors, never the task or a view of the
    references. Raises what the kernel's own functions raise.
    """

    def __init__(
        self, kernel: Kernel, workload: Workload, seeds: tuple[int, ...], device: str
    ) -> None:
        self.kernel = kernel
        self.workload = workload
        self.seeds = seeds
        self.tolerance = kernel.tolerance(workload)
        #: Whether a variant wrote where it must not, so that references may be damaged.
        self.suspect = False
        #: The check of a timed run that filled the shared storage last.
        self.last_check: object = None
        #: Variants that a backend keeps loaded, by its own keys.
        self.loaded: OrderedDict[str, Any] = OrderedDict()
        self.specs = dict(kernel.outputs(workload))
        with span("inputs", "verify", workload=workload.key):
            self._pristine = [dict(kernel.make_inputs(workload, seed, device)) for seed in seeds]
        with span("references", "verify", workload=workload.key):
            self.expected = [self._reference(inputs) for inputs in self._pristine]
        self.inputs = {name: tensor.clone() for name, tensor in self._pristine[0].items()}
        #: The memory of inputs and references.
        self.bytes = sum(
            tensor.untyped_storage().nbytes()
            for tensor in (
                *self.inputs.values(),
                *self._pristine_tensors(),
                *self._reference_tensors(),
            )
        )
        self._copies: list[dict[str, torch.Tensor]] = []
        self._output_copies: list[dict[str, torch.Tensor]] = []
        #: Memory of the output copies, by output.
        self._copy_memory: dict[str, torch.Tensor] = {}
        self._edges: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] | None = None
        self._arenas: dict[str, Arena] = {}
        self.device_type = device
        self._shared_storage: dict[str, torch.Tensor] | None = None
        own = [*self._pristine_tensors(), *self._reference_tensors()]
        self._own_memory = {tensor.untyped_storage().data_ptr() for tensor in own}
        # Tensors without elements have the address 0.
        self._own_memory.discard(0)
        self._baselines: Mapping[str, Callable[..., Any]] | None = None
        #: The results of baselines that were warmed up and are correct.
        self.checked_baselines: dict[str, Checked] = {}
        #: The results of computations that are correct, by the interpreter's keys.
        self.checked_computations: dict[Hashable, Checked] = {}
        #: Single rows for comparisons of their bits, by the rows of a job.
        self.row_samples: dict[Hashable, Any] = {}

    @property
    def baselines(self) -> Mapping[str, Callable[..., Any]]:
        """The kernel's baselines, created once, because some compile on their first call."""
        if self._baselines is None:
            self._baselines = list_baselines(self.kernel, self.workload)
        return self._baselines

    def outputs(self) -> dict[str, GuardedTensor]:
        """The guarded outputs that all writing variants share."""
        return {name: self._arena(name).tensor(spec) for name, spec in self.specs.items()}

    def scratch(self, specs: Mapping[str, TensorSpec]) -> dict[str, GuardedTensor]:
        """Guarded scratch buffers of one variant, in memory that all variants share."""
        return {name: self._arena(f"scratch {name}").tensor(spec) for name, spec in specs.items()}

    def edges(self) -> Sequence[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
        """Inputs with the edges that the kernel declares, and their references, on its check size;
        nothing on other sizes."""
        if self._edges is None:
            kernel, inputs = self.kernel, self._pristine[0]
            checked = kernel.small_workload(self.workload) == self.workload
            made = put_edges(inputs, kernel.edge_inputs, kernel.edges if checked else ())
            self._edges = [(one, dict(kernel.reference(self.workload, one))) for one in made]
        return self._edges

    def load(self, position: int) -> None:
        """Copy the inputs of seed number `position` into `inputs`."""
        for name, tensor in self._pristine[position].items():
            self.inputs[name].copy_(tensor)

    def roll(self, places: int) -> bool:
        """Copy the first seed's inputs into `inputs`, floating-point tensors rolled by `places`.

        Rolling keeps the set of values, and with it whatever the kernel requires of them. False,
        with nothing changed, if there is no floating-point tensor.
        """
        moved = False
        for name, tensor in self._pristine[0].items():
            if tensor.is_floating_point() and tensor.numel() > 1:
                rolled = as_integers(tensor).roll(places).view(tensor.dtype)
                self.inputs[name].copy_(rolled.view(tensor.shape))
                moved = True
        return moved

    def copies_beyond(self, size: int) -> int:
        """The number of copies of inputs and outputs that together exceed `size` bytes.

        1 where one copy does, else an odd number from 3 to 255; odd, so that two candidates that
        alternate use the same copies. Source: flashinfer's `calculate_rotation_count`.
        """
        one = sum(t.numel() * t.element_size() for t in self.inputs.values())
        one += sum(buffer.bytes.numel() for buffer in self.outputs().values())
        return 1 if one >= size else max(3, min(_MOST_COPIES, -(-size // max(1, one)) + 1) | 1)

    def copies(self, count: int) -> Sequence[dict[str, torch.Tensor]]:
        """`count` sets of the first seed's inputs, shared by all candidates."""
        while len(self._copies) < count:
            self._copies.append({n: t.clone() for n, t in self._pristine[0].items()})
        return self._copies[:count]

    def output_copies(self, count: int) -> Sequence[dict[str, torch.Tensor]]:
        """`count` sets of outputs, shared by all candidates, with the alignment of outputs."""
        import torch

        if len(self._output_copies) < count:
            self._copy_memory = {}
            self._output_copies = [{} for _ in range(count)]
            for name, buffer in self.outputs().items():
                size = buffer.bytes.numel()
                padded = -(-size // ALIGNMENT) * ALIGNMENT
                memory = torch.empty((count, padded), dtype=torch.uint8, device=self.device_type)
                self._copy_memory[name] = memory
                for index, copy in enumerate(self._output_copies):
                    flat = memory[index, :size].view(buffer.tensor.dtype)
                    copy[name] = flat.view(buffer.spec.shape)
        return self._output_copies[:count]

    def fill_output_copies(self, byte: int) -> None:
        """Fill all copies of the outputs with `byte`."""
        for memory in self._copy_memory.values():
            memory.fill_(byte)

    def storage(self) -> tuple[dict[str, torch.Tensor], bool]:
        """Storage for one set of outputs, and whether it is shared because memory is short."""
        import torch

        def allocate() -> dict[str, torch.Tensor]:
            return {
                name: torch.empty(
                    spec.shape, dtype=getattr(torch, spec.dtype), device=self.device_type
                )
                for name, spec in self.specs.items()
            }

        if self._shared_storage is None:
            self._shared_storage = allocate()
        try:
            return allocate(), False
        except torch.OutOfMemoryError:
            return self._shared_storage, True

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of the references or of the original inputs."""
        return tensor.untyped_storage().data_ptr() in self._own_memory

    def input_changes(self, position: int) -> list[torch.Tensor]:
        """Per input, whether any bit differs from what `load(position)` wrote; scalars on the
        device."""
        return [
            (as_integers(self.inputs[name]) != as_integers(tensor)).any()
            for name, tensor in self._pristine[position].items()
        ]

    def _pristine_tensors(self) -> list[torch.Tensor]:
        return [tensor for tensors in self._pristine for tensor in tensors.values()]

    def _reference_tensors(self) -> list[torch.Tensor]:
        return [
            tensor
            for references in self.expected
            for expected in references.values()
            for tensor in (expected.values, expected.bound, expected.integers)
            if tensor is not None
        ]

    def _arena(self, name: str) -> Arena:
        return self._arenas.setdefault(name, Arena(name, self.device_type))

    def _reference(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, Expected]:
        import torch

        reference = self.kernel.reference(self.workload, inputs)
        expected = {}
        for name, spec in self.specs.items():
            if name not in reference or tuple(reference[name].shape) != tuple(spec.shape):
                shape = tuple(reference[name].shape) if name in reference else "nothing"
                raise KernelError(
                    f"reference of `{self.kernel.name}` returns {shape} for output `{name}` of "
                    f"shape {tuple(spec.shape)}",
                    hint="make `reference` and `outputs` of the kernel agree",
                )
            values = reference[name].to(torch.float64)
            bound = self.tolerance.elementwise * (1 + values.abs())
            integers = None
            if spec.dtype in _WIDE_INTEGERS and not reference[name].is_floating_point():
                # Places, counts, keys: a bound below one step permits none, however large they are.
                if self.tolerance.elementwise < 1:
                    bound.zero_()
                if spec.dtype in _LONGS:
                    integers = reference[name].to(getattr(torch, spec.dtype)).view(torch.int64)
            norm = float(torch.linalg.vector_norm(values))
            if spec.dtype in _COARSE and _SMALLEST_NORM < norm < _LARGEST_NORM:
                values = values.to(torch.float32)
            expected[name] = Expected(values, norm, bound.to(torch.float32), integers)
        return expected


class TaskCache:
    """The tasks of the last jobs; drops the least recently used ones.

    size: the most tasks. most_bytes: the most memory of all tasks together; the task in use is kept
    however large it is.
    """

    def __init__(
        self,
        build: Callable[[KernelRef, Workload, tuple[int, ...]], TaskTensors],
        size: int,
        most_bytes: float = math.inf,
    ) -> None:
        self._build = build
        self._size, self._most_bytes = size, most_bytes
        self._tasks: OrderedDict[object, TaskTensors] = OrderedDict()

    def get(self, ref: KernelRef, workload: Workload, seeds: tuple[int, ...]) -> TaskTensors:
        """The task; made unless it is kept."""
        kept = self.get_kept(ref, workload, seeds)
        if kept is not None:
            return kept
        # The first tasks go before the new one is made, because both may not fit in memory.
        while len(self._tasks) >= self._size or self._bytes() > self._most_bytes:
            self._tasks.popitem(last=False)
        made = self._tasks[ref, workload, seeds] = self._build(ref, workload, seeds)
        while len(self._tasks) > 1 and self._bytes() > self._most_bytes:
            self._tasks.popitem(last=False)
        return made

    def get_kept(
        self, ref: KernelRef, workload: Workload, seeds: tuple[int, ...]
    ) -> TaskTensors | None:
        """The task if it is kept, without making it."""
        key = (ref, workload, seeds)
        if key in self._tasks:
            self._tasks.move_to_end(key)
        return self._tasks.get(key)

    def _bytes(self) -> int:
        return sum(task.bytes for task in self._tasks.values())

    def drop_suspects(self) -> None:
        """Drop tasks whose tensors may be damaged, so that they are made again."""
        for key in [key for key, task in self._tasks.items() if task.suspect]:
            del self._tasks[key]

    def clear_all_but(self, task: TaskTensors | None) -> None:
        """Drop all tasks but this one, to free memory."""
        for key in [key for key, other in self._tasks.items() if other is not task]:
            del self._tasks[key]


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor, flat, as the widest integers that its size allows."""
    import torch

    flat = tensor.contiguous().view(-1)
    if not flat.numel():
        return flat.view(torch.uint8)
    for integer in (torch.int64, torch.int32, torch.int16):
        if flat.numel() * flat.element_size() % integer.itemsize == 0:
            return flat.view(integer)
    return flat.view(torch.uint8)
