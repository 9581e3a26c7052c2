"""Builders without torch make the same artifacts as builders with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces import registry

FAMILIES = sorted(name for name in registry.BUILT_IN if registry.compiles_without_torch(name))
_BUILDS = """
import json, random, sys, tempfile
from pathlib import Path

if sys.argv[1] == "with torch":
    import torch
from search_spaces import registry
from workers.build import build
from workers.device import offline
from workers.records import Artifact, BuildJob, KernelRef

device, found = offline("cuda:90"), {}


def built(name, workload, config):
    job = BuildJob("job", KernelRef(name), workload, config, device)
    result = build(job, Path(tempfile.mkdtemp()))
    if not isinstance(result, Artifact):
        return [result.status, result.message]
    return [result.binary_hash, sorted(result.files), [dict(key) for key in result.keys]]


for name in sys.argv[2:]:
    kernel = registry.load(name)
    workload = kernel.workloads()[0]
    listed = list(kernel.space(workload).bind(workload, device).enumerate())
    configs = [kernel.default_config(workload, device), *random.Random(1).sample(listed, 2)]
    found[name] = [built(name, workload, config) for config in configs]
loaded = "torch" in sys.modules
import torch  # a later kernel of the same builder may need it

first = {}
for name in sys.argv[2:]:
    kernel = registry.load(name)
    workload = kernel.workloads()[0]
    first[name] = built(name, workload, kernel.default_config(workload, device))
print(json.dumps({"loaded": loaded, "found": found, "later": first}))
"""


def _built(tmp_path: Path, *arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _BUILDS, *arguments],
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin:/bin", "HOME": f"{tmp_path}", "TMPDIR": f"{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_artifacts_do_not_depend_on_torch(tmp_path):
    without = _built(tmp_path, "without torch", *FAMILIES)
    with_torch = _built(tmp_path, "with torch", *FAMILIES)
    assert (without["loaded"], with_torch["loaded"]) == (False, True)
    assert without["found"] == with_torch["found"]
    assert without["later"] == with_torch["later"]
    assert {name: configs[0] for name, configs in without["found"].items()} == without["later"]
