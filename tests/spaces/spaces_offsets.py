"""Evaluate the index arithmetic of variants at sizes that no memory holds.

Usage: TRITON_INTERPRET=1 python spaces_offsets.py < jobs.json, a job as for `spaces_interpret.py`.

Triton's interpreter runs the programs at the corners of each grid and the ends of each loop, on
tensors without memory: each has a range of addresses of its own. A fault is a sum, a difference,
a product or a cast of integers that does not fit into its 32 bits, or an access outside all
tensors. A load of integers, such as places and lengths, gives an even ramp up to the size that
bounds the values of the small workload; other loads give zeros.
"""

# mypy: ignore-errors
from __future__ import annotations

import builtins
import importlib
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from spaces_forks import Forks, serve
from triton.runtime.errors import InterpreterError

from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Workload
from search_spaces.registry import load
from search_spaces.shape_tensor import torch_dtype
from workers.backends.interpreter.arithmetic import extend

#: Bytes of all tensors: the largest memory of one device (a B300), and offsets of 31 bits.
MOST_BYTES, MOST_NARROW = 288 << 30, 2**31 - 1
_FORKS = Forks(__file__, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
_APART, _LARGEST = 1 << 48, 2**31 - 1
#: Calls of the builder after which a program is left: loops that wait for what another writes.
_MOST_CALLS = 20_000
#: The largest grid of CUDA.
_GRID = (_LARGEST, 65535, 65535)
_NARROW = {np.dtype(np.int32), np.dtype(np.uint32)}


def faults(jobs: Sequence[tuple[str, Workload, Config]]) -> list[object]:
    """The jobs whose integers overflow or whose accesses leave the tensors, each with where."""
    payload = [
        {"spec": spec, "workload": workload.as_dict(), "config": dict(config)}
        for spec, workload, config in jobs
    ]
    lines = _FORKS.run(json.dumps(payload), PYTHONPATH=str(Path(__file__).parents[2])).splitlines()
    found = map(json.loads, lines)
    return [(job, where) for job, where in zip(jobs, found, strict=True) if where]


def thin(kernel: Kernel, workload: Workload) -> Workload:
    """A workload with the smallest sizes, so that one size alone can be the largest."""
    names = [name for name in workload if type(workload[name]) is int and workload[name] > 0]
    for size in (1, 2, 8, 16, 64, 128):
        found = workload.with_dims(**dict.fromkeys(names, size))
        with suppress(TunerError):
            kernel.check_workload(found)
            return found
    return kernel.small_workload(workload)


def largest_workloads(kernel: Kernel, base: Workload) -> Iterator[Workload]:
    """A workload with one size after the other as large as tensors of 31-bit numbers of elements
    or the memory of a device allow."""
    for name in base:
        if type(base[name]) is not int or base[name] < 1:
            continue
        for fits in (_is_narrow, _fits_memory):
            found = [_largest(kernel, base, name, step, fits) for step in {1, 16, base[name]}]
            size = max(found)
            if size > base[name]:
                yield base.with_dims(**{name: size})


def _largest(kernel: Kernel, base: Workload, name: str, step: int, fits: Callable) -> int:
    """The largest multiple of a step that a size may be."""
    low, high = 0, _LARGEST // step + 1
    while high - low > 1:
        middle = (low + high) // 2
        at = base.with_dims(**{name: middle * step})
        try:
            kernel.check_workload(at)
            fitting = fits(kernel, at)
        except (TunerError, RuntimeError, OverflowError):
            fitting = False
        low, high = (middle, high) if fitting else (low, middle)
    return low * step


def _sizes(kernel: Kernel, workload: Workload) -> list[tuple[int, int]]:
    """Elements and bytes of each input and output."""
    tensors = list(kernel.make_inputs(workload, 0, "meta").values())
    found = [(tensor.numel(), tensor.numel() * tensor.element_size()) for tensor in tensors]
    specs = kernel.outputs(workload).values()
    counts = [(prod(spec.shape), torch_dtype(spec.dtype).itemsize) for spec in specs]
    return found + [(count, count * each) for count, each in counts]


def _is_narrow(kernel: Kernel, workload: Workload) -> bool:
    return max(elements for elements, _ in _sizes(kernel, workload)) <= MOST_NARROW


def _fits_memory(kernel: Kernel, workload: Workload) -> bool:
    return sum(size for _, size in _sizes(kernel, workload)) <= MOST_BYTES


# -- in the interpreter ----------------------------------------------------------------------------
class _Left(BaseException):
    """A program that is left, since it would wait for another."""


class _Tensor:
    """A tensor of the `meta` device at an address of its own.

    top: what bounds the values that are loaded; 0: loads give zeros.
    """

    def __init__(self, tensor: torch.Tensor, top: int, place: int) -> None:
        self.begin, self.top, self.number = place * _APART, top, tensor.numel()
        self.size = tensor.numel() * tensor.element_size()


class Checker:
    """What replaces memory and checks integers, for all launches of a process."""

    def __init__(self, interpreter: Any) -> None:
        self.tensors: dict[int, _Tensor] = {}
        self.found: dict[str, None] = {}
        self._interpreter, self._handle = interpreter, interpreter.TensorHandle
        self._calls = 0
        builder = interpreter.InterpreterBuilder
        for name, exact in {
            "create_add": np.add, "create_sub": np.subtract, "create_mul": np.multiply,
        }.items():  # fmt: skip
            setattr(builder, name, self._checked(getattr(builder, name), exact))
        builder.cast_impl = self._fitting(builder.cast_impl)
        builder.create_masked_load = self._load
        builder.create_masked_store = lambda _, at, value, mask, *rest, **named: self._reach(
            at, mask
        )
        builder.create_atomic_rmw = self._atomic
        builder.create_atomic_cas = self._exchange
        builder.create_dot = lambda _, a, b, acc, *rest: acc
        interpreter.GridExecutor._init_args_hst = lambda _, args, kwargs: (args, kwargs)
        interpreter.GridExecutor._restore_args_dev = lambda *_: None
        interpreter.range = self._corners
        self._convert = interpreter._implicit_cvt
        interpreter._implicit_cvt = self._argument
        patch = interpreter._patch_lang_core

        def patch_core(lang: Any, scope: Any) -> None:
            patch(lang, scope)
            scope.set_attr(lang, "range", self._ends)
            scope.set_attr(lang, "static_range", _ends_of_unrolled)

        interpreter._patch_lang_core = patch_core
        execute = interpreter.GridExecutor.__call__

        def run(executor: Any, *args: Any, **kwargs: Any) -> None:
            # Programs after one that is left are left out too; the last program runs first.
            with suppress(_Left):
                execute(executor, *args, **kwargs)

        interpreter.GridExecutor.__call__ = run

    def place(self, tensor: torch.Tensor, top: int) -> None:
        key = tensor.untyped_storage()._cdata
        self.tensors[key] = _Tensor(tensor, top, len(self.tensors) + 1)

    def _call(self) -> None:
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise _Left

    def _note(self, what: str) -> None:
        frames = traceback.extract_stack()
        own = [frame for frame in frames if "/kernels/" in frame.filename]
        where = f"{Path(own[-1].filename).parent.name}:{own[-1].lineno}" if own else "?"
        self.found[f"{where} {own[-1].line if own else ''}: {what}"] = None

    def _checked(self, method: Callable, exact: Callable) -> Callable:
        def calculate(builder: Any, left: Any, right: Any) -> Any:
            self._call()
            result = method(builder, left, right)
            if {left.data.dtype, right.data.dtype} <= _NARROW:
                true = exact(left.data, right.data, dtype=np.int64)
                if (true != result.data).any():
                    self._note(f"{exact.__name__} gives {int(np.abs(true).max())}")
            return result

        return calculate

    def _fitting(self, method: Callable) -> Callable:
        def cast(builder: Any, source: Any, target: Any) -> Any:
            result = method(builder, source, target)
            whole = source.data.dtype.kind in "iu" and result.data.dtype in _NARROW
            if whole and (source.data.astype(np.int64) != result.data.astype(np.int64)).any():
                self._note(f"cast of {int(np.abs(source.data).max())}")
            return result

        return cast

    def _argument(self, argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return self._convert(argument)
        import triton
        import triton.language as tl

        known = self.tensors.get(argument.untyped_storage()._cdata)
        if known is None:
            self.place(argument, 0)
            known = self.tensors[argument.untyped_storage()._cdata]
        at = known.begin + argument.storage_offset() * argument.element_size()
        kind = tl.str_to_ty(triton.runtime.jit.mangle_type(argument), None)
        return tl.tensor(self._handle(np.array([at], dtype=np.uint64), kind), kind)

    def _reach(self, at: Any, mask: Any) -> np.ndarray:
        """Offsets in bytes from the tensor that is reached; notes those outside of it."""
        self._call()
        shown = np.asarray(mask if isinstance(mask, np.ndarray) else mask.data).astype(bool)
        addresses = at.data.astype(np.int64)
        place = addresses // _APART
        places = place[np.broadcast_to(shown, place.shape)]
        for number in np.unique(places):
            tensor = self._at(number)
            far = (addresses - number * _APART)[(place == number) & shown]
            if tensor is None or far.max() >= tensor.size:
                self._note(f"reaches byte {int(far.max())} of {tensor.size if tensor else 0}")
        return addresses

    def _at(self, number: int) -> _Tensor | None:
        found = (tensor for tensor in self.tensors.values() if tensor.begin == number * _APART)
        return next(found, None)

    def _load(self, at: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        addresses = self._reach(at, mask)
        result = self._loaded(at, addresses)
        if other is not None:
            shown = np.asarray(mask if isinstance(mask, np.ndarray) else mask.data).astype(bool)
            result.data = np.where(shown, result.data, other.data).astype(result.data.dtype)
        return result

    def _loaded(self, at: Any, addresses: np.ndarray) -> Any:
        kind = at.get_element_ty()
        values = np.zeros(at.data.shape, self._interpreter._get_np_dtype(kind))
        if kind.is_int() and kind.primitive_bitwidth >= 32:
            tensor = self._at(addresses.flat[0] // _APART)
            if tensor is None or not tensor.top:
                # Links, which a loop would follow without an end.
                self._calls += _MOST_CALLS // 100
            else:
                place = (addresses - tensor.begin) // values.dtype.itemsize
                last = max(tensor.number - 1, 1)
                ramp = np.minimum(place, last).astype(object) * tensor.top // last
                values = ramp.astype(values.dtype)
        return self._handle(values, kind)

    def _atomic(self, operation: Any, at: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self._reach(at, mask)
        return self._handle(np.zeros(at.data.shape, value.data.dtype), value.dtype.scalar)

    def _exchange(self, at: Any, compare: Any, value: Any, *rest: Any) -> Any:
        return self._loaded(at, self._reach(at, np.ones(at.data.shape, bool)))

    def _corners(self, size: int) -> Iterator[int]:
        """The last and the first program of an axis."""
        for at in dict.fromkeys((size - 1, 0)):
            self._calls = 0
            yield at

    def _ends(self, *bounds: Any, **options: Any) -> Iterator[Any]:
        """The first and the last two turns of a loop, with a counter of the type that it has."""
        if "step" in options:
            bounds = (*bounds, options["step"])
        wide = any(getattr(getattr(b, "dtype", None), "name", "") == "int64" for b in bounds)
        turns = builtins.range(*map(int, bounds))
        last = turns[-1] + turns.step if turns else 0
        if not wide and last > _LARGEST:
            self._note(f"the counter of a loop reaches {last}")
        ends = (*turns[:2], *turns[max(2, len(turns) - 2) :])
        for at in ends:
            yield self._counter(at, wide)

    def _counter(self, at: int, wide: bool) -> Any:
        import triton.language as tl

        kind = tl.int64 if wide or not -(2**31) <= at <= _LARGEST else tl.int32
        data = np.array([at], np.int64 if kind == tl.int64 else np.int32)
        return tl.tensor(self._handle(data, kind), kind)


def _ends_of_unrolled(*bounds: int) -> Sequence[int]:
    """The ends of a loop that is unrolled."""
    turns = builtins.range(*bounds)
    return (*turns[:32], *turns[max(32, len(turns) - 32) :])


def tops(kernel: Kernel, workload: Workload) -> dict[str, int]:
    """What bounds the values of each input of integers: the same axis, or number of elements, of
    the inputs that bounds them in the small workload."""
    small = kernel.small_workload(workload)
    drawn = dict(kernel.make_inputs(small, 1, "cpu"))
    large = dict(kernel.make_inputs(workload, 0, "meta"))
    bounds = sorted({
        (near, far)
        for name, tensor in drawn.items()
        for near, far in (
            *zip(tensor.shape, large[name].shape, strict=True),
            (tensor.numel(), large[name].numel()),
        )
    } | {(small[name], workload[name]) for name in small if type(small[name]) is int})  # fmt: skip
    found = {}
    for name, tensor in drawn.items():
        if tensor.dtype in (torch.int32, torch.int64) and tensor.numel():
            highest = int(tensor.max())
            near, far = next((b for b in bounds if b[0] >= highest), (0, 0))
            # Numbers of elements are reached themselves, places are below.
            found[name] = far if near == highest else far - 1
    return found


def check(kernel: Kernel, workload: Workload, config: Config, checker: Checker) -> list[str]:
    """Faults of a variant."""
    checker.tensors.clear()
    checker.found.clear()
    tensors = dict(kernel.make_inputs(workload, 0, "meta"))
    bounds = tops(kernel, workload)
    for name, spec in {**kernel.outputs(workload), **kernel.scratch(workload, config)}.items():
        tensors[name] = torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="meta")
    for name, tensor in tensors.items():
        checker.place(tensor, bounds.get(name, 0))
    for launch in kernel.launches(workload, config, tensors):
        if any(size > most for size, most in zip(launch.grid, _GRID, strict=False)):
            continue  # the driver refuses it
        try:
            launch.fn[launch.grid](*launch.args, **launch.kwargs)
        except InterpreterError as error:  # or what the interpreter cannot do
            if "is out of range for type" in f"{error}":
                checker.found[f"{error}"] = None
    return list(checker.found)


def main() -> None:
    extend()
    warnings.simplefilter("ignore")
    checker = Checker(importlib.import_module("triton.runtime.interpreter"))
    for job in json.load(sys.stdin):
        workload = Workload.from_mapping(job["workload"])
        found = check(load(job["spec"]), workload, job["config"], checker)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    serve(main)
