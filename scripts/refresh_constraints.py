"""Write the constraints of the oldest and the newest pair of torch and Triton that tuner supports.

    python scripts/refresh_constraints.py [--newest]

`constraints.txt` pins what CI installs. `constraints-oldest.txt` and `constraints-newest.txt` have
the same pins, but for torch and Triton. With --newest, the newest pair is asked from the package
index; without it, the pairs that these files have are kept and all else is copied. A new minor
version of Triton is named in `search_spaces/triton_versions.py` too; a test says when it is not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINNED = ROOT / "constraints.txt"
PAIRS = {name: ROOT / f"constraints-{name}.txt" for name in ("oldest", "newest")}
PACKAGES = ("torch", "triton")


def main() -> int:
    """Write both files; say what has changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--newest", action="store_true", help="ask the index for the newest pair")
    newest = parser.parse_args().newest
    for name, path in PAIRS.items():
        pair = pair_of(path)
        if newest and name == "newest":
            pair = {package: _newest(package) for package in PACKAGES}
        text = text_with(pair)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.name}: {' '.join('=='.join(item) for item in pair.items())}")
    return 0


def pair_of(path: Path) -> dict[str, str]:
    """The versions of torch and Triton that a file pins."""
    found = re.findall(rf"^({'|'.join(PACKAGES)})==(\S+)$", path.read_text(), re.MULTILINE)
    return dict(found)


def text_with(pair: dict[str, str]) -> str:
    """The text of constraints.txt with this pair."""
    lines = []
    for line in PINNED.read_text().splitlines(keepends=True):
        name = line.partition("==")[0]
        lines.append(f"{name}=={pair[name]}\n" if name in pair else line)
    return "".join(lines)


def _newest(package: str) -> str:
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(([\d.]+)\)", listed)[0]


if __name__ == "__main__":
    sys.exit(main())
