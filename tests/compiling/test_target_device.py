"""Modules that query the device on import get the target's properties."""

from __future__ import annotations

import json
import sys
import zlib

import pytest

from results_db import Store
from search_spaces import registry
from search_spaces.absent_device import fake_driver
from search_spaces.errors import KernelError
from search_spaces.records import Device, Workload, config_key
from tuner.cli import invoke
from workers.compiling import build
from workers.device import offline
from workers.job_records import Artifact, BuildJob, KernelRef

#: A library as many are: its limits and its list of configs are made when it is imported.
LIMITS = """
import functools, torch, triton

properties = torch.cuda.get_device_properties(0)
SMS = properties.multi_processor_count
SHARED = triton.runtime.driver.active.utils.get_device_properties(
    triton.runtime.driver.active.get_current_device()
)["max_shared_mem"]
ARCH = triton.runtime.driver.active.get_current_target().arch
assert torch.cuda.is_available() and torch.cuda.device_count() == 1

TABLE = torch.tensor([0, 1, 2], device="cuda:0")
assert torch.zeros(2).cuda().device == TABLE.device
operators = torch.library.Library("asking", "DEF")
operators.define("twice(Tensor x) -> Tensor")
operators.impl("twice", lambda x: 2 * x, "CPU")

@functools.cache
def capability():
    return torch.cuda.get_device_capability()
"""
KERNEL = """
import torch, triton, triton.language as tl
from asking_limits import ARCH, SHARED, SMS, capability
from tuner import Cost, TensorSpec, Workload
from search_spaces.adoption.adopt import adopt
from torch.utils._triton import has_triton

assert has_triton()

@triton.autotune(
    configs=[triton.Config({"BLOCK": b, "SMS": SMS}) for b in (64, SHARED // 1024)], key=["n"],
    prune_configs_by={"early_config_prune": lambda configs, named, **_: (
        configs if capability()[0] >= 9 else configs[:1]
    )},
)
@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr, SMS: tl.constexpr):
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(y_ptr + at, tl.load(x_ptr + at, at < n), at < n)

def vector(w): return TensorSpec((w.size("n"),), "float32")

kernel = adopt(
    copy, name="asking", workloads=[Workload.of(n=1000)], dims=["n"],
    inputs=lambda w: {"x": vector(w)}, outputs=lambda w: {"y": vector(w)},
    arguments=lambda w, t: {"x_ptr": t["x"], "y_ptr": t["y"], "n": w.size("n")},
    grid=lambda meta: (triton.cdiv(meta["n"], 256) + capability()[0] * 0,),
    reference=lambda w, t: t["x"] * 1, cost=lambda w: Cost(1.0, 8.0 * w.size("n")),
)
"""
PLAIN = KERNEL.replace(
    "from asking_limits import ARCH, SHARED, SMS, capability", "SMS = 1"
).replace("assert has_triton()", "SHARED = 65536; capability = lambda: (9, 0)")
WORKLOAD = Workload.of(n=1000)
CONFIGS = {
    "cuda:90": [{"BLOCK": 64, "SMS": 132}, {"BLOCK": 227, "SMS": 132}],
    "cuda:80": [{"BLOCK": 64, "SMS": 108}],
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The working folder, shared by all tests, because a process has one module of each name."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "asking_limits.py").write_text(LIMITS)
    (folder / "asking.py").write_text(KERNEL)
    (folder / "plain.py").write_text(PLAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield folder


def configs(kernel, device):
    with fake_driver.answering_if_used(device):
        return [
            {name: value for name, value in config.items() if name in ("BLOCK", "SMS")}
            for config in kernel.space(WORKLOAD).bind(WORKLOAD, device).enumerate()
        ]


def test_every_device_has_separate_modules(library):
    undecided = registry.load_undecided("asking.py:kernel")
    loaded = {}
    for name in ("cuda:90", "cuda:80", "cuda:90", "cuda:80"):
        device = offline(name)
        kernel = registry.for_device(undecided, device)
        assert configs(kernel, device) == CONFIGS[name]
        assert loaded.setdefault(name, kernel) is kernel
        assert sys.modules["asking_limits"].TABLE.is_meta
        assert f"{sys.modules['asking_limits'].ARCH}" == name.partition(":")[2]
    card = Device("cuda", "a smaller card", "cuda:90", sm_count=7, shared_bytes=100 << 10)
    found = configs(registry.for_device(undecided, card), card)
    assert found == [{"BLOCK": 64, "SMS": 7}, {"BLOCK": 100, "SMS": 7}]


def test_modules_without_queries_serve_all_devices(library):
    first = registry.load("plain.py:kernel", (), offline("cuda:86"))
    assert registry.load("plain.py:kernel", (), offline("cuda:89")) is first


def test_without_a_device_a_query_fails_as_on_a_machine_without_gpus(library):
    (library / "eager.py").write_text("import torch\ntorch.cuda.get_device_properties(0)\n")
    with pytest.raises(KernelError, match="no GPU is visible"):
        registry.load("eager.py:kernel", (), fake_driver.NO_GPU)


def test_builders_build_for_the_requested_device(library, tmp_path):
    ref = KernelRef(f"{library / 'asking.py'}:kernel", (f"{library}",))
    for name in ("cuda:90", "cuda:80", "cuda:90"):
        config = {**CONFIGS[name][0], "num_warps": 4, "num_stages": 3}
        result = build(BuildJob("job", ref, WORKLOAD, config, offline(name)), tmp_path / "cache")
        assert isinstance(result, Artifact), result
        (described,) = [
            json.loads(zlib.decompress(data))
            for file, data in result.files.items()
            if file.endswith("/copy.json")
        ]
        assert f"cuda:{described['target']['arch']}" == name


def test_a_module_that_cannot_be_imported_twice_is_named(library):
    (library / "once.py").write_text(
        "import builtins, torch\n"
        "assert torch.cuda.get_device_properties(0) and not hasattr(builtins, 'once')\n"
        "builtins.once = True\nkernel = 1\n"
    )
    with pytest.raises(KernelError, match="it is a int"):
        registry.load("once.py:kernel", (), offline("cuda:100"))
    with pytest.raises(KernelError, match="importing it fails") as caught:
        registry.load("once.py:kernel", (), offline("cuda:120"))
    assert "run each target separately" in caught.value.hint


CONFIG = """version: 1
database: {url: "sqlite:///farm.db"}
pool: {kind: local, builders: 1}
campaigns:
  c:
    targets: ["cuda:90", "cuda:80"]
    strategy: {name: exhaustive}
    tasks:
      - kernel: asking.py:kernel
"""


def test_a_campaign_for_two_targets_builds_the_configs_of_each(library, capsys):
    (library / "config.yaml").write_text(CONFIG)
    code = invoke(["run", "c"])
    assert code == 0, capsys.readouterr().err
    with Store.open("sqlite:///farm.db") as store:
        run = store.runs(limit=1)[0]
        tried = {}
        for task in store.tasks(run.run_id):
            trials = store.trials(task.task_id)
            assert {f"{trial.status}" for trial in trials} == {"correct"}, trials
            assert {trial.verified_by for trial in trials} == {"interpreter"}
            tried[task.key.device.target] = sorted(
                config_key({name: trial.config[name] for name in ("BLOCK", "SMS")})
                for trial in trials
            )
    assert tried == {name: sorted(map(config_key, listed)) for name, listed in CONFIGS.items()}
