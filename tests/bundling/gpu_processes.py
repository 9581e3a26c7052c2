"""The processes of `test_gpu_bundles.py`: launches on a GPU, and what was compiled for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bundled_library
import torch
import triton

import tuner
from tuner import ops, runtime
from tuner.tables.results import kernel_facts
from tuner.tables.text import text_of
from workers.compiling import count_compilations


def call_all(cols: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    x, w = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((96, cols), (cols,)))
    with ops.prefer_tuned():
        found = {"softmax": ops.softmax(x), "rms_norm": ops.rms_norm(x, (cols,), w, 1e-6)}
    for name in ("plain", "tuned", "decorated"):
        found[name] = bundled_library.launch(name, lambda n: torch.ones(n, device="cuda"))
    return found


def record(folder: Path) -> None:
    """Run everything, save captured calls, and write what the library chose as a table."""
    call_all(512)
    with tuner.capture() as calls:
        torch.save(call_all(512), folder / "expected.pt")
    calls.save(folder / "calls.json")
    kernel = calls["tuned"].declare()
    (workload,) = kernel.workloads()
    entry = runtime.Entry(workload.as_dict(), dict(kernel.call(workload).default))
    made, device = {"triton": triton.__version__}, runtime.current_device()
    table = runtime.Table(
        kernel.name, "", device, made, (entry,), provenance=kernel_facts(kernel), launch_hash="aa",
        kernel_hashes=kernel.kernel_hashes(),
    )  # fmt: skip
    (folder / "tables" / "tuned@gpu.json").write_text(text_of(table))


def run(folder: Path, cols: int) -> None:
    """Run everything, and print what was compiled and how far the results are from the expected."""
    with count_compilations(import_inductor=False) as compiled:
        found = call_all(cols)
    torch.cuda.synchronize()
    expected = torch.load(folder / "expected.pt") if cols == 512 else {}
    print(json.dumps({
        "compiled": compiled.names, "tuned": len(bundled_library.tuned.cache),
        "equal": [bool(torch.equal(found[name], each)) for name, each in expected.items()],
        "runs": {use.operator: use.implementation for use in ops.report()},
    }))  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]))
    else:
        run(Path(sys.argv[2]), int(sys.argv[1]))
