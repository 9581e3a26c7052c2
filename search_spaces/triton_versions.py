"""The versions of Triton that the farm has run with, and the one that this machine has.

CI runs the oldest, the pinned and the newest of them. Triton 3.N.* counts as 3.N.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

from search_spaces.errors import TunerError
from tuner.runtime.device_code import settle_cache_keys as settle_cache_keys

#: The first and the last version that the farm has run with.
OLDEST, NEWEST = (3, 6), (3, 9)


def read_installed() -> tuple[int, int] | None:
    """This machine's version of Triton; None without Triton.

    It is read from Triton's file where Triton has not been imported: importing takes long.
    """
    loaded = sys.modules.get("triton")
    return _parse(getattr(loaded, "__version__", "") if loaded else _written_version())


def is_known() -> bool:
    """Whether the farm has run with this machine's version."""
    version = read_installed()
    return version is not None and OLDEST <= version <= NEWEST


def remark() -> str:
    """One line on a version that is newer than all known ones; empty for any other.

    Raises `TunerError` for a version that is too old.
    """
    version = read_installed()
    if version is None or is_known():
        return ""
    here = format_version(version)
    if version < OLDEST:
        raise TunerError(
            f"Triton {here} is older than {format_version(OLDEST)}, "
            "the oldest that tuner runs with",
            f"install triton>={format_version(OLDEST)} with the torch that goes with it",
        )
    return (
        f"Triton {here} is newer than {format_version(NEWEST)}, "
        "the newest that tuner has run with: configs in Gluon are left out, and reasons why a "
        "launch was compiled may be missing"
    )


def format_version(version: tuple[int, int]) -> str:
    """A version as users write it."""
    return ".".join(map(str, version))


@cache
def _parse(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


@cache
def _written_version() -> str:
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.origin:
        return ""
    text = Path(spec.origin).read_text(encoding="utf-8")
    found = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    return found[1] if found else ""
