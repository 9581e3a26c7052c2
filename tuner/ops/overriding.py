"""What takes the place of an operator's function: torch's function, or a node of `torch.fx`.

Arguments that no kernel reads reach torch's function as they were given: tensor subclasses, and
nested, sparse and mkldnn tensors. Objects with `__torch_function__` that are no tensors, such as
the proxies of `torch.fx`, get the operator's function itself, as they get torch's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import handle_torch_function

from tuner.ops.problem import PLAIN

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Function = Callable[_Parameters, _Result]
#: Types of arguments that override nothing; Dynamo of torch 2.11 cannot look into some of them.
_VALUES = (int, float, str, tuple, list, dict, type(None), torch.dtype, torch.device)


class _Thread(threading.local):
    """Whether torch's functions stay as they are in this thread, within an operator that runs
    them."""

    left = False


_THREAD = _Thread()
#: The operator's function by the functions of torch that it takes the place of.
STANDS_FOR: dict[Callable[..., Any], Callable[..., Any]] = {}


def overridable(
    torchs: Callable[..., object] | None = None, *others: Callable[..., object]
) -> Callable[[_Function[_Parameters, _Result]], _Function[_Parameters, _Result]]:
    """A function of tensors that gives way to `torchs`, torch's function of the same parameters.

    others: functions and methods of torch of the same meaning.
    """

    def decorate(
        function: _Function[_Parameters, _Result],
    ) -> _Function[_Parameters, _Result]:
        @wraps(function)
        def call(*given: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
            for each in (*given, *named.values()) if named else given:
                if isinstance(each, torch.Tensor):
                    if torchs is not None and _is_foreign(each):
                        return torchs(*given, **named)  # type: ignore[return-value]
                elif not isinstance(each, _VALUES) and hasattr(type(each), "__torch_function__"):
                    found: _Result = handle_torch_function(call, (each,), *given, **named)
                    return found
            return function(*given, **named)

        STANDS_FOR.update((each, call) for each in (torchs, *others) if each is not None)
        return call

    return decorate


def _is_foreign(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in PLAIN or isinstance(tensor, FakeTensor | FunctionalTensor)
    return not plain or tensor.layout is not torch.strided or tensor.is_nested


def is_left_to_torch() -> bool:
    """Whether torch's functions are to run as they are."""
    return _THREAD.left


def leave_to_torch(call: Callable[..., _Result], *given: object) -> _Result:
    """What a call returns in which nothing takes the place of torch's functions."""
    former, _THREAD.left = _THREAD.left, True
    try:
        return call(*given)
    finally:
        _THREAD.left = former
