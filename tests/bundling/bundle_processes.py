"""The processes of `test_bundles.py`: `record FOLDER` and `launch NAME SIZE ...`."""

from __future__ import annotations

import json
import logging
import sys
from functools import partial
from pathlib import Path

import bundled_library
import torch
import triton

import tuner
from search_spaces import registry
from search_spaces.absent_device.fake_driver import TargetDriver, active, fake_device
from search_spaces.recorded.model_calls import ModelCall, write_calls
from search_spaces.records import Workload
from tuner import runtime
from tuner.tables.results import kernel_facts
from tuner.tables.text import text_of
from workers.compiling import count_compilations
from workers.compiling.gpu import compile_launch, meta_tensors
from workers.device import offline
from workers.job_records import BuildJob, KernelRef

SOFTMAX = {"rows": 16, "cols": 512, "dtype": "bfloat16"}
SOFTMAX_CONFIG = {"num_warps": 4, "rows_per_step": 1, "steps": 1, "stream": False}
H200 = runtime.DeviceFacts("NVIDIA H200", "cuda", "cuda:90", 132, shared_bytes=232448)


def table_of(kernel, key, config, serves=None, **fields):
    entry = runtime.Entry(key, config, sizes=serves or {}, serves=serves or {})
    made = {"triton": triton.__version__}
    return runtime.Table(kernel, "", H200, made, (entry,), launch_hash="aa", **fields)


def record(folder: Path) -> None:
    """Calls in Triton's interpreter, the libraries' choices as tables, and a call of softmax."""
    (folder / "tables").mkdir()
    hashes = (runtime.kernel_hash(bundled_library.decorated),)
    key, config = {"n": 4096, "dtype": "float32"}, {"BLOCK": 256, "num_warps": 4}
    ours = table_of("decorated", key, config, kernel_hashes=hashes)
    (folder / "tables" / "decorated@H200.json").write_text(text_of(ours))
    with tuner.capture() as calls:
        for name in ("plain", "tuned", "decorated"):
            bundled_library.launch(name, torch.ones)
    calls.save(folder / "calls.json")
    kernel = calls["tuned"].declare()
    facts = {"provenance": kernel_facts(kernel), "kernel_hashes": kernel.kernel_hashes()}
    for block, place in ((128, "tables"), (256, "other")):
        config = {"BLOCK": block, "num_warps": 4}
        (folder / place).mkdir(exist_ok=True)
        table = table_of(kernel.name, kernel.workloads()[0].as_dict(), config, **facts)
        (folder / place / "tuned@H200.json").write_text(text_of(table))
    served = {"rows": runtime.Span(1, 100)}
    softmax = table_of("softmax", SOFTMAX, SOFTMAX_CONFIG, served, rule=runtime.Rule("sizes"))
    (folder / "tables" / "named.json").write_text(text_of(softmax))
    write_calls(folder / "record.json", [ModelCall("softmax", SOFTMAX, 1)])


class Launching(TargetDriver):
    """Loads and launches nothing, as if it had."""

    def launcher_cls(self, source, metadata):
        return lambda *passed: None

    def load_binary(self, name, binary, shared, device):
        return None, None, 0, 0, 1024


def launch(target: str, names: list[str]) -> None:
    logging.basicConfig(format="%(message)s")
    device, failed = offline(target), {}
    with (
        fake_device(device),
        active(Launching(device)) as _,
        count_compilations(import_inductor=False) as counted,
    ):
        for text in names:
            name, _, size = text.partition(":")
            try:
                if name == "softmax":
                    compile_softmax(device, int(size or 16))
                else:
                    make = partial(torch.empty, device="meta")
                    bundled_library.launch(name, make, int(size or 4096))
            except runtime.NotCompiled as error:
                failed[text] = str(error)
    blocks = {
        name: config.kwargs["BLOCK"]
        for name in ("tuned", "decorated")
        if (config := getattr(getattr(bundled_library, name), "best_config", None))
    }
    print(json.dumps({
        "looked_up": len(counted.keys), "compiled": counted.names, "failed": failed,
        "blocks": blocks, "tuned": len(bundled_library.tuned.cache),
    }))  # fmt: skip


def compile_softmax(device, rows: int) -> None:
    kernel, workload = registry.load("softmax"), Workload.from_mapping({**SOFTMAX, "rows": rows})
    job = BuildJob("", KernelRef("softmax"), workload, SOFTMAX_CONFIG, device)
    driver = triton.runtime.driver.active
    for each in kernel.launches(workload, SOFTMAX_CONFIG, meta_tensors(kernel, job)):
        compile_launch(each, driver)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]))
    else:
        launch(sys.argv[1], sys.argv[2:])
