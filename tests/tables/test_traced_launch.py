"""Launches that torch.compile and `triton_op` trace: what is in the graph, nothing in it is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from applied_library import KEYWORDS, MODULE, OURS, key

import tuner
from tuner.runtime import call_key

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
wrap = pytest.importorskip("torch._higher_order_ops.triton_kernel_wrap")

#: A config that no library lists.
CONFIG = {"BLOCK": 32, "num_warps": 2}
TRACED = [name for name in KEYWORDS if name != "hooked"]


@pytest.fixture
def library(applied_library, monkeypatch):
    """The library with compiled kernels. Without a GPU, Dynamo would not look for them."""
    import torch._dynamo
    import torch.utils._triton

    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)
    applied_library.load(MODULE + OURS)
    torch._dynamo.reset()
    yield applied_library
    torch._dynamo.reset()


class Launch:
    """A launch in a graph: its kernel, grids, and arguments with constants."""

    def __init__(self, node):
        given = node.kwargs
        self.kernel = wrap.kernel_side_table.get_kernel(given["kernel_idx"])
        self.grids = given["grid"]
        constants = wrap.kernel_side_table.get_constant_args(given["constant_args_idx"])
        self.arguments = {**given["kwargs"], **constants}

    def configs(self):
        """What each config sets, constants that are arguments included."""
        listed = getattr(self.kernel, "configs", [triton.Config({})])
        names = ("BLOCK", "EVEN", "FACTOR")
        passed = {name: self.arguments[name] for name in names if name in self.arguments}
        return [{**passed, **config.kwargs, "num_warps": config.num_warps} for config in listed]


def graph_of(function, x):
    """The graph that Dynamo makes of a function."""
    found = []

    def backend(graph, _):
        found.append(graph)
        return lambda *inputs: [torch.zeros(1)]

    torch.compile(function, backend=backend, fullgraph=True)(x)
    return found[0]


def traced(function, x):
    """The launches in the graph of a function."""
    return launches_in(graph_of(function, x))


def launches_in(graph):
    return [Launch(node) for node in graph.graph.nodes if "triton_kernel_wrapper" in node.name]


def by_block(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def host(library, name, grid=by_block, **more):
    """A function of a tensor that launches a kernel once."""
    kernel, given = library.kernel(name), {**KEYWORDS[name], **more}

    def launch(x):
        y = torch.empty_like(x)
        kernel[grid](x, y, x.numel(), None, **given)
        return y

    return launch


def counts_of(application):
    (use,) = application.kernels
    return use.state, use.hits, use.misses


@pytest.mark.parametrize("name", TRACED)
def test_a_hit_puts_the_config_of_the_table_into_the_graph(library, name):
    with tuner.applied(library.table(name, (key(), CONFIG))) as used:
        (launch,) = traced(host(library, name), torch.zeros(100))
        assert counts_of(used) == ("applied", 1, 0)
    assert launch.configs() == [{**CONFIG, "FACTOR": 3, "EVEN": False}]
    assert launch.grids == [(4, 1, 1)]
    assert type(launch.kernel).__name__ == "Autotuner"
    assert launch.kernel.fn is library.kernel("plain") or launch.kernel.fn.fn.__name__ == "body"


@pytest.mark.parametrize("name", TRACED)
def test_a_miss_and_a_kernel_without_tables_are_as_torch_has_them(library, name):
    (own,) = traced(host(library, name), torch.zeros(200))
    path = library.table(name, (key(), CONFIG))
    with tuner.applied(path) as used:
        (missed,) = traced(host(library, name), torch.zeros(200))
        assert counts_of(used) == ("applied", 0, 1)
        torch._dynamo.reset()
        (hit,) = traced(host(library, name), torch.zeros(100))
        assert hit.configs()[0]["BLOCK"] == 32
    torch._dynamo.reset()
    (removed,) = traced(host(library, name), torch.zeros(100))
    for other in (missed, removed):
        assert other.configs() == own.configs()
    assert missed.grids == own.grids != removed.grids


def test_constants_by_position_are_replaced(library):
    kernel = library.kernel("plain")

    def launch(x):
        kernel[by_block](x, torch.empty_like(x), x.numel(), None, 3, 64, False)
        return x

    with tuner.applied(library.table("plain", (key(), CONFIG))):
        (found,) = traced(launch, torch.zeros(100))
    assert found.configs() == [{**CONFIG, "FACTOR": 3, "EVEN": False}]
    assert found.grids == [(4, 1, 1)]


def test_a_tuple_as_grid_takes_options_but_no_other_block(library, caplog):
    for config, expected, outcome in (
        ({"BLOCK": 64, "num_warps": 8}, 8, (1, 0)),
        ({"BLOCK": 32, "num_warps": 8}, 4, (0, 1)),
    ):
        torch._dynamo.reset()
        with tuner.applied(library.table("plain", (key(), config))) as used:
            (found,) = traced(host(library, "plain", (2,)), torch.zeros(100))
            assert counts_of(used)[1:] == outcome
        (config,) = found.configs()
        assert (config["BLOCK"], config["num_warps"], found.grids) == (64, expected, [(2, 1, 1)])
    assert "on which the grid of this launch may depend" in caplog.text


def test_a_captured_key_finds_its_call_in_a_graph(library):
    x = torch.empty(100, device="meta")
    arguments = {"x_ptr": x, "y_ptr": x, "n": 100, "bias_ptr": None, "FACTOR": 3, "EVEN": False}
    path = library.table("tuned", (call_key(arguments, by_block, ["BLOCK"]), CONFIG))
    with tuner.applied(path) as used:
        (found,) = traced(host(library, "tuned"), torch.zeros(100))
        assert found.configs()[0]["BLOCK"] == 32
        (missed,) = traced(host(library, "tuned"), torch.zeros(100, dtype=torch.float16))
        assert len(missed.configs()) == 2
        assert counts_of(used) == ("applied", 1, 1)


@pytest.mark.parametrize("name", ["plain", "tuned", "ours"])
def test_a_size_that_is_a_symbol_is_no_workload(library, name, caplog):
    x = torch.zeros(100)
    torch._dynamo.mark_dynamic(x, 0)
    with tuner.applied(library.table(name, (key(), CONFIG))) as used:
        (found,) = traced(host(library, name), x)
        assert counts_of(used) == ("applied", 0, 1)
    assert all(config["BLOCK"] != 32 for config in found.configs())
    assert "a size is a symbol of the graph" in caplog.text


@pytest.mark.parametrize("option", [{"maxnreg": 64}, {"num_ctas": 2}, {"enable_fp_fusion": False}])
def test_an_option_that_compiled_code_drops_is_refused(library, option, caplog):
    with tuner.applied(library.table("tuned", (key(), {**CONFIG, **option}))) as used:
        (found,) = traced(host(library, "tuned"), torch.zeros(100))
        assert counts_of(used) == ("applied", 0, 1)
    assert len(found.configs()) == 2
    assert f"sets {next(iter(option))}, which compiled code does not pass to Triton" in caplog.text


def test_a_default_config_is_not_tuned_in_a_graph_either(library, monkeypatch):
    monkeypatch.setenv("TUNER_MISS", "default")
    with tuner.applied(library.table("tuned", (key(7), CONFIG))) as used:
        (found,) = traced(host(library, "tuned"), torch.zeros(100))
        assert counts_of(used) == ("applied", 0, 1)
    assert [config["BLOCK"] for config in found.configs()] == [64]


def test_launches_of_a_graph_have_configs_of_their_own(library):
    kernel = library.kernel("tuned")

    def launch(x):
        y = torch.empty_like(x)
        for n in (100, 50, 100, 7):
            kernel[by_block](x, y, n, None, FACTOR=3, EVEN=False)
        return y

    entries = (key(), CONFIG), (key(50), {"BLOCK": 16, "num_warps": 1})
    with tuner.applied(library.table("tuned", *entries)) as used:
        found = traced(launch, torch.zeros(100))
        assert counts_of(used) == ("applied", 3, 1)
    blocks = [[config["BLOCK"] for config in launch.configs()] for launch in found]
    assert blocks == [[32], [16], [32], [64, 128]]
    assert [launch.arguments.get("BLOCK") for launch in found] == [32, 16, 32, None]


def operator(library, name):
    """A `triton_op` around a launch."""

    def launch(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel = torch.library.wrap_triton(library.kernel(name))
        kernel[by_block](x, y, x.numel(), None, **KEYWORDS[name])
        return y

    made = torch.library.triton_op(f"tuner_tests::{name}_{id(library)}", launch, mutates_args=())
    return lambda x: made(x) + 1


@pytest.mark.parametrize("name", ["plain", "tuned", "ours"])
def test_a_triton_op_is_served_too(library, name):
    from torch._dynamo.backends.common import aot_autograd

    found = []

    def inspect(graph, _):
        found.extend(launches_in(graph))
        outputs = graph.graph.output_node().args[0]
        return lambda *inputs: [torch.zeros(100) for _ in outputs]

    def run(x):
        backend = aot_autograd(fw_compiler=inspect)
        torch.compile(operator(library, name), backend=backend, fullgraph=True)(x)

    with tuner.applied(library.table(name, (key(), CONFIG))) as used:
        run(torch.zeros(100))
        assert counts_of(used)[1] > 0
    assert found[-1].configs() == [{**CONFIG, "FACTOR": 3, "EVEN": False}]
    assert found[-1].grids == [(4, 1, 1)]


def cache_keys(function):
    """Inductor's key of a graph, and the key under which the whole of it is cached before that."""
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor.codecache import FxGraphHashDetails

    torch._dynamo.reset()
    graph, inputs = graph_of(function, torch.zeros(100)), [torch.zeros(100)]
    details = autograd_cache.AOTAutogradCacheDetails
    return (
        repr(FxGraphHashDetails(graph, inputs, {}, []).user_defined_triton_source),
        repr(details.get_triton_source_codes_from_gm(object.__new__(details), graph)),
    )


@pytest.mark.parametrize("name", ["plain", "tuned"])
def test_compiled_code_is_not_cached_for_other_tables(library, name):
    """A launch is in the graph with its config; of a `triton_op`, torch's key has the source."""
    entries = (key(), CONFIG), (key(), {**CONFIG, "BLOCK": 16}), (key(), {**CONFIG, "num_warps": 1})
    paths = [library.table(name, entry, file=f"{at}") for at, entry in enumerate(entries)]
    for at, function in enumerate((host(library, name), operator(library, name))):
        keys = [cache_keys(function)[at]]
        for path in [*paths, *paths]:
            with tuner.applied(path):
                keys.append(cache_keys(function)[at])
        keys.append(cache_keys(function)[at])
        assert len(set(keys)) == 4
        assert keys[1:4] == keys[4:7]
        assert keys[0] == keys[-1]


WITHOUT_INTERFACE = """
import sys

import torch
import torch._dynamo
import torch.utils._triton
import triton
from torch._higher_order_ops import triton_kernel_wrap

import tuner

torch.utils._triton.has_triton = lambda: True
triton_kernel_wrap.TritonHOPifier = None  # torch's own code has the class by another name

import applied_library_kernels as library

def host(x):
    y = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    library.tuned[grid](x, y, x.numel(), None, FACTOR=3, EVEN=False)
    return y


def backend(graph, inputs):
    (call,) = (node for node in graph.graph.nodes if node.name.startswith("triton_kernel"))
    print("grids", call.kwargs["grid"])
    return lambda *inputs: [torch.zeros(100)]


for _ in range(2):
    with tuner.applied(sys.argv[1]):
        torch.compile(host, backend=backend, fullgraph=True)(torch.zeros(100))
"""


def test_a_torch_without_the_interface_is_said_once(library, monkeypatch):
    path = library.table("tuned", (key(), CONFIG))
    root = Path(tuner.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([f"{library.folder}", f"{root}"]))
    command = [sys.executable, "-c", WITHOUT_INTERFACE, f"{path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "grids [(2, 1, 1), (1, 1, 1)]" in done.stdout
    assert done.stderr.count("compiled code is as torch makes it") == 1


@pytest.mark.parametrize("name", TRACED)
def test_a_graph_outlives_its_tables_until_torch_traces_again(library, name):
    """Only the class of heuristics belongs to what torch checks before each run."""
    graphs = []

    def backend(graph, _):
        graphs.append(launches_in(graph)[0].configs()[0]["BLOCK"])
        return lambda *inputs: [torch.zeros(1)]

    function = torch.compile(host(library, name), backend=backend, fullgraph=True)
    with tuner.applied(library.table(name, (key(), CONFIG))):
        function(torch.zeros(100))
    function(torch.zeros(100))
    assert graphs == ([32, 64] if name in ("computed", "around") else [32])
    torch.compiler.reset()
    function(torch.zeros(100))
    assert graphs[-1] == 64
