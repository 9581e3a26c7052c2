"""Precompiled headers: compiled once per user and shared atomically."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUILD = """
import sys
from pathlib import Path
import torch
from workers.build import headers, isa
private, variants = Path(sys.argv[1]), int(sys.argv[2])
headers.WITHOUT_HEADER = 2
isa.probe_once(private / "probes")
headers.share(private / "headers")
for factor in range(variants):
    torch._dynamo.reset()
    torch.compile(lambda x: torch.nn.functional.gelu(x * factor).softmax(-1))(torch.ones(50, 301))
print(sorted(path.stat().st_ino for path in private.rglob("*.gch")))
"""


def build(folder: Path, home: Path, variants: int = 1) -> str:
    """Compile C++ kernels in a new process; the inodes of the headers it used."""
    folder.mkdir()
    environment = os.environ | {
        "XDG_CACHE_HOME": f"{home}",
        "TUNER_CACHE_DIR": "",
        "TMPDIR": f"{folder}",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder / 'cache'}",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"{folder}", f"{variants}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_later_builder_uses_the_headers_of_an_earlier_one(tmp_path):
    home = tmp_path / "home"
    assert build(tmp_path / "few", home) == "[]"  # a header would take longer than it saves
    first = build(tmp_path / "one", home, 2)  # one more was built before
    kept = home / "tuner" / "headers"
    assert first == f"{sorted(path.stat().st_ino for path in kept.glob('*.gch'))}" != "[]"
    assert {path.suffix for path in kept.iterdir() if path.is_file()} == {".h", ".gch"}
    assert build(tmp_path / "two", home) == first
