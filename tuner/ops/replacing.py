"""Operators in place of torch's functions, and the numerics that are asked of them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from search_spaces.errors import TunerError
from tuner.ops.call_counts import Scope
from tuner.ops.choosing import (
    ANY,
    BATCH_INVARIANT,
    numerics_of_calls,
    require,
    warn_of_torch,
)
from tuner.ops.first_calls import FirstCalls
from tuner.ops.operator import BEFORE_FORGETTING
from tuner.ops.overriding import STANDS_FOR, is_left_to_torch

#: Functions of torch and what takes their place. Kernels of `embedding` do not check its ids.
_OPERATORS = {torchs: ours for torchs, ours in STANDS_FOR.items()
              if torchs is not functional.embedding}  # fmt: skip
_SIGNATURES = {ours: inspect.signature(ours) for ours in _OPERATORS.values()}


class Replacing(TorchFunctionMode):
    """Calls operators where torch's functions are called; a mode is off inside of itself."""

    def __init__(self) -> None:
        super().__init__()
        self._checks = {ours: FirstCalls(ours.__name__) for ours in _SIGNATURES}
        self._left = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours, kwargs = _OPERATORS.get(func), kwargs or {}
        if ours is None or self._left or is_left_to_torch() or self._checks[ours].wrong:
            return func(*args, **kwargs)
        named = {name: each for name, each in kwargs.items() if name != "_stacklevel"}
        if not _fits(ours, args, named):
            return func(*args, **kwargs)
        given = next(each for each in (*args, *named.values()) if isinstance(each, torch.Tensor))
        found = ours(*args, **named)
        return self._checks[ours].keep(found, lambda: func(*args, **kwargs), given)

    def leave(self) -> None:
        """Replace nothing any more; where it is the innermost mode, it ends."""
        innermost: Any = _get_current_function_mode()  # type: ignore[no-untyped-call]
        if not self._left and innermost is self:
            self.__exit__(None, None, None)
        self._left = True


def _fits(ours: Any, args: Any, named: dict[str, Any]) -> bool:
    """Whether the operator has these parameters, and no call of these is as any other."""
    try:
        bound = _SIGNATURES[ours].bind(*args, **named).arguments
    except TypeError:
        return False
    random, implicit = bound.get("dropout_p", 0.0), bound.get("dim", -1) is None
    return not random and not implicit and not bound.get("inplace", False)


@contextmanager
def replaced() -> Iterator[None]:
    """Run operators in place of torch's functions of the same meaning, in this thread, until the
    block ends: `softmax`, `rms_norm`, `linear`, `scaled_dot_product_attention` and others.

    For models that `patch` does not know. First calls are compared as there. Every call of torch
    inside costs a few microseconds more.
    """
    with Replacing():
        yield


# -- numerics --------------------------------------------------------------------------------------
#: What the open blocks of all threads ask for, the last of which counts; and the decisions under
#: the other numerics.
_asked: list[str] = []
_asking = threading.Lock()
_idle: list[Scope] = []
BEFORE_FORGETTING.append(lambda _: _idle.clear())


@contextmanager
def numerics(kind: str) -> Iterator[None]:
    """Let bits of results depend on `any` thing, or be `batch_invariant`, in the whole process.

    With `batch_invariant`, a row has the same bits whatever other rows a call has: operators run
    the configs of tables that were tuned so (`tuner.tune(..., numerics="batch_invariant")`), in
    this thread also in place of torch's functions, and where no range of one holds a call, torch's
    function with a warning. `report` tells the calls of the block inside of it.
    """
    if kind not in (ANY, BATCH_INVARIANT):
        raise TunerError(f"numerics is {kind!r}", f"it is {ANY!r} or {BATCH_INVARIANT!r}")
    with _asking:
        _asked.append(kind)
        _decide_as_asked()
    try:
        with _replacing() if kind == BATCH_INVARIANT else nullcontext():
            yield
    finally:
        with _asking:
            del _asked[max(at for at, each in enumerate(_asked) if each == kind)]
            _decide_as_asked()


#: Products of torch that no operator takes the place of.
_PRODUCTS = {
    getattr(owner, name)
    for name in ("mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_", "einsum")
    for owner in (torch, torch.Tensor)
    if hasattr(owner, name)
}


class _SameBits(Replacing):
    """Warns, too, of products that stay as they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS and not is_left_to_torch():
            warn_of_torch(f"torch.{func.__name__}")
        return super().__torch_function__(func, types, args, kwargs)


@cache
def _replacing() -> Replacing:
    return _SameBits()


def _decide_as_asked() -> None:
    kind = _asked[-1] if _asked else ANY
    if kind != numerics_of_calls():
        scope = _idle.pop() if _idle else Scope()
        scope.exchange()
        require(kind)
        _idle.append(scope)
