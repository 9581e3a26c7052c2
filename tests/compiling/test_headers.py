"""Precompiled headers: compiled once per user and shared atomically."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from spaces_forks import Forks

BUILD = """
import sys
from pathlib import Path
import torch
from workers.compiling import headers, isa
private, variants = Path(sys.argv[1]), int(sys.argv[2])
isa.probe_once(private / "probes")
headers.share(private / "headers")
options = {"cpp.simdlen": 1} if variants < 0 else None  # other flags
for factor in range(abs(variants)):
    torch._dynamo.reset()
    call = lambda x: torch.nn.functional.gelu(x * factor).softmax(-1)
    torch.compile(call, options=options)(torch.ones(50, 301))
print(sorted(path.stat().st_ino for path in private.rglob("*.gch")))
"""


BASELINE = """
import sys
from contextlib import nullcontext
from pathlib import Path
import torch
from workers.compiling import headers, isa
private, made = Path(sys.argv[1]), sys.argv[2] == "1"
isa.probe_once(private / "probes")
isa.without_header_precompilation()
for inside in (headers.made_ones(private / "headers"), nullcontext())[not made :]:
    torch._dynamo.reset()
    with inside:
        torch.compile(lambda x: torch.nn.functional.gelu(x * 7).softmax(-1))(torch.ones(50, 301))
    print(sorted(path.stat().st_ino for path in private.rglob("*.gch")))
"""

LINKED = """
import sys
from pathlib import Path
import torch
from torch._inductor import cpp_builder
from workers.compiling import isa, linking
private, folder = Path(sys.argv[1]), Path(sys.argv[1]) / "empty"
if sys.argv[2] == "0":
    folder.mkdir()
    (folder / "libtorch_cpu.so").write_text("no library")
isa.probe_once(private / "probes")
isa.without_header_precompilation()
linking.without_reading_torch(folder)
x = torch.linspace(-3, 3, 64 * 300).view(64, 300)
got = torch.compile(lambda x: torch.nn.functional.gelu(x).exp())(x)
torch.testing.assert_close(got, torch.nn.functional.gelu(x).exp())
print((folder / "libtorch_cpu.so").stat().st_size < 100_000)
"""


ROOT = Path(__file__).parents[2]
_FORKS = Forks(
    f"{Path(__file__).with_name('header_builds.py')}",
    TORCHINDUCTOR_COMPILE_THREADS="1",
    PYTHONPATH=f"{ROOT}:{ROOT / 'tests' / 'spaces'}",
)


def build(folder: Path, home: Path, variants: int = 1, script: str = BUILD) -> str:
    """Compile C++ kernels in a new process; the inodes of the headers it used."""
    folder.mkdir()
    environment = {
        "XDG_CACHE_HOME": f"{home}",
        "TUNER_CACHE_DIR": "",
        "TMPDIR": f"{folder}",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder / 'cache'}",
    }
    return _FORKS.run(json.dumps([script, f"{folder}", f"{variants}"]), **environment).strip()


def test_a_later_builder_uses_the_headers_of_an_earlier_one(tmp_path):
    home = tmp_path / "home"
    first = build(tmp_path / "one", home, 3)  # the first two are not delayed by it
    kept = home / "tuner" / "headers"
    assert first == f"{sorted(path.stat().st_ino for path in kept.glob('*.gch'))}" != "[]"
    assert {path.suffix for path in kept.iterdir() if path.is_file()} == {".h", ".gch"}
    assert build(tmp_path / "two", home) == first


@pytest.mark.full
def test_headers_are_made_after_two_builds_and_for_all_flags(tmp_path):
    home = tmp_path / "home"
    assert build(tmp_path / "few", home, 2) == "[]"
    first = build(tmp_path / "one", home)  # two were built before
    # Baselines use it, and only they: the second compilation of that process adds none.
    assert build(tmp_path / "baseline", home, 1, BASELINE) == f"{first}\n{first}" != "[]\n[]"
    assert build(tmp_path / "variant", home, 0, BASELINE) == "[]"
    # The first variants are those of all flags: others need another header, and make it at once.
    assert build(tmp_path / "other", home, -1) not in ("[]", first)


def test_a_baseline_makes_no_header(tmp_path):
    assert build(tmp_path / "baseline", tmp_path / "home", 1, BASELINE) == "[]\n[]"


def needed(library: Path) -> list[str]:
    """The libraries that a shared object names."""
    listed = subprocess.run(
        ["readelf", "-d", f"{library}"], capture_output=True, text=True, check=True
    )
    return re.findall(r"NEEDED.*\[(.+)\]", listed.stdout)


def test_kernels_linked_with_an_empty_library_compute_the_same(tmp_path):
    assert build(tmp_path / "fast", tmp_path / "home", 1, LINKED) == "True"
    kernels = list((tmp_path / "fast" / "cache").rglob("*.so"))
    assert len(kernels) == 1
    assert "libtorch_cpu.so" in needed(kernels[0])


def test_a_kernel_is_linked_as_usual_where_the_empty_library_fails(tmp_path):
    build(tmp_path / "broken", tmp_path / "home", 0, LINKED)
    assert list((tmp_path / "broken" / "cache").rglob("*.main.so"))
