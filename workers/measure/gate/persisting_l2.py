"""The part of a GPU's L2 cache that can be reserved for data that is to stay in it.

CUDA's driver interface, device memory L2 access management: a context's limit says how much is set
aside, and accesses of a kernel or stream with an access-policy window may use it.
"""

from __future__ import annotations

import ctypes

_LIMIT = 0x06  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE


class PersistingCache:
    """The reservation of the current context, given up when this is made.

    A context begins with some (11.25 MiB on an H200), which a variant could use without a trace.

    On a machine without NVIDIA's driver, or a driver that knows no such limit, nothing is done.
    """

    def __init__(self) -> None:
        self._driver = _driver()
        if self._driver is not None:
            self._driver.cuCtxSetLimit(_LIMIT, ctypes.c_size_t(0))
        self._bytes = self._limit()

    def restore(self) -> int:
        """How many bytes are reserved now that were not; they are given up again. 0 for none."""
        found = self._limit()
        if self._driver is None or found == self._bytes:
            return 0
        self._driver.cuCtxSetLimit(_LIMIT, ctypes.c_size_t(self._bytes))
        return found

    def reset(self) -> None:
        """Make lines that are to stay ordinary ones."""
        if self._driver is not None:
            self._driver.cuCtxResetPersistingL2Cache()

    def _limit(self) -> int:
        found = ctypes.c_size_t(0)
        if self._driver is None or self._driver.cuCtxGetLimit(ctypes.byref(found), _LIMIT):
            return 0
        return found.value


def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuCtxGetLimit, driver.cuCtxSetLimit, driver.cuCtxResetPersistingL2Cache  # noqa: B018
    except (OSError, AttributeError):
        return None
    return driver
