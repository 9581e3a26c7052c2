"""Kernels of packages from PyPI, as they are there: captured, and made again from the record."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

PACKAGES = ("liger-kernel", "fla-core")
SCRIPT = """
import json, warnings
warnings.simplefilter("ignore")
import torch, triton, tuner
from liger_kernel.ops.rope import LigerRopeFunction
from fla.ops.utils.cumsum import chunk_local_cumsum_scalar_kernel as cumsum

tuned = cumsum
while not hasattr(tuned, "configs"):
    tuned = tuned.fn
tuned._do_bench = lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]
s = torch.randn(1, 100, 3)
more = dict(scale=None, T=100, B=1, H=3, BT=64, REVERSE=False, USE_GRAPH=False)
with tuner.capture() as calls:
    LigerRopeFunction.apply(*(torch.randn(1, heads, 8, 16) for heads in (4, 2)),
                            *(torch.randn(1, 8, 16) for _ in range(2)))
    cumsum[(6,)](s=s, o=torch.empty_like(s), cu_seqlens=None, chunk_indices=None, **more)
    cumsum[(6,)](s=s, o=torch.empty_like(s), cu_seqlens=torch.tensor([0, 40, 100]),
                 chunk_indices=torch.tensor([[0, 0], [1, 0]]), **more)
found = []
for captured in calls:
    kernel = captured.declare()
    (workload,) = kernel.workloads()
    inputs = kernel.make_inputs(workload, 0, "cpu")
    outputs = kernel.reference(workload, inputs)
    call = kernel.call(workload)
    fact = {"kernel": kernel.name, "place": call.place, "configs": call.configs,
            "written": {call.buffers[each.buffer].name: [each.updated, each.partial]
                        for each in call.written}}
    if "o" in outputs:
        cuts = (0, 40, 100) if "cu_seqlens" in inputs else (0, 64, 100)
        parts = [inputs["s"][:, a:b].cumsum(1) for a, b in zip(cuts, cuts[1:])]
        fact["error"] = float((torch.cat(parts, 1) - outputs["o"]).abs().max())
    found.append(fact)
print(json.dumps(found))
"""


@pytest.mark.full
@pytest.mark.slow
def test_kernels_of_packages_are_captured_and_made_again():
    for package in PACKAGES:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if os.environ.get("CI") == "true":
                pytest.fail(f"{package} is not installed, and CI tests with it")
            pytest.skip(f"{package} is not installed; `make` installs it")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rope, whole, cut = json.loads(done.stdout.splitlines()[-1])
    assert rope["place"] == "liger_kernel.ops.rope:_triton_rope"
    assert rope["written"] == {"q_ptr": [True, False], "k_ptr": [True, False]}
    for call in (whole, cut):
        assert call["configs"] == 4
        assert call["written"] == {"o": [False, False]}
        assert call["error"] < 1e-4
