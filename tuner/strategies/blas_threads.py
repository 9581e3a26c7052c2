"""One thread for the linear algebra of small models, within a scope."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy  # noqa: F401  # loads its BLAS, which the controller finds only when it is loaded
from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  # loads a BLAS library of its own

    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit every loaded BLAS library to one thread until the `with` block ends.

    The matrices of a model have a few hundred rows. Builders keep every core busy meanwhile, and
    BLAS threads that wait for each other make such products many times slower. Entering a scope
    costs some ten microseconds, so it surrounds whole predictions rather than single products.
    """
    scope: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return scope


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Limit torch as well, whose OpenMP threads spin while builders keep every core busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_blas_thread():
            yield
    finally:
        torch.set_num_threads(before)
