"""Which kernels stay in a graph that is compiled, in the interpreter (`test_interpreted.py`)."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from operator_calls import operators_in
from torch._inductor.utils import run_and_get_code

from tuner import ops
from tuner.ops.operator import OPERATORS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def draw(*sizes, dtype=torch.bfloat16):
    return torch.randn(sizes, dtype=dtype)


@pytest.fixture
def one_entry(softmax_tables):
    yield partial(softmax_tables, rows=32)
    OPERATORS["softmax"].forget()


@pytest.mark.parametrize(
    ("baselines", "implementation", "stays"),
    [
        ({"eager": 2.0, "compile": 1.5}, "tuned", True),
        ({"eager": 2.0, "compile": 1.1}, "tuned", False),
        ({"eager": 2.0, "compile": 0.8}, "compile", False),
        ({"eager": 0.5, "vendor": 0.4, "compile": 0.9}, "vendor", True),
        ({"eager": 2.0}, "tuned", True),
    ],
)
def test_a_kernel_stays_where_it_gains_more_than_fusing_may(
    one_entry, compiled, baselines, implementation, stays
):
    one_entry(baselines=baselines, implementation=implementation)
    compile_graph, graphs = compiled
    x = draw(24, 512)
    torch._dynamo.mark_dynamic(x, 0)
    call = compile_graph(lambda x: ops.softmax(x) + 1)
    torch.testing.assert_close(call(x), x.softmax(-1) + 1)
    assert operators_in(graphs[0]) == (["tuner.softmax.default"] if stays else [])
    call(draw(30, 512))
    assert len(graphs) == 1, "a decision must not fix a size"


@pytest.mark.parametrize("x", [draw(9000, 512), draw(0, 512), draw(5, 512).T])
def test_functions_of_torch_are_handed_over_where_no_gain_is_certain(one_entry, compiled, x):
    one_entry(baselines={"eager": 2.0, "compile": 1.3}, implementation="tuned")
    compile_graph, graphs = compiled
    torch.testing.assert_close(compile_graph(ops.softmax)(x), x.softmax(-1))
    assert not operators_in(graphs[0])


def test_other_tables_make_other_entries_of_the_cache_of_graphs(one_entry, compiled):
    from torch._inductor import config

    compile_graph, graphs = compiled
    found = []
    for gain in (1.1, None, 1.5):
        if gain is not None:
            one_entry(baselines={"compile": gain}, implementation="tuned")
        torch.compiler.reset()
        compile_graph(ops.softmax)(draw(24, 512))
        found.append(f"{config.save_config_portable()}")
    assert [len(operators_in(graph)) for graph in graphs] == [0, 0, 1]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("others_came_first", [False, True])
def test_code_of_inductor_calls_an_operator_that_stays(one_entry, others_came_first):
    one_entry(baselines={"compile": 2.0}, implementation="tuned")
    torch.compiler.reset()
    x = draw(24, 512)
    if others_came_first:  # Inductor has code for it already
        torch.compile(lambda x: ops.softmax(x * 2), fullgraph=True)(x)
    call = torch.compile(lambda x: ops.softmax(x + 1) * 2, fullgraph=True)
    out, code = run_and_get_code(call, x)
    assert "torch.ops.tuner.softmax" in "".join(code)
    torch.testing.assert_close(out, (x + 1).softmax(-1) * 2)
