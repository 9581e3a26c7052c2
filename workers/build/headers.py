"""Precompiled headers of Inductor's C++ backend, shared by all builders of a user.

One header takes six seconds to compile and 150 MB of disk; with it, a variant compiles in one
second instead of two. Where no header is at hand, the first variants are compiled without one.

Each builder has a private folder, which is deleted with it. Complete headers are copied to the
user's cache folder, where the next builder finds them. A builder that is killed while it writes a
header leaves nothing there.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import draft_of
from tuner.tracing import span
from workers import user_cache

_SUFFIXES = (".h", ".gch")
#: Variants of one set of flags that are compiled without a header before one is made.
WITHOUT_HEADER = 12


def share(private: Path) -> None:
    """Make Inductor keep this process's headers in `private`, and share them with later builders.

    Does nothing where torch precompiles no headers. Headers are not shared where the user's cache
    folder cannot be used.
    """
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    make = getattr(codecache, "_precompile_header", None)
    if make is None or str(private) == codecache._HEADER_DIR:
        return
    codecache._HEADER_DIR = str(private)
    codecache._HEADER_LOCK_DIR = str(private / "locks")
    shared = user_cache.folder("headers")
    if shared is None:
        return
    _copy_in(shared, private)
    compiled: Counter[object] = Counter()

    def make_and_share(*args: Any, **kwargs: Any) -> Any:
        flags = (args, tuple(sorted(kwargs.items())))
        compiled[flags] += 1
        if compiled[flags] <= WITHOUT_HEADER and not any(private.glob("*.gch")):
            return None
        with span("headers", "build", least_s=0.01):
            header = make(*args, **kwargs)
            _copy_out(private, shared)
        return header

    codecache._precompile_header = make_and_share


def _copy_in(shared: Path, private: Path) -> None:
    for header in shared.glob("*.gch"):
        for file in (header.with_suffix(""), header):
            _place(file, private / file.name)


def _copy_out(private: Path, shared: Path) -> None:
    """Copy complete headers, each after its text. They are complete once Inductor has returned."""
    files = [path for path in private.iterdir() if path.suffix in _SUFFIXES]
    for file in sorted(files, key=lambda path: path.suffix == ".gch"):
        _place(file, shared / file.name)


def _place(file: Path, target: Path) -> None:
    """Link or copy a file atomically; does nothing where that fails, such as on a full disk."""
    if target.exists():
        return
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with draft_of(target, durable=False) as draft:
            try:
                os.link(file, draft)
            except OSError:
                shutil.copy2(file, draft)
    except OSError:
        return
