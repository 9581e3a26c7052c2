"""Precompiled headers of Inductor's C++ backend, shared by all builders of a user.

One header takes five seconds to compile and 150 MB of disk; with it, a variant compiles in under a
second instead of two. The user's first variants of a toolchain are compiled without one, whichever
builders have them, so that the first result is not delayed. Then the first builder with a set of
flags that has no header makes it, while others go on without.

Each builder has a private folder, which is deleted with it. Complete headers are copied to the
user's cache folder, where the next builder finds them. A builder that is killed while it writes a
header leaves nothing there. The folder `flags` below it has a file for each toolchain with a byte
for each variant without a header, and for each set of flags one file that is locked by the maker,
and one that says that the header was made.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from search_spaces.atomic_file import draft_of
from search_spaces.records import digest
from tuner.base.tracing import span
from workers import user_cache
from workers.compiling import isa
from workers.toolchain import inductor_toolchain

_SUFFIXES = (".h", ".gch")
#: Variants that a user's builders compile without a header before the first one is made. A header
#: takes the time that it saves in four variants, and serves all later runs, too. With one, a spare
#: builder may begin a header while another has the first variant, and a runner waits for that.
WITHOUT_HEADER = 2


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
    shared, flags_folder = user_cache.folder("headers"), user_cache.folder("headers/flags")
    if shared is None or flags_folder is None:
        return

    toolchain = inductor_toolchain().build_key

    def make_and_share(*args: Any, **kwargs: Any) -> Any:
        """Inductor's header for these flags; None to compile without one."""
        flags = _flags_file(flags_folder, args, kwargs)
        made = flags.with_suffix(".made")
        if made.exists():
            _copy_in(shared, private)
            return make(*args, **kwargs)
        try:
            if _count(flags_folder / f"{toolchain}.count") <= WITHOUT_HEADER:
                return None
            with _alone(flags.with_suffix(".lock")) as alone:
                if not alone:
                    return None
                with span("headers", "build", least_s=0.01):
                    header = make(*args, **kwargs)
                _copy_out(private, shared)
                made.touch()
                return header
        except OSError:  # of the cache folder, such as a full disk
            return None

    codecache._precompile_header = make_and_share


@contextmanager
def made_ones(private: Path) -> Iterator[None]:
    """Compile with headers that builders have made, inside the block; none is made.

    For a process that `isa.without_header_precompilation` has kept from headers.
    """
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    make = isa.left_out() if isa.headers_precompilable() else None
    shared, flags_folder = user_cache.place("headers"), user_cache.place("headers/flags")
    if make is None or not user_cache.usable(shared) or not user_cache.usable(flags_folder):
        yield
        return

    def find(*args: Any, **kwargs: Any) -> Any:
        if not _flags_file(flags_folder, args, kwargs).with_suffix(".made").exists():
            return None
        _copy_in(shared, private)
        return make(*args, **kwargs)

    before = codecache._precompile_header
    folders = codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(private), str(private / "locks")
    codecache._precompile_header = find
    try:
        yield
    finally:
        codecache._precompile_header = before
        codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = folders


def _flags_file(folder: Path, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Path:
    """The name, without a suffix, of the files of a header's flags."""
    named = sorted(f"{name}={value}" for name, value in kwargs.items())
    return folder / digest([*map(str, args), *named], 32)


def _count(path: Path) -> int:
    """The number of variants so far, this one included."""
    with path.open("ab") as file:
        file.write(b".")
        return file.tell()


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether this process alone holds a lock during the block. A killed process gives it up."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


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
