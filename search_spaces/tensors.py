"""Tensors from specs and seeds, and functions of tensors as baselines.

Each function imports torch when it is called, so that a declaration needs none.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

from search_spaces.shape_tensor import empty_on_meta, torch_dtype

if TYPE_CHECKING:
    import torch

    from search_spaces.records import TensorSpec

#: Tensors by name.
Tensors: TypeAlias = "Mapping[str, torch.Tensor]"

#: Programs a persistent launch uses where the device is not at hand (built, not launched).
_UNKNOWN_SM_COUNT = 132
_VARIANTS = count()
_COMPILED = "tuner_compiled"


def generator(seed: int, device: str) -> torch.Generator | None:
    """A generator seeded for that device; None on `meta`, where nothing is drawn."""
    if device == "meta":
        return None
    import torch

    return torch.Generator(device=device).manual_seed(seed)


def random_tensor(
    spec: TensorSpec,
    source: torch.Generator | None,
    device: str,
    scale: float = 1.0,
    limits: tuple[int, int] = (0, 128),
) -> torch.Tensor:
    """Normally distributed values of a spec, `scale` their standard deviation.

    Integers are uniform from the first of `limits` up to below the second, booleans fair. Without a
    generator the tensor is empty.
    """
    if device == "meta":
        return empty_on_meta(spec)
    import torch

    dtype = torch_dtype(spec.dtype)
    if source is None:
        return torch.empty(spec.shape, dtype=dtype, device=device)
    if dtype == torch.bool:
        return torch.randint(2, spec.shape, generator=source, device=device).bool()
    if not dtype.is_floating_point:
        return torch.randint(*limits, spec.shape, generator=source, device=device).to(dtype)
    values = torch.randn(spec.shape, generator=source, device=device, dtype=torch.float32)
    return values.mul_(scale).to(dtype)


def draw_tensor(spec: TensorSpec, source: torch.Generator | None, device: str) -> torch.Tensor:
    """A random tensor with the values that its spec asks for."""
    found = random_tensor(spec, source, device, spec.scale, spec.limits)
    shifted = spec.mean and source is not None and found.is_floating_point()
    return found.add_(spec.mean) if shifted else found


def widen(tensors: Tensors) -> Tensors:
    """Tensors of floating point in float64, the others as they are."""
    return {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def empty_tensors(specs: Mapping[str, TensorSpec], device: str) -> dict[str, torch.Tensor]:
    """Uninitialised tensors of the specs, by name; without memory on `meta`."""
    if device == "meta":
        return {name: empty_on_meta(spec) for name, spec in specs.items()}
    import torch

    return {
        name: torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device=device)
        for name, spec in specs.items()
    }


def sm_count(tensor: torch.Tensor) -> int:
    """Multiprocessors of the device the tensor is on."""
    if tensor.device.type != "cuda":
        return _UNKNOWN_SM_COUNT
    import torch

    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def compiled(
    fn: Callable[..., Any], options: Mapping[str, str | int | None] | None = None
) -> Callable[..., Any]:
    """`torch.compile` of a function for exactly the shapes it is called with.

    Each call of `compiled` makes a separate code object: torch keeps the compilations of one code
    object in one list, searches it on every call and falls back to eager beyond eight entries. The
    compiler, whose import takes seconds, is imported when the function is first called.
    """
    made: Callable[..., Any] | None = None

    def run(*tensors: torch.Tensor, **by_name: torch.Tensor) -> Any:
        nonlocal made
        if made is None:
            made = _compiled(fn, options)
        return made(*tensors, **by_name)

    setattr(run, _COMPILED, True)
    return run


def scripted(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """TorchScript of a function, traced when it is first called, for the shapes of that call."""
    made: Callable[..., torch.Tensor] | None = None

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        nonlocal made
        if made is None:
            import torch

            with warnings.catch_warnings():
                # torch advises against TorchScript; users who have it want to see its time.
                warnings.simplefilter("ignore")
                made = torch.jit.trace(fn, tensors, check_trace=False)  # type: ignore[no-untyped-call]
        return made(*tensors)

    return run


def is_compiled(fn: Callable[..., object]) -> bool:
    """Whether a function is made by `compiled`, or by `named` of such a function."""
    return bool(getattr(fn, _COMPILED, False))


def _compiled(
    fn: Callable[..., Any], options: Mapping[str, str | int | None] | None
) -> Callable[..., Any]:
    import torch

    name = f"{fn.__name__}_{next(_VARIANTS)}"
    code = fn.__code__.replace(co_name=name)
    _import_inductor()
    own = FunctionType(code, fn.__globals__, name, fn.__defaults__, fn.__closure__)
    chosen: Any = dict(options) if options else None
    return torch.compile(own, dynamic=False, options=chosen)


@cache
def _import_inductor() -> None:
    """Import the compiler without the deprecation warnings its own modules raise on import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._inductor.compile_fx")


def named(
    outputs: str | tuple[str, ...], fn: Callable[..., Any], *arguments: str
) -> Callable[..., Tensors]:
    """A function of named tensors as a baseline: inputs -> {name of output: tensor}.

    outputs: the name of the one tensor that the function returns, or the names of several.
    arguments: the tensors that it takes; without any, all of them in order.
    """

    def run(inputs: Tensors) -> Mapping[str, torch.Tensor]:
        returned = fn(*(inputs[argument] for argument in arguments or inputs))
        if isinstance(outputs, str):
            return {outputs: returned}
        return dict(zip(outputs, returned, strict=True))

    setattr(run, _COMPILED, is_compiled(fn))
    return run
