"""In the place of Triton's own class: its attributes after a hit, its name, its tracing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from table_library import BIG, MODULE, key

from tuner import runtime

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")


def test_best_config_is_that_of_the_latest_launch(library):
    kernel = library.load()
    library.table((key(), BIG), (key(50), {"BLOCK": 32, "num_warps": 1, "maxnreg": 64}))
    with pytest.raises(AttributeError):
        _ = kernel.best_config
    for _ in range(3):
        library.launch(100)
        assert kernel.best_config is kernel.configs[1]
        library.launch(50)
        assert kernel.best_config.kwargs == {"BLOCK": 32}
        assert kernel.best_config.all_kwargs() == {
            "BLOCK": 32,
            "num_warps": 1,
            "num_stages": 3,
            "num_ctas": 1,
            "maxnreg": 64,
        }
        library.launch(1000)  # a miss, which tunes
        assert kernel.best_config is kernel.configs[0]
    assert len(library.module.BENCHED) == 2


def test_what_tuning_leaves_behind_is_empty_until_a_miss(library):
    kernel = library.load()
    library.table((key(), BIG))
    library.launch()
    assert (kernel.cache, kernel.configs_timings, kernel.bench_time) == ({}, {}, 0.0)
    assert library.launch(1000)[-1] == 64
    assert list(kernel.cache.values()) == [kernel.best_config]
    assert set(kernel.configs_timings) == set(kernel.configs)
    assert kernel.bench_time > 0.0
    assert kernel.nargs is None


def test_it_may_replace_tritons_decorator_everywhere(library, monkeypatch):
    monkeypatch.setattr(triton, "autotune", runtime.autotune)
    source = MODULE.replace("@autotune(", "@triton.autotune(")
    kernel = library.load(source=source)
    library.table((key(), BIG))
    assert library.launch() == [128]
    library.launch(1000)
    assert len(library.module.BENCHED) == 2
    assert isinstance(kernel, runtime.Autotuned)


def test_options_may_be_passed_by_position(library):
    source = MODULE.replace('key=["n"],', '["n"], {"early_config_prune": prune}, ["y_ptr"],')
    kernel = library.load(source=source)
    library.launch(100)
    assert len(library.module.BENCHED) == 1
    assert kernel.reset_to_zero == ["y_ptr"]
    with pytest.raises(TypeError):
        runtime.autotune([], [], *[None] * 11)


CASES = {"hit": ("fake", 100), "near": ("fake", 150), "miss": ("symbolic", 1000)}
CASES |= {"hit among symbols": ("symbolic", 100), "a symbol": ("symbolic", None)}


@pytest.mark.parametrize("case", CASES)
def test_wrap_triton_traces_it_into_a_graph(library, monkeypatch, caplog, case):
    """With the table's config as in any launch, else the library's pruned; a size that is still a
    symbol is no workload."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.library import wrap_triton

    monkeypatch.delenv("TRITON_INTERPRET")
    mode, n = CASES[case]
    source = MODULE.replace("    do_bench=bench,\n", "")
    kernel = library.load('prune_configs_by={"early_config_prune": prune}', source=source)

    def host(x):
        y = torch.empty_like(x)
        blocks = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
        wrap_triton(kernel)[blocks](x, y, n or x.numel(), FACTOR=3)
        return y

    library.table((key(), {"BLOCK": 32, "num_warps": 2}))
    graph = make_fx(host, tracing_mode=mode)(torch.zeros(n or 100))
    (call,) = [node for node in graph.graph.nodes if "triton_kernel_wrapper" in node.name]
    assert not n or call.kwargs["kwargs"]["n"] == n
    traced = kernel_side_table.get_kernel(call.kwargs["kernel_idx"])
    passed = {
        name: call.kwargs["kwargs"][name] for name in call.kwargs["kwargs"] if name == "BLOCK"
    }
    blocks = [{**passed, **config.kwargs}["BLOCK"] for config in traced.configs]
    assert blocks == {None: [64], 1000: [64, 128]}.get(n, [32])
    assert len(call.kwargs["grid"]) == len(blocks)
    assert kernel.early_config_prune is library.module.prune
    if not n:
        assert len([record for record in caplog.records if record.name == "tuner.runtime"]) == 1


def test_wrap_triton_leaves_an_interpreted_kernel_alone(library):
    from torch.library import wrap_triton

    kernel = library.load()
    assert wrap_triton(kernel) is kernel


COMPILED = """
import sys

import torch
import torch._dynamo.variables.builder
import triton

# Without a GPU the compiler would not look for Triton's classes; nothing is built or launched here.
for module in list(sys.modules.values()):
    if module.__name__.startswith("torch") and hasattr(module, "has_triton"):
        module.has_triton = lambda: True

import library


def host(x):
    y = torch.empty_like(x)
    library.scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), FACTOR=3)
    return y


def backend(graph, inputs):
    print(*(node.name for node in graph.graph.nodes))
    (call,) = (node for node in graph.graph.nodes if node.name.startswith("triton_kernel"))
    print("grids", call.kwargs["grid"])
    return lambda *inputs: [torch.zeros(100)]


torch.compile(host, backend=backend, fullgraph=True)(torch.zeros(100))
"""


def test_the_compiler_traces_it_as_tritons_own(library, monkeypatch):
    """The graph stays whole, with all listed configs in it."""
    library.load(source=MODULE.replace("    do_bench=bench,\n", ""))
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("PYTHONPATH", str(library.folder), prepend=os.pathsep)
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "grids [(2, 1, 1), (1, 1, 1)]" in done.stdout
