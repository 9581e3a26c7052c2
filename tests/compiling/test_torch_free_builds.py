"""Builders without torch make the same artifacts as builders with it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from search_spaces import registry
from search_spaces.records import Status
from workers.compiling import build
from workers.device import offline
from workers.job_records import Artifact, BuildJob, KernelRef

ROOT = Path(__file__).parents[2]
FAMILIES = sorted(name for name in registry.BUILT_IN if registry.compiles_without_torch(name))
#: The step through the built families that the builder builds again with torch imported.
REPEATED = 5


def build_default(name: str) -> tuple[list[object], list[str]]:
    """What a builder makes of a family's default config."""
    kernel, device = registry.load(name), offline("cuda:90")
    workload = kernel.workloads()[0]
    default = kernel.default_config(workload, device)
    assert kernel.space(workload).bind(workload, device).why_not(default) is None
    return _built(BuildJob("job", KernelRef(name), workload, default, device))


def _built(job: BuildJob) -> tuple[list[object], list[str]]:
    """What identifies an artifact, or nothing; and the status and message of a failure."""
    with tempfile.TemporaryDirectory() as folder:
        result = build(job, Path(folder))
    if not isinstance(result, Artifact):
        return [], [str(result.status), result.message]
    return [result.binary_hash, sorted(result.files), [dict(key) for key in result.keys]], []


_WITHOUT_TORCH = """
import json, sys

from test_torch_free_builds import REPEATED, build_default

families = sys.argv[1:]
for name in families:
    print(json.dumps([*build_default(name), "torch" in sys.modules]), flush=True)
import torch  # a later kernel of the same builder may need it

for name in families[::REPEATED]:
    print(json.dumps(build_default(name)), flush=True)
"""


class TorchFreeBuilder:
    """A builder without torch that goes through families, then imports torch and repeats some."""

    def __init__(self, folder: Path, families: list[str]) -> None:
        self.folder, self.families = folder, families
        here = Path(__file__).parent
        with (folder / "errors").open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WITHOUT_TORCH, *families],
                env={
                    "PATH": "/usr/bin:/bin",
                    "HOME": f"{folder}",
                    "TMPDIR": f"{folder}",
                    "PYTHONPATH": f"{ROOT}:{here}",
                },
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._lines: list[object] = []

    def line(self, place: int) -> object:
        """What it prints at this place, after waiting for it."""
        assert self._process.stdout is not None
        while len(self._lines) <= place:
            printed = self._process.stdout.readline()
            assert printed, (self.folder / "errors").read_text()
            self._lines.append(json.loads(printed))
        return self._lines[place]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def torch_free(request, tmp_path_factory) -> Iterator[TorchFreeBuilder]:
    families = [
        item.callspec.params["name"]
        for item in request.session.items
        if getattr(item, "function", None) is test_artifacts_do_not_depend_on_torch
    ]
    builder = TorchFreeBuilder(tmp_path_factory.mktemp("home"), families)
    yield builder
    builder.close()


@cache
def with_torch(name: str) -> list[object]:
    import torch  # noqa: F401

    built: list[object] = json.loads(json.dumps(build_default(name)))
    return built


@pytest.mark.matrix("build")
@pytest.mark.parametrize("name", FAMILIES)
def test_artifacts_do_not_depend_on_torch(torch_free, name):
    *without, loaded = torch_free.line(torch_free.families.index(name))
    assert not loaded
    assert without == with_torch(name)
    artifact, failure = without
    # A binary may need more registers or shared memory than the target has.
    assert artifact or failure[0] == Status.CONSTRAINTS, failure


def test_artifacts_are_the_same_after_a_builder_has_loaded_torch(torch_free):
    families = torch_free.families
    for place, name in enumerate(families[::REPEATED], len(families)):
        assert torch_free.line(place) == with_torch(name)


_NEEDS_TORCH = """
import json, sys, tempfile
from pathlib import Path
import triton, triton.language as tl
from search_spaces import registry
from search_spaces.registry import load
from workers.compiling.job import build_kernel
from workers.device import offline
from workers.job_records import Artifact, BuildJob, KernelRef

@triton.heuristics({"BLOCK": lambda given: __import__("torch").tensor(64).item()})
@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n), at < n)

target, = sys.argv[1:]
kernel, device = load("elementwise"), offline(target)
workload = kernel.workloads()[0]
config = kernel.default_config(workload, device)
if target.startswith("cuda"):
    launch = kernel.launches
    def launches(workload, config, tensors):
        (one,) = launch(workload, config, tensors)
        args = (*list(tensors.values())[-2:], 4096)
        return [type(one)(fn=copy, grid=(64,), args=args, kwargs={"num_warps": 4})]
    kernel.launches = launches
job = BuildJob("job", KernelRef("elementwise"), workload, config, device)
built = []
for _ in range(2):  # without torch at first, then with it
    with tempfile.TemporaryDirectory() as folder:
        built.append(build_kernel(kernel, job, Path(folder)))
assert all(isinstance(one, Artifact) for one in built), built
print(json.dumps([one.binary_hash for one in built]), "torch" in sys.modules)
"""


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_what_needs_torch_is_built_with_it(target, tmp_path):
    """On CUDA a rule of the kernel's own needs torch, on AMD Triton's backend does."""
    script = tmp_path / "needs_torch.py"  # Triton reads the source of a kernel in a file
    script.write_text(_NEEDS_TORCH)
    done = subprocess.run(
        [sys.executable, f"{script}", target],
        env={"PATH": "/usr/bin:/bin", "HOME": f"{tmp_path}", "PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    hashes, loaded = done.stdout.rsplit(maxsplit=1)
    assert loaded == "True"
    first, second = json.loads(hashes)
    assert first == second
