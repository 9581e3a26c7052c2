"""Tables for calls of operators, and graphs that contain them."""

from __future__ import annotations

import pytest
import torch
from functorch.compile import make_boxed_func
from operator_calls import CONFIG, DEVICE, write_table
from torch._dynamo.backends.common import aot_autograd

from tuner import runtime


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def softmax_tables(tmp_path, monkeypatch):
    """Writes a table of softmax whose one entry has this many rows and some of its fields."""

    def write(rows=1024, **fields):
        key = {"rows": rows, "cols": 512, "dtype": "bfloat16"}
        sizes = {"rows": runtime.Span(1, 65536), "cols": runtime.Span(1, 1024)}
        entry = runtime.Entry(key, CONFIG, sizes=sizes)
        write_table(tmp_path, "softmax", [entry], DEVICE, **fields)

    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    monkeypatch.setenv("TUNER_DEVICE", DEVICE)
    yield write
    runtime.clear()


@pytest.fixture
def compiled():
    """Compiles up to what Inductor starts from, and keeps the graphs."""
    torch.compiler.reset()
    graphs = []

    def keep(module, _):
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    def backend(module, inputs):
        from torch._inductor.decomposition import select_decomp_table

        return aot_autograd(fw_compiler=keep, decompositions=select_decomp_table())(module, inputs)

    return (lambda function: torch.compile(function, fullgraph=True, backend=backend)), graphs
