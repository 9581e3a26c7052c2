"""What consecutive jobs of one task share on a device: inputs, references, output buffers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search_spaces.errors import KernelError
from search_spaces.kernel import Kernel, TensorSpec
from search_spaces.records import Workload
from workers.measure.buffers import Arena, GuardedTensor
from workers.records import KernelRef

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Expected:
    """One reference output: its values in float64, their norm, and the bound of each element."""

    values: torch.Tensor
    norm: float
    bound: torch.Tensor


class Task:
    """Kernel, workload and their tensors on one device.

    All entrants read the same `inputs` and write the same `outputs`. `load(position)` puts the
    inputs of one of the seeds there. `kept` is what an audit will look at,
    `loaded` what a backend keeps of variants. `suspect` is set when a
    variant wrote where it must not, so that references may be damaged. Raises what the kernel's
    own functions raise.
    """

    def __init__(
        self, kernel: Kernel, workload: Workload, seeds: tuple[int, ...], device: str
    ) -> None:
        self.kernel = kernel
        self.workload = workload
        self.seeds = seeds
        self.tolerance = kernel.tolerance(workload)
        self.suspect = False
        self.kept: dict[str, torch.Tensor] = {}
        self.loaded: OrderedDict[str, Any] = OrderedDict()
        self.specs = dict(kernel.outputs(workload))
        self._pristine = [dict(kernel.make_inputs(workload, seed, device)) for seed in seeds]
        self.expected = [self._reference(inputs) for inputs in self._pristine]
        self.inputs = {name: tensor.clone() for name, tensor in self._pristine[0].items()}
        self._arenas: dict[str, Arena] = {}
        self._device = device
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

    def keep(self, outputs: Mapping[str, torch.Tensor]) -> None:
        """Copy outputs to `kept`, without waiting for the device."""
        for name, tensor in outputs.items():
            if name not in self.kept:
                self.kept[name] = tensor.clone()
            else:
                self.kept[name].copy_(tensor)

    def modified_input(self, position: int) -> str:
        """The first input that is no longer, bit for bit, what `load(position)` put there."""
        import torch

        for name, tensor in self._pristine[position].items():
            if not torch.equal(_bits(self.inputs[name]), _bits(tensor)):
                return name
        return ""

    def _arena(self, name: str) -> Arena:
        return self._arenas.setdefault(name, Arena(name, self._device))

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


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8)
