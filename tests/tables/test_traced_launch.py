"""Launches that torch.compile and `triton_op` trace: what is in the graph, nothing in it is run."""

from __future__ import annotations

import pytest
from applied_library import KEYWORDS, MODULE, NAME, OURS, key

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


def traced(function, *inputs, dynamic=False):
    """The launches in the graph of a function."""
    found = []

    def backend(graph, _):
        nodes = [node for node in graph.graph.nodes if "triton_kernel_wrapper" in node.name]
        found.extend(map(Launch, nodes))
        return lambda *inputs: [torch.zeros(1)]

    torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)(*inputs)
    return found


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
