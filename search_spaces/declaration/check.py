"""A check of a declaration before any build: one launch, one reference, no device.

Per workload, with the default config: `launches` on tensors of the `meta` device, their arguments
bound to the Triton function's parameters, or one call of `cpu_callable`; `reference` on real
tensors of a small workload or, where that is too large to be quick, on `meta` tensors, for shapes.
Nothing is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from search_spaces.absent_device.fake_driver import answering_if_used, without_device
from search_spaces.declaration import guarded_calls
from search_spaces.declaration.launch_arguments import binding_error, name_of, tensors_in
from search_spaces.errors import KernelError, WorkloadError
from search_spaces.kernel import Kernel, Launch
from search_spaces.records import Config, Device, TensorSpec, Workload

if TYPE_CHECKING:
    import torch

    Named = Mapping[str, torch.Tensor]

#: Bytes and operations up to which a workload's reference is computed on a CPU.
_MOST_BYTES = 256 * 2**20
_MOST_FLOPS = 2e9
#: Text of errors of code that needs a device, which the declaration may well have.
_NEEDS_DEVICE = re.compile(
    r"\b(cuda|hip|gpu|nvidia|triton)\b|cpu tensor|active drivers", re.IGNORECASE
)
_SEE = "see docs/search_spaces.md, `Checked before a run`"


class DeclarationCheck:
    """Checks declarations; a small workload that several workloads share is checked once."""

    def __init__(self) -> None:
        self._tried: set[tuple[int, Workload]] = set()

    def check(self, kernel: Kernel, workload: Workload, config: Config, device: Device) -> None:
        """Raise `KernelError` for the first mistake, naming kernel, method, workload and line.

        device: one of kind `cpu`, `cuda` or `hip`; the others launch nothing and pass. torch and
        Triton describe it to the kernel, as in builders, except to the reference, which runs here.
        """
        if device.kind not in ("cpu", "cuda", "hip"):
            return
        # Inputs are torch's own tensors only where torch is loaded, and the reference needs them.
        import torch  # noqa: F401

        with answering_if_used(device):
            with guarded_calls.guard_call(kernel, "make_inputs", workload):
                inputs = kernel.make_inputs(workload, 0, "meta")
            _check_tensors(kernel, "make_inputs", workload, inputs)
            if device.kind == "cpu":
                _check_cpu(kernel, workload, config)
            else:
                _check_launches(kernel, workload, config, inputs, device.kind)
        self._check_reference(kernel, workload, inputs)

    def _check_reference(self, kernel: Kernel, workload: Workload, inputs: Named) -> None:
        small = _small(kernel, workload)
        if (id(kernel), small) in self._tried:
            return
        self._tried.add((id(kernel), small))
        with guarded_calls.guard_call(kernel, "cost", small):
            cost = kernel.cost(small)
        # A reference that launches kernels, as that of a captured call, must not do so on tensors
        # of the CPU or without memory: the caller's process would lose its device.
        with without_device():
            if cost.bytes <= _MOST_BYTES and cost.flops <= _MOST_FLOPS:
                _check_values(kernel, small)
                return
            # Not for all: torch takes seconds to import what arithmetic on `meta` needs.
            found: object = None
            with suppress(Exception):
                found = kernel.reference(workload, inputs)
        if found is not None:
            _check_outputs(kernel, workload, found)


def _small(kernel: Kernel, workload: Workload) -> Workload:
    """The kernel's own small workload, which it must be able to take."""
    with guarded_calls.guard_call(kernel, "small_workload", workload):
        small = kernel.small_workload(workload)
        try:
            kernel.check_workload(small)
        except WorkloadError as error:
            raise KernelError(
                f"{guarded_calls.place(kernel, 'small_workload', workload)} gives {small.key!r}, "
                f"which the kernel cannot take: {error.message}",
                "name dims of the kernel only, in `small=` or in what small_workload() returns",
            ) from error
    return small


# -- variants --------------------------------------------------------------------------------------
def _check_cpu(kernel: Kernel, workload: Workload, config: Config) -> None:
    with guarded_calls.guard_call(kernel, "cpu_callable", workload):
        found = kernel.cpu_callable(workload, config)
    if not callable(found):
        raise _wrong(kernel, "cpu_callable", workload, f"returns {found!r:.80}, no function")


def _check_launches(
    kernel: Kernel, workload: Workload, config: Config, inputs: Named, kind: str
) -> None:
    tensors = {**inputs, **_buffers(kernel, workload, config)}
    dims = ", ".join(workload)
    hint = f"correct the kernel; its tensors are {', '.join(tensors)}, its dims are {dims}"
    with guarded_calls.guard_call(kernel, "launches", workload, hint):
        launches = list(kernel.launches(workload, config, tensors))
    unknown = [item for item in launches if not isinstance(item, Launch)]
    if unknown or not launches:
        wrong = f"gives {unknown[0]!r:.80}, no Launch" if unknown else "gives no Launch"
        raise _wrong(kernel, "launches", workload, wrong)
    for launch in launches:
        with guarded_calls.guard_call(kernel, "launches", workload, hint):
            problem = binding_error(launch, kind)
        if problem:
            raise _wrong(kernel, "launches", workload, f"passes {name_of(launch)} {problem}")
    reached = {id(t) for launch in launches for t in tensors_in(launch)}
    memory = {_memory(t) for launch in launches for t in tensors_in(launch)}
    for name in kernel.outputs(workload):
        if id(tensors[name]) not in reached and _memory(tensors[name]) not in memory:
            raise _wrong(
                kernel, "launches", workload, f"passes the output {name} to no launch", hint
            )


def _memory(tensor: Any) -> int:
    """What a tensor and its views share, also on `meta`."""
    return int(tensor.untyped_storage()._cdata)


def _buffers(kernel: Kernel, workload: Workload, config: Config) -> dict[str, torch.Tensor]:
    """Outputs and scratch as a builder has them."""
    from search_spaces.tensors import empty_tensors

    with guarded_calls.guard_call(kernel, "scratch", workload):
        scratch = kernel.scratch(workload, config)
    if not isinstance(scratch, Mapping) or not all(
        isinstance(spec, TensorSpec) for spec in scratch.values()
    ):
        raise _wrong(kernel, "scratch", workload, f"returns {scratch!r:.80}")
    with guarded_calls.guard_call(kernel, "outputs", workload):
        return empty_tensors({**kernel.outputs(workload), **scratch}, "meta")


def _check_tensors(kernel: Kernel, method: str, workload: Workload, found: object) -> None:
    import torch

    if not isinstance(found, Mapping):
        raise _wrong(kernel, method, workload, f"returns a {type(found).__name__}, no mapping")
    for name, tensor in found.items():
        if not isinstance(tensor, torch.Tensor):
            raise _wrong(
                kernel, method, workload, f"returns a {type(tensor).__name__} as {name}, no tensor"
            )


# -- references ------------------------------------------------------------------------------------
def _check_values(kernel: Kernel, small: Workload) -> None:
    """The reference of real inputs on the CPU; what needs a device is not looked at."""
    for method in ("make_inputs", "reference"):
        try:
            with guarded_calls.guard_call(kernel, method, small):
                if method == "make_inputs":
                    inputs = kernel.make_inputs(small, 1, "cpu")
                else:
                    found = kernel.reference(small, inputs)
        except KernelError as error:
            if "cpu" not in kernel.kinds and _NEEDS_DEVICE.search(f"{error.__cause__}"):
                return
            raise
        if method == "make_inputs":
            _check_tensors(kernel, method, small, inputs)
    _check_outputs(kernel, small, found)


def _check_outputs(kernel: Kernel, workload: Workload, found: object) -> None:
    _check_tensors(kernel, "reference", workload, found)
    assert isinstance(found, Mapping)
    for problem in _misfits(found, kernel.outputs(workload)):
        raise _wrong(
            kernel, "reference", workload, problem, "make reference and outputs agree; " + _SEE
        )


def _misfits(found: Mapping[str, Any], outputs: Mapping[str, TensorSpec]) -> Iterator[str]:
    import torch

    for name, spec in outputs.items():
        if name not in found:
            yield f"returns {', '.join(found) or 'nothing'}, the outputs are {', '.join(outputs)}"
            continue
        tensor, dtype = found[name], getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype):
            yield f"is to match output {name}, whose dtype {spec.dtype!r} torch does not have"
        elif tuple(tensor.shape) != tuple(spec.shape):
            yield (
                f"returns {name} of shape {tuple(tensor.shape)}, "
                f"outputs() declares {tuple(spec.shape)}"
            )
        elif tensor.is_complex() or (dtype.is_floating_point and not tensor.is_floating_point()):
            kind = str(tensor.dtype).removeprefix("torch.")
            yield f"returns {name} as {kind}, outputs() declares {spec.dtype}"


def _wrong(
    kernel: Kernel, method: str, workload: Workload, problem: str, hint: str = _SEE
) -> KernelError:
    return KernelError(f"{guarded_calls.place(kernel, method, workload)} {problem}", hint)
