"""Compare the dtypes, shapes and strides of several tensors with those of others, in one call.

`torch._C._dynamo.guards.TensorGuards` is what Dynamo's guards use: it compares in C++, where the
properties of one tensor take a quarter of a microsecond in Python. It also compares classes,
devices and `requires_grad`, and holds no tensor. It is no public interface of PyTorch: it is tried
on tensors that differ before its first use, and callers manage without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

#: Whether tensors are like those of the check; raises TypeError for another number of them.
Check: TypeAlias = Callable[..., bool]


def check_of(tensors: Sequence[Any]) -> Check | None:
    """The check for tensors like these; None where PyTorch has none that works."""
    make = _maker()
    if make is None:
        return None
    try:
        check: Check = make(*tensors)
        return check if check(*tensors) is True else None
    except Exception:  # such as an object that only resembles a tensor
        return None


@lru_cache(maxsize=1)
def _maker() -> Callable[..., Check] | None:
    torch = sys.modules.get("torch")
    try:
        guards = torch._C._dynamo.guards.TensorGuards  # type: ignore[union-attr]

        def make(*tensors: Any) -> Check:
            found: Check = guards(
                *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
            ).check
            return found

        return make if _works(make, torch) else None
    except Exception:  # another PyTorch
        return None


def _works(make: Callable[..., Check], torch: Any) -> bool:
    """Whether a check tells apart what it must."""
    like, scalar = torch.empty(2, 2), torch.empty(())
    check = make(like, scalar)
    others = [like.t(), like.half(), like[:1], like.view(4), None, 1]
    return check(torch.empty(2, 2), scalar) is True and not any(
        check(other, scalar) for other in others
    )
