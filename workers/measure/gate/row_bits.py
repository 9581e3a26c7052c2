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
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.errors import KernelError
from workers.job_records import RowRange
from workers.measure.task_tensors import TaskTensors, as_integers

if TYPE_CHECKING:
    import torch

#: The least number of values in the outputs of all samples, which tell orders of summation apart;
#: the largest number of samples; and the seed of the first one.
_VALUES, _MOST_SAMPLES, _SEED = 64, 8, 101


def digest_rows(
    task: TaskTensors,
    rows: RowRange,
    run: Callable[[], Mapping[str, torch.Tensor]],
) -> tuple[str, str]:
    """The digest of the bits of rows, and why they are refused; one of both is empty.

    run: does the work on `task.inputs`, and returns the outputs. Changes `task.inputs`. Raises
    `KernelError` where an input or no output grows with the rows as it must.
    """
    if rows not in task.row_samples:
        task.row_samples[rows] = _Samples(task, rows)
    samples: _Samples = task.row_samples[rows]
    found = hashlib.sha256()
    for sample in samples.inputs:
        samples.put(sample)
        results = run()
        first, *others = (samples.read(results, place) for place in samples.places)
        if any(each != first for each in others):
            return "", f"the bits of a row depend on its place among {rows.dim}={samples.count}"
        found.update(first)
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
        largest = kernel.outputs(task.workload.with_dims(**{rows.dim: high}))
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
        values = sum(math.prod(kernel.outputs(least)[name].shape) for name in self._grown)
        count = min(_MOST_SAMPLES, -(-_VALUES // max(1, values)))
        self.inputs = [
            dict(kernel.make_inputs(least, _SEED + each, task.device_type)) for each in range(count)
        ]
        derived = kernel.derive_inputs(least, self.inputs[0])
        #: The same by input; None for those that do not grow.
        self._axes = {
            name: self._find_axis(name, each.shape, task.inputs[name].shape, self.count)
            for name, each in self.inputs[0].items()
            if name not in derived
        }
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
        task.load(0)
        for name, axis in self._axes.items():
            target, tensor = task.inputs[name], sample[name]
            if axis is None:
                target.copy_(tensor)
                continue
            at, per_row = axis
            for place in self.places:
                target.narrow(at, place * per_row, tensor.shape[at]).copy_(tensor)
        for name, tensor in task.kernel.derive_inputs(task.workload, task.inputs).items():
            task.inputs[name].copy_(tensor)

    def read(self, results: Mapping[str, torch.Tensor], place: int) -> bytes:
        """The bits of the rows at a place, of all outputs that grow with the rows."""
        found = []
        for name, (at, per_row) in self._grown.items():
            part = results[name].narrow(at, place * per_row, self._low * per_row)
            found.append(as_integers(part.cpu()).numpy().tobytes())
        return b"".join(found)
