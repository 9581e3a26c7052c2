"""Calls of a kernel's own methods: any exception of its code becomes a one-line `KernelError`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from search_spaces.absent_device.fake_driver import answering_if_used
from search_spaces.bound import BoundSpace
from search_spaces.edges import check_edges
from search_spaces.errors import KernelError, SpaceError, TunerError, WorkloadError
from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.measured_defaults import measured_default
from search_spaces.near_names import did_you_mean
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.source_positions import one_line

_SEE = "see docs/search_spaces.md for what it should return"
_HINT = "correct the kernel; --debug shows the traceback"


@contextmanager
def guard_call(
    kernel: Kernel, method: str, workload: Workload | None = None, hint: str = _HINT
) -> Iterator[None]:
    """Turn an exception of the kernel's own code into a `KernelError` that names the place."""
    try:
        yield
    except TunerError as error:
        if not isinstance(error, SpaceError) or kernel.name in error.message:
            raise
        text = f"{place(kernel, method, workload)}: {error.message}"
        raise SpaceError(text, error.hint) from error
    except Exception as error:
        text = _find_missing_dim(error, workload) or one_line(error)
        raise KernelError(f"{place(kernel, method, workload)} raises {text}", hint) from error


def _find_missing_dim(error: Exception, workload: Workload | None) -> str:
    """What to say of a KeyError of the workload itself; empty text for another error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    own = trace is not None and trace.tb_frame.f_code is Workload.__getitem__.__code__
    if not own or workload is None:
        return ""
    name = f"{error.args[0]}"
    return f"KeyError: the workload has no dim {name!r}{did_you_mean(name, workload)}"


def workloads(kernel: Kernel) -> list[Workload]:
    """The kernel's own workloads; `KernelError` where there are none."""
    with guard_call(kernel, "workloads"):
        try:
            found = list(kernel.workloads())
        except WorkloadError as error:
            if kernel.dims:
                raise
            raise WorkloadError(
                f"{place(kernel, 'workloads')} needs `dims`, and none are declared",
                'declare them, as in `dims = Dims(rows=int, dtype=("float16", "float32"))`',
            ) from error
    unknown = [item for item in found if not isinstance(item, Workload)]
    if unknown or not found:
        wrong = f"lists {unknown[0]!r}, which is no Workload" if unknown else "lists none"
        raise KernelError(
            f"{place(kernel, 'workloads')} {wrong}",
            "list `Workload.of(...)` there, or name dims in the task's `workloads:`",
        )
    refuse_alike(kernel, found)
    return found


def refuse_alike(kernel: Kernel, workloads: Iterable[Workload]) -> None:
    """Refuse workloads that differ for people and are equal in Python, as 1 and True are."""
    keys: dict[Workload, str] = {}
    for workload in workloads:
        known = keys.setdefault(workload, workload.key)
        if known != workload.key:
            raise WorkloadError(
                f"kernel {kernel.name}: the workloads {known!r} and {workload.key!r} are equal in "
                "Python and cannot be told apart",
                "use one kind of value: a number, a boolean or a text",
            )


def order_dims(kernel: Kernel, workload: Workload) -> Workload:
    """The workload with its dims as the kernel declares them, or as its first workload has them."""
    if kernel.dims:
        return workload.in_order(kernel.dims)
    with guard_call(kernel, "workloads"):
        return workload.in_order(next(iter(kernel.workloads()), ()))


def check(kernel: Kernel, workload: Workload) -> None:
    """Refuse a workload the kernel cannot take, and a declaration that cannot be tuned by."""
    # First of all, so that what methods leave behind in caches does not count.
    with guard_call(kernel, "launch_hash"):
        kernel.launch_hash()
    _check_values(kernel, workload)
    check_edges(kernel.name, kernel.edges)
    with guard_call(kernel, "check_workload", workload):
        try:
            kernel.check_workload(workload)
        except WorkloadError as error:
            named = f"{kernel.name} [{workload.key}]: "
            message = error.message.removeprefix(named)
            raise WorkloadError(
                f"{kernel.name} cannot take workload {workload.key!r}: {message}", error.hint
            ) from error
    # By default cost() and outputs() follow from these: a mistake there is said to be theirs.
    if type(kernel).make_inputs is Kernel.make_inputs:
        with guard_call(kernel, "inputs", workload):
            kernel.inputs(workload)
    if type(kernel).outputs is Kernel.outputs:
        own = type(kernel).reference is not Kernel.reference
        with guard_call(kernel, "reference" if own else "eager", workload):
            kernel.outputs(workload)
    with guard_call(kernel, "cost", workload):
        cost = kernel.cost(workload)
    if not isinstance(cost, Cost) or not all(map(_is_amount, (cost.flops, cost.bytes))):
        raise _returns(kernel, "cost", workload, cost)
    with guard_call(kernel, "tolerance", workload):
        tolerance = kernel.tolerance(workload)
    if not isinstance(tolerance, Tolerance) or not _is_amount(tolerance.relative):
        raise _returns(kernel, "tolerance", workload, tolerance)
    with guard_call(kernel, "outputs", workload):
        outputs = kernel.outputs(workload)
    if not isinstance(outputs, Mapping) or not all(
        isinstance(spec, TensorSpec) for spec in outputs.values()
    ):
        raise _returns(kernel, "outputs", workload, outputs)
    with guard_call(kernel, "baselines", workload):
        baselines = kernel.baselines(workload)
    if not isinstance(baselines, Mapping):
        raise _returns(kernel, "baselines", workload, baselines)


def _check_values(kernel: Kernel, workload: Workload) -> None:
    """Refuse a workload with a value that JSON has not, or that equals another after it."""
    for name, value in workload.dims:
        if type(value) not in (bool, int, float, str, type(None)):
            raise WorkloadError(
                f"kernel {kernel.name} cannot take workload {workload.key!r}: {name} is a "
                f"{type(value).__module__}.{type(value).__qualname__}",
                "use numbers, texts, booleans or None, such as int(size)",
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise WorkloadError(
                f"kernel {kernel.name} cannot take workload {workload.key!r}: {name} is not finite",
                'use a text, such as "inf"',
            )


def bind(kernel: Kernel, workload: Workload, device: Device) -> BoundSpace:
    """The kernel's space on a device; its default must be made of the space's own values."""
    with answering_if_used(device), guard_call(kernel, "space", workload):
        bound = kernel.space(workload).bind(workload, device)
    reason = BoundSpace(bound.parameters, (), workload, device).why_not(
        _declared_default(kernel, workload, device)
    )
    if reason is not None:
        raise KernelError(
            f"{place(kernel, 'default_config', workload)} is no point of the space: {reason}",
            "return what is used today as a config of the space, or widen the space",
        )
    return bound


def default_config(kernel: Kernel, workload: Workload, device: Device) -> Config:
    """What is used without tuning: of built-in kernels by measurements, else as the kernel says."""
    with answering_if_used(device), guard_call(kernel, "space", workload):
        found = measured_default(kernel, workload, device)
    return _declared_default(kernel, workload, device) if found is None else dict(found)


def _declared_default(kernel: Kernel, workload: Workload, device: Device) -> Config:
    with answering_if_used(device), guard_call(kernel, "default_config", workload):
        return dict(kernel.default_config(workload, device))


def place(kernel: Kernel, method: str, workload: Workload | None = None) -> str:
    """`kernel rope: cost() for 'n=4'`: where in a declaration something is wrong."""
    return f"kernel {kernel.name}: {method}()" + (f" for {workload.key!r}" if workload else "")


def _returns(kernel: Kernel, method: str, workload: Workload, found: object) -> KernelError:
    return KernelError(f"{place(kernel, method, workload)} returns {found!r:.120}", _SEE)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0
