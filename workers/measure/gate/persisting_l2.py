"""The part of a GPU's L2 cache that is reserved for persisting accesses.

Source: CUDA driver API, L2 access management. A limit of the context sets the reserved size;
kernels and streams with an access-policy window may use it.
"""

from __future__ import annotations

import ctypes

_LIMIT = 0x06  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE


class PersistingCache:
    """The reservation of the current context, which the constructor releases.

    A new context reserves some L2 (11.25 MiB on an H200), which a variant could use unnoticed. Does
    nothing without NVIDIA's driver or with a driver that has no such limit.
    """

    def __init__(self) -> None:
        self._driver = _driver()
        if self._driver is not None:
            self._driver.cuCtxSetLimit(_LIMIT, ctypes.c_size_t(0))
        self._bytes = self._limit()

    def restore(self) -> int:
        """Release what was reserved since the start; its size in bytes, 0 for nothing."""
        reserved = self._limit()
        if self._driver is None or reserved == self._bytes:
            return 0
        self._driver.cuCtxSetLimit(_LIMIT, ctypes.c_size_t(self._bytes))
        return reserved

    def reset(self) -> None:
        """Turn persisting cache lines into normal ones."""
        if self._driver is not None:
            self._driver.cuCtxResetPersistingL2Cache()

    def _limit(self) -> int:
        limit = ctypes.c_size_t(0)
        if self._driver is None or self._driver.cuCtxGetLimit(ctypes.byref(limit), _LIMIT):
            return 0
        return limit.value


def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuCtxGetLimit, driver.cuCtxSetLimit, driver.cuCtxResetPersistingL2Cache  # noqa: B018
    except (OSError, AttributeError):
        return None
    return driver
