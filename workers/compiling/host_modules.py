"""Triton's compiled host modules, kept for all processes of a user.

Triton compiles its driver module with the host's C compiler when a process first opens a device
and, up to 3.6, a launcher for every kernel signature. They do not depend on a variant, but each
costs a third of a second in a device process with a private, empty cache.
"""

from __future__ import annotations

import os
import sysconfig
from typing import cast

from triton import knobs
from triton.runtime.cache import FileCacheManager

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"


class HostModules(FileCacheManager):  # type: ignore[misc]  # Triton is untyped
    """Triton's file cache, with extension modules in the user's folder instead of the process's.

    That folder lies below `TRITON_HOME`, by default the home folder. Where it is not writable,
    modules stay in the process's cache. Triton finds this class by `TRITON_CACHE_MANAGER`.
    """

    def get_file(self, filename: str) -> str | None:
        shared = self._find_shared(filename)
        path: str | None = None if shared is None else shared.get_file(filename)
        return path or cast("str | None", super().get_file(filename))

    def put(self, data: str | bytes, filename: str, binary: bool = True) -> str:
        shared = self._find_shared(filename)
        if shared is not None:
            try:
                return str(shared.put(data, filename, binary))
            except OSError:
                pass
        return str(super().put(data, filename, binary))

    def _find_shared(self, filename: str) -> FileCacheManager | None:
        """The user's cache for an extension module; None for other files."""
        if not filename.endswith(_SUFFIX):
            return None
        shared = FileCacheManager(self.key)
        shared.cache_dir = os.path.join(knobs.cache.get_triton_dir("cache"), self.key)
        try:
            os.makedirs(shared.cache_dir, exist_ok=True)
        except OSError:
            return None
        return shared
