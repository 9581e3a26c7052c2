"""The first calls of what takes the place of torch's code, compared with it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from search_spaces.kernel import ROUNDING
from tuner.ops.operator import takes_plain
from tuner.ops.overriding import leave_to_torch
from tuner.ops.products import takes_tf32

#: Both results are within the gate's tolerance of the exact one, so they may be twice as far apart;
#: the error of an element is a multiple, of its size and of what is usual in its row or in all.
_APART, _ELEMENTWISE = 2.0, 8.0


@dataclass(eq=False)
class FirstCalls:
    """Compares the first calls of a class or a function with its own code.

    A first call is the first of a dtype, width and device, with or without gradients.
    """

    name: str
    wrong: bool = False
    _known: set[tuple[Any, ...]] = field(default_factory=set)

    def keep(self, found: Any, original: Callable[[], Any], given: torch.Tensor) -> Any:
        """What was found, or the original where a first call differs from it."""
        if torch.compiler.is_compiling() or self.knows(given):
            return found
        if given.is_meta or not takes_plain((given,)) or is_captured():
            return found
        self._known.add(_kind_of_call(given))
        with torch.no_grad():
            ours, theirs = tree_leaves(found), tree_leaves(leave_to_torch(original))
            same = len(ours) == len(theirs) and all(map(_are_close, ours, theirs))
        if same:
            return found
        self.wrong = True
        warnings.warn(
            f"ops.patch: {self.name} differs from its own code, which runs again", stacklevel=2
        )
        return original()

    def knows(self, given: torch.Tensor) -> bool:
        """Whether a call of this kind is no first one, and all were right."""
        return _kind_of_call(given) in self._known and not self.wrong

    def reset(self) -> None:
        """Compare the next calls again."""
        self.wrong = False
        self._known.clear()


def _kind_of_call(given: torch.Tensor) -> tuple[Any, ...]:
    width = given.shape[1 if given.ndim == 4 else -1] if given.ndim else 1
    return given.dtype, width, given.device, torch.is_grad_enabled()


def is_captured() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _are_close(found: Any, expected: Any) -> bool:
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return bool(found is expected or found == expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    # Products in TF32 round their factors as float16 does.
    dtype = "float16" if takes_tf32(found) else str(found.dtype).removeprefix("torch.")
    bound = _APART * ROUNDING.get(dtype, 0.0)
    wide = torch.promote_types(found.dtype, torch.float32)
    found, expected, finite = found.to(wide), expected.to(wide), expected.isfinite()
    if not torch.equal(finite, found.isfinite()):
        return False
    gap, size = ((each * finite).nan_to_num(0, 0, 0) for each in (found - expected, expected))
    usual = size.square().mean(-1, keepdim=True).sqrt().maximum(size.square().mean().sqrt())
    near = gap.norm() <= bound * size.norm()
    return bool(near & (gap.abs() <= _ELEMENTWISE * bound * (usual + size.abs())).all())
