#!/usr/bin/env python3
"""Build the sdist and, from it, the wheel of this version, and list what the wheel holds.

    scripts/build_release.py OUT

Both are made of the files that git tracks, in a folder of their own: nothing that an earlier build
left gets in. Needs setuptools; no network. Writes OUT/*.tar.gz, OUT/*.whl and OUT/wheel.txt, one
line for each file with its size in bytes; the last line of stdout has the totals.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_CALL = "import sys, setuptools.build_meta as m; print(getattr(m, sys.argv[1])(sys.argv[2]))"


def build(what: str, source: Path, out: Path) -> Path:
    """The file that `build_sdist` or `build_wheel` makes of a source tree."""
    command = [sys.executable, "-c", _CALL, what, f"{out}"]
    done = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    return out / done.stdout.splitlines()[-1]


def copy_tracked(folder: Path) -> None:
    """Copy the files that git tracks, and keep links as links."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place, follow_symlinks=False)


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree, unpacked = Path(folder, "tree"), Path(folder, "unpacked")
        copy_tracked(tree)
        sdist = build("build_sdist", tree, out)
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (source,) = unpacked.iterdir()
        wheel = build("build_wheel", source, out)
    with zipfile.ZipFile(wheel) as archive:
        held = sorted((each.filename, each.file_size) for each in archive.infolist())
    (out / "wheel.txt").write_text("".join(f"{size} {name}\n" for name, size in held))
    print(sdist, wheel, sep="\n")
    print(f"{len(held)} files, {wheel.stat().st_size / 1e6:.1f} MB packed")


if __name__ == "__main__":
    main()
