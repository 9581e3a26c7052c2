"""What consecutive jobs of one task share on a device: inputs, references, output buffers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search_spaces.errors import KernelError
from search_spaces.kernel import Kernel, TensorSpec
from search_spaces.records import Workload
from workers.measure.gate.buffers import ALIGNMENT, Arena, GuardedTensor
from workers.records import KernelRef

if TYPE_CHECKING:
    import torch

#: dtypes whose references float32 holds well enough, while squares neither vanish nor overflow
_COARSE = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_SMALLEST_NORM = 1e-6
_LARGEST_NORM = 1e12
_MOST_COPIES = 255


@dataclass(frozen=True, slots=True)
class Expected:
    """One reference output: its values, their norm, and the bound of each element.

    values: float64 or, for outputs no finer than float32, float32, which halves the traffic of
    every comparison.
    """

    values: torch.Tensor
    norm: float
    bound: torch.Tensor


class Task:
    """Kernel, workload and their tensors on one device.

    All candidates read the same `inputs` and write the same `outputs`. `load(position)` puts the
    inputs of one of the seeds there. `loaded` is what a backend keeps of
    variants. `suspect` is set when a variant wrote where it must not, so that references may be
    damaged. A variant is given the tensors of `inputs` and `outputs` and never the task, nor any
    view of the references. Raises what the kernel's own functions raise.
    """

    def __init__(
        self, kernel: Kernel, workload: Workload, seeds: tuple[int, ...], device: str
    ) -> None:
        self.kernel = kernel
        self.workload = workload
        self.seeds = seeds
        self.tolerance = kernel.tolerance(workload)
        self.suspect = False
        #: which audit filled the shared storage last
        self.last_audited: object = None
        self.loaded: OrderedDict[str, Any] = OrderedDict()
        self.specs = dict(kernel.outputs(workload))
        self._pristine = [dict(kernel.make_inputs(workload, seed, device)) for seed in seeds]
        self.expected = [self._reference(inputs) for inputs in self._pristine]
        self.inputs = {name: tensor.clone() for name, tensor in self._pristine[0].items()}
        self._copies: list[dict[str, torch.Tensor]] = []
        self._output_copies: list[dict[str, torch.Tensor]] = []
        #: the memory of the copies, by output
        self._rotated: dict[str, torch.Tensor] = {}
        self._arenas: dict[str, Arena] = {}
        self.device_type = device
        self._shared_storage: dict[str, torch.Tensor] | None = None
        self._own_memory = {
            tensor.untyped_storage().data_ptr()
            for tensors in self._pristine
            for tensor in tensors.values()
        } | {
            tensor.untyped_storage().data_ptr()
            for references in self.expected
            for expected in references.values()
            for tensor in (expected.values, expected.bound)
        }
        # Tensors without elements have no memory.
        self._own_memory.discard(0)
        self._baselines: Mapping[str, Callable[..., Any]] | None = None

    @property
    def baselines(self) -> Mapping[str, Callable[..., Any]]:
        """The kernel's baselines, made once so that what they compile is kept."""
        if self._baselines is None:
            self._baselines = self.kernel.baselines(self.workload)
        return self._baselines

    def outputs(self) -> dict[str, GuardedTensor]:
        """The guarded outputs every writing variant shares."""
        return {name: self._arena(name).tensor(spec) for name, spec in self.specs.items()}

    def scratch(self, specs: Mapping[str, TensorSpec]) -> dict[str, GuardedTensor]:
        """Guarded work space of one variant, in memory shared with the other variants."""
        return {name: self._arena(f"scratch {name}").tensor(spec) for name, spec in specs.items()}

    def load(self, position: int) -> None:
        """Make `inputs` hold the inputs of seed number `position`."""
        for name, tensor in self._pristine[position].items():
            self.inputs[name].copy_(tensor)

    def roll(self, places: int) -> bool:
        """Make `inputs` hold the first seed's with each floating-point tensor's elements moved
        cyclically by `places`; False, and nothing is changed, when there is no such tensor.

        The values stay what they were, so whatever a kernel demands of them still holds.
        """
        moved = False
        for name, tensor in self._pristine[0].items():
            if tensor.is_floating_point() and tensor.numel() > 1:
                rolled = whole(tensor).roll(places).view(tensor.dtype)
                self.inputs[name].copy_(rolled.view(tensor.shape))
                moved = True
        return moved

    def copies_beyond(self, size: int) -> int:
        """How many copies of inputs and outputs together exceed `size` bytes: 3 to 255, or 1 where
        one of them does (flashinfer's `calculate_rotation_count` counts so).

        An odd number, so that two candidates in turn meet the same copies.
        """
        one = sum(t.numel() * t.element_size() for t in self.inputs.values())
        one += sum(buffer.bytes.numel() for buffer in self.outputs().values())
        return 1 if one >= size else max(3, min(_MOST_COPIES, -(-size // max(1, one)) + 1) | 1)

    def copies(self, count: int) -> Sequence[dict[str, torch.Tensor]]:
        """`count` sets of the first seed's inputs; kept, so that all candidates share them."""
        while len(self._copies) < count:
            self._copies.append({n: t.clone() for n, t in self._pristine[0].items()})
        return self._copies[:count]

    def output_copies(self, count: int) -> Sequence[dict[str, torch.Tensor]]:
        """`count` sets of outputs, shared like the copies of the inputs, as aligned as outputs."""
        import torch

        if len(self._output_copies) < count:
            self._rotated = {}
            self._output_copies = [{} for _ in range(count)]
            for name, buffer in self.outputs().items():
                size = buffer.bytes.numel()
                padded = -(-size // ALIGNMENT) * ALIGNMENT
                memory = torch.empty((count, padded), dtype=torch.uint8, device=self.device_type)
                self._rotated[name] = memory
                for index, copy in enumerate(self._output_copies):
                    flat = memory[index, :size].view(buffer.tensor.dtype)
                    copy[name] = flat.view(buffer.spec.shape)
        return self._output_copies[:count]

    def wipe_output_copies(self, byte: int) -> None:
        """Fill the copies of the outputs, if there are any, with `byte`."""
        for memory in self._rotated.values():
            memory.fill_(byte)

    def storage(self) -> tuple[dict[str, torch.Tensor], bool]:
        """Room for one copy of the outputs, and whether it is shared for want of memory."""
        import torch

        def room() -> dict[str, torch.Tensor]:
            return {
                name: torch.empty(
                    spec.shape, dtype=getattr(torch, spec.dtype), device=self.device_type
                )
                for name, spec in self.specs.items()
            }

        if self._shared_storage is None:
            self._shared_storage = room()
        try:
            return room(), False
        except torch.OutOfMemoryError:
            return self._shared_storage, True

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in memory of the references or of the inputs' originals."""
        return tensor.untyped_storage().data_ptr() in self._own_memory

    def input_changes(self, position: int) -> list[torch.Tensor]:
        """Per input, whether a bit of it is not what `load(position)` put there; not waited for."""
        return [
            (whole(self.inputs[name]) != whole(tensor)).any()
            for name, tensor in self._pristine[position].items()
        ]

    def _arena(self, name: str) -> Arena:
        return self._arenas.setdefault(name, Arena(name, self.device_type))

    def _reference(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, Expected]:
        import torch

        reference = self.kernel.reference(self.workload, inputs)
        expected = {}
        for name, spec in self.specs.items():
            if name not in reference or tuple(reference[name].shape) != tuple(spec.shape):
                found = tuple(reference[name].shape) if name in reference else "nothing"
                raise KernelError(
                    f"reference of `{self.kernel.name}` gives {found} for output `{name}` of "
                    f"shape {tuple(spec.shape)}",
                    hint="make `reference` and `outputs` of the kernel agree",
                )
            values = reference[name].to(torch.float64)
            bound = self.tolerance.elementwise * (1 + values.abs())
            norm = float(torch.linalg.vector_norm(values))
            if spec.dtype in _COARSE and _SMALLEST_NORM < norm < _LARGEST_NORM:
                values = values.to(torch.float32)
            expected[name] = Expected(values, norm, bound.to(torch.float32))
        return expected


class TaskCache:
    """The tasks of the last few jobs; the least recently used one makes room."""

    def __init__(
        self, build: Callable[[KernelRef, Workload, tuple[int, ...]], Task], size: int
    ) -> None:
        self._build = build
        self._size = size
        self._tasks: OrderedDict[object, Task] = OrderedDict()

    def get(self, ref: KernelRef, workload: Workload, seeds: tuple[int, ...]) -> Task:
        key = (ref, workload, seeds)
        if key not in self._tasks:
            while len(self._tasks) >= self._size:
                self._tasks.popitem(last=False)
            self._tasks[key] = self._build(ref, workload, seeds)
        self._tasks.move_to_end(key)
        return self._tasks[key]

    def drop_suspects(self) -> None:
        """Forget tasks whose tensors may be damaged; they are made anew."""
        for key in [key for key, task in self._tasks.items() if task.suspect]:
            del self._tasks[key]

    def clear(self) -> None:
        self._tasks.clear()

    def clear_all_but(self, task: Task | None) -> None:
        """Make room for this task by forgetting all others."""
        for key in [key for key, other in self._tasks.items() if other is not task]:
            del self._tasks[key]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor in as few integers as its size allows."""
    import torch

    flat = tensor.contiguous().view(-1)
    if not flat.numel():
        return flat.view(torch.uint8)
    for integer in (torch.int64, torch.int32, torch.int16):
        if flat.numel() * flat.element_size() % integer.itemsize == 0:
            return flat.view(integer)
    return flat.view(torch.uint8)
