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


def test_a_config_that_is_refused_leaves_tritons_choice(library):
    kernel = library.load()
    library.table((key(), {"BLOCK": 100}))
    library.launch()
    assert kernel.best_config is kernel.configs[0]


def test_hooks_get_the_launched_config(library):
    hooked = "triton.Config({'BLOCK': 256}, pre_hook=hook),"
    kernel = library.load(
        source=MODULE.replace('triton.Config({"BLOCK": 128}, num_warps=4)', hooked)
    )
    library.table((key(), {"BLOCK": 256}))
    library.launch()
    assert kernel.best_config is kernel.configs[1]
    assert kernel.best_config.pre_hook is library.module.hook


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


def test_it_is_an_instance_of_tritons_autotuner(library):
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import KernelInterface

    kernel = library.load()
    assert isinstance(kernel, Autotuner)
    assert isinstance(kernel, KernelInterface)
    assert isinstance(kernel, runtime.Autotuned)
    direct = runtime.Autotuned(kernel.fn, kernel.configs, ["n"])
    assert isinstance(direct, Autotuner)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("n", [100, 150, 1000], ids=["hit", "near", "miss"])
def test_wrap_triton_traces_it_into_a_graph(library, monkeypatch, mode, n):
    """With the table's config if it was measured for that workload, else the library's pruned."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.library import wrap_triton

    monkeypatch.delenv("TRITON_INTERPRET")
    source = MODULE.replace("    do_bench=bench,\n", "")
    kernel = library.load('prune_configs_by={"early_config_prune": prune}', source=source)

    def host(x):
        y = torch.empty_like(x)
        blocks = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
        wrap_triton(kernel)[blocks](x, y, n, FACTOR=3)
        return y

    library.table((key(), {"BLOCK": 32, "num_warps": 2}))
    graph = make_fx(host, tracing_mode=mode)(torch.zeros(n))
    (call,) = [node for node in graph.graph.nodes if "triton_kernel_wrapper" in node.name]
    assert call.kwargs["kwargs"]["n"] == n
    traced = kernel_side_table.get_kernel(call.kwargs["kernel_idx"])
    blocks = [config.kwargs["BLOCK"] for config in traced.configs]
    assert blocks == ([32] if n == 100 else [64, 128])
    assert len(call.kwargs["grid"]) == len(blocks)
    assert kernel.early_config_prune is library.module.prune


def test_a_size_that_is_still_a_symbol_is_no_workload(library, monkeypatch, caplog):
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.library import wrap_triton

    monkeypatch.delenv("TRITON_INTERPRET")
    kernel = library.load(source=MODULE.replace("    do_bench=bench,\n", ""))
    library.table((key(), BIG))

    def host(x):
        y = torch.empty_like(x)
        wrap_triton(kernel)[(2,)](x, y, x.numel(), FACTOR=3)
        return y

    graph = make_fx(host, tracing_mode="symbolic")(torch.zeros(100))
    (call,) = [node for node in graph.graph.nodes if "triton_kernel_wrapper" in node.name]
    assert len(call.kwargs["grid"]) == 2
    assert len([record for record in caplog.records if record.name == "tuner.runtime"]) == 1


def test_wrap_triton_leaves_an_interpreted_kernel_alone(library):
    from torch.library import wrap_triton

    kernel = library.load()
    assert wrap_triton(kernel) is kernel


def test_a_library_that_reads_best_config_on_the_host_runs_on(library):
    """As mamba's ssd and vLLM do: a second launch sized by the first one's block."""
    reading = (
        MODULE
        + """

def host(x, y):
    scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), FACTOR=3)
    return scale.best_config.kwargs["BLOCK"], scale.best_config.num_warps
"""
    )
    library.load(source=reading)
    library.table((key(), BIG))
    x = torch.ones(100)
    for _ in range(2):
        assert sys.modules["table_library"].host(x, torch.empty_like(x)) == (128, 4)


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
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "grids [(2, 1, 1), (1, 1, 1)]" in done.stdout
