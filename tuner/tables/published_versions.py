"""The earlier versions of a folder of published tables: kept by each promotion, and brought back.

The folder has a hidden one, `.promotions`, with a lock and a numbered folder per promotion: the
files as they were, and a manifest of their digests before and after. It is complete before the
first table is replaced, so that a promotion that was killed half way can be rolled back as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from search_spaces.atomic_file import write_output
from search_spaces.errors import TunerError

#: Versions that are kept of a folder.
KEPT = 10
_HIDDEN = ".promotions"
_MANIFEST = "manifest.json"
_REMEDY = "make the folder writable, or free some space; the tables there are whole"


@contextmanager
def lock_folder(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a folder of tables alone; the lock ends with the process. on_wait: another holds it."""
    try:
        (folder / _HIDDEN).mkdir(parents=True, exist_ok=True)
        file = (folder / _HIDDEN / "lock").open("a")
    except OSError as error:
        raise TunerError(f"{folder}: {error.strerror or error}", _REMEDY) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files of a locked folder, each in one step, and keep what they replace.

    The oldest versions beyond `KEPT` are deleted.
    """
    former = {name: _read(folder / name) for name in files}
    digests = {name: (_digest(former[name]), _digest(files[name])) for name in files}
    versions = list_versions(folder)
    number = 1 + (int(versions[-1].name) if versions else 0)
    kept = folder / _HIDDEN / f"{number:06}"
    draft = kept.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    for name, content in former.items():
        if content is not None:
            write_output(draft / name, content, _REMEDY)
    write_output(draft / _MANIFEST, json.dumps(digests, indent=1).encode(), _REMEDY)
    draft.rename(kept)
    for old in [*versions, kept][:-KEPT]:
        shutil.rmtree(old)
    return [write_output(folder / name, content, _REMEDY) for name, content in files.items()]


def bring_back(folder: Path) -> tuple[list[Path], list[Path]]:
    """Undo the last promotion of a locked folder; returns the files written and those deleted.

    Raises `TunerError` where there is none, or where a file has changed since.
    """
    kept = find_newest(folder)
    digests: dict[str, tuple[str | None, str]] = json.loads((kept / _MANIFEST).read_bytes())
    for name, known in digests.items():
        if _digest(_read(folder / name)) not in known:
            raise TunerError(
                f"{folder / name} has changed since the promotion",
                f"its version from before the promotion is {kept / name}",
            )
    written, deleted = [], []
    for name, (before, _) in digests.items():
        content = _read(kept / name)
        if before is None or content is None:
            (folder / name).unlink(missing_ok=True)
            deleted.append(folder / name)
        else:
            written.append(write_output(folder / name, content, _REMEDY))
    shutil.rmtree(kept)
    return written, deleted


def find_newest(folder: Path) -> Path:
    """The newest version that can be brought back. Raises `TunerError` where there is none."""
    versions = list_versions(folder)
    if not versions:
        raise TunerError(
            f"{folder}: no promotion to roll back", f"`tuner promote` keeps the last {KEPT}"
        )
    return versions[-1]


def list_versions(folder: Path) -> list[Path]:
    """The folders of the promotions that can be rolled back, oldest first."""
    return sorted(path for path in (folder / _HIDDEN).glob("*") if path.name.isdigit())


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()
