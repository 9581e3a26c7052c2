"""What Triton compiles for the host, kept for all processes of a user.

Triton builds its driver module with the host's C compiler when a process first opens a device and,
up to 3.6, a launcher for every kernel signature. They hold nothing of a variant, yet a device
process, whose caches are its own and empty, waited a third of a second for each.
"""

from __future__ import annotations

import os
import sysconfig
from typing import cast

from triton import knobs
from triton.runtime.cache import FileCacheManager

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"


class HostModules(FileCacheManager):  # type: ignore[misc]  # Triton is untyped
    """Triton's cache on files, except that extension modules lie where Triton would put them
    without `TRITON_CACHE_DIR`: below `TRITON_HOME`, by default the home folder.

    Named to Triton by the variable `TRITON_CACHE_MANAGER`. Where that folder cannot be written,
    modules stay in the process's own.
    """

    def get_file(self, filename: str) -> str | None:
        common = self._common(filename)
        found: str | None = None if common is None else common.get_file(filename)
        return found or cast("str | None", super().get_file(filename))

    def put(self, data: str | bytes, filename: str, binary: bool = True) -> str:
        common = self._common(filename)
        if common is not None:
            try:
                return str(common.put(data, filename, binary))
            except OSError:
                pass
        return str(super().put(data, filename, binary))

    def _common(self, filename: str) -> FileCacheManager | None:
        """The cache of extension modules; None for other files."""
        if not filename.endswith(_SUFFIX):
            return None
        common = FileCacheManager(self.key)
        common.cache_dir = os.path.join(knobs.cache.get_triton_dir("cache"), self.key)
        try:
            os.makedirs(common.cache_dir, exist_ok=True)
        except OSError:
            return None
        return common
