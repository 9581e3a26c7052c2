"""Whether a variant gives a row the same bits whatever the other rows are, and which bits.

Notation: u is the least number of rows of a range, m that of the task. A sample is the inputs of u
rows, from a seed that is the same at all sizes. It takes the place of u of the m rows, and of all
inputs that do not grow with the rows; the other rows stay random, and what the kernel derives from
inputs follows. So the outputs of these u rows
must be the same at each place, and at all m of the range: their digest names the order in which a
variant computes. Configs of different blocks often have equal digests, and those of a range that
have are interchangeable.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.errors import KernelError
from search_spaces.records import TensorSpec
from workers.job_records import RowRange
from workers.measure.gate.comparison import fetch
from workers.measure.task_tensors import TaskTensors, as_integers

if TYPE_CHECKING:
    import torch

#: How many values of an output all samples together have at least, and how many of 16 bits. Two
#: orders of summation in float32 round to different values of 16 bits once in 3,000 to 50,000.
_VALUES, _ROUNDED_VALUES = 64, 2**18
#: The largest number of samples, and of bytes of their inputs; and the seed of the first one.
_MOST_SAMPLES, _MOST_BYTES, _SEED = 256, 256 << 20, 101


def digest_rows(
    task: TaskTensors,
    rows: RowRange,
    run: Callable[[], Mapping[str, torch.Tensor]],
) -> tuple[str, str]:
    """The digest of the bits of rows, and why they are refused; one of both is empty.

    run: does the work on `task.inputs`, and returns the outputs. Changes `task.inputs`. Raises
    `KernelError` where an input or no output grows with the rows as it must.
    """
    import torch

    if rows not in task.row_samples:
        task.row_samples[rows] = _Samples(task, rows)
    samples: _Samples = task.row_samples[rows]
    task.load(0)
    kept, differs = [], []
    for sample in samples.inputs:
        samples.put(sample)
        results = run()
        first, *others = (samples.read(results, place) for place in samples.places)
        kept.append(first)
        differs += [(a != b).any() for each in others for a, b in zip(first, each, strict=True)]
    if any(fetch(differs)):
        return "", f"the bits of a row depend on its place among {rows.dim}={samples.count}"
    found = hashlib.sha256()
    for parts in zip(*kept, strict=True):
        found.update(torch.cat(parts).cpu().numpy().tobytes())
    # Only ranges that begin with equally many rows have digests to compare.
    digest = f"{rows.low}-{found.hexdigest()[:16]}"
    refused = rows.why_refused(digest)
    return ("", refused) if refused else (digest, "")


class _Samples:
    """The samples of a range, and the places that they take in a task."""

    def __init__(self, task: TaskTensors, rows: RowRange) -> None:
        kernel, low = task.kernel, rows.low
        self._task, self._low = task, low
        self.count = task.workload.size(rows.dim)
        least = task.workload.with_dims(**{rows.dim: low})
        high = rows.high if rows.high > low else 2 * low  # a range of one size shows no axis
        most = task.workload.with_dims(**{rows.dim: high})
        largest = kernel.outputs(most)
        #: By output: the axis that grows with the rows, and its elements per row.
        self._grown = {
            name: axis
            for name, each in kernel.outputs(least).items()
            if (axis := self._find_axis(name, each.shape, largest[name].shape, high))
        }
        if not self._grown:
            raise KernelError(
                f"no output of `{kernel.name}` grows with {rows.dim}",
                "tune a range of the dim that counts rows, or without numerics: batch_invariant",
            )
        first = dict(kernel.make_inputs(least, _SEED, task.device_type))
        derived = kernel.derive_inputs(least, first)
        #: The same by input; None for those that do not grow, which are of the first sample.
        self._axes = {
            name: self._find_axis(name, each.shape, task.inputs[name].shape, self.count)
            for name, each in first.items()
            if name not in derived
        }
        shapes = {name: each.shape for name, each in kernel.make_inputs(most, 0, "meta").items()}
        grown = [name for name in self._axes if first[name].shape != shapes[name]]
        # A CPU takes long to make inputs, which are all made again for each sample.
        counted = first if task.device_type == "cpu" else grown
        bytes_each = sum(first[name].nbytes for name in counted)
        specs = [kernel.outputs(least)[name] for name in self._grown]
        count = min(_count_samples(specs), max(1, _MOST_BYTES // max(1, bytes_each)))
        self.inputs = [first]
        for each in range(1, count):
            made = kernel.make_inputs(least, _SEED + each, task.device_type)
            self.inputs.append({name: made[name] for name in grown})
        self.places = [*self._list_places()]

    def _find_axis(self, name: str, least: Any, shape: Any, count: int) -> tuple[int, int] | None:
        grown = [at for at, (u, m) in enumerate(zip(least, shape, strict=True)) if u != m]
        if not grown:
            return None
        (at, *others), low = grown, self._low
        if others or least[at] % low or shape[at] * low != least[at] * count:
            raise KernelError(
                f"`{name}` of `{self._task.kernel.name}` has the shape {tuple(least)} for {low} "
                f"rows and {tuple(shape)} for {count}: it has no axis of rows",
                "tune without numerics: batch_invariant",
            )
        return at, least[at] // low

    def _list_places(self) -> Iterator[int]:
        """The first rows of disjoint places: at the start, in the middle and at the end."""
        low, last = self._low, self.count - self._low
        yield 0
        if last >= 3 * low:
            yield last // 2
        if last >= low:
            yield last

    def put(self, sample: Mapping[str, torch.Tensor]) -> None:
        task = self._task
        for name, tensor in sample.items():
            if name not in self._axes:
                continue
            target, axis = task.inputs[name], self._axes[name]
            if axis is None:
                target.copy_(tensor)
                continue
            at, per_row = axis
            for place in self.places:
                target.narrow(at, place * per_row, tensor.shape[at]).copy_(tensor)
        for name, tensor in task.kernel.derive_inputs(task.workload, task.inputs).items():
            task.inputs[name].copy_(tensor)

    def read(self, results: Mapping[str, torch.Tensor], place: int) -> list[torch.Tensor]:
        """The bits of the rows at a place, of each output that grows with the rows: copies."""
        return [
            as_integers(results[name].narrow(at, place * per_row, self._low * per_row).clone())
            for name, (at, per_row) in self._grown.items()
        ]


def _count_samples(specs: Iterable[TensorSpec]) -> int:
    """How many samples have as many values of an output as tell orders of summation apart."""
    import torch

    count = _MOST_SAMPLES
    for spec in specs:
        wide = getattr(torch, spec.dtype).itemsize > 2
        needed = _VALUES if wide else _ROUNDED_VALUES
        count = min(count, -(-needed // max(1, math.prod(spec.shape))))
    return count
