"""What a compiler of graphs gets of operators: themselves, or torch's functions to fuse."""

from __future__ import annotations

import pytest
import torch
from operator_calls import block, check_gradients, operators_in, plain_block
from torch._inductor import decomposition
from torch.nn import functional
from trained import TRAINED, tensors_of, train

from tuner import ops

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def draw(*sizes, dtype=torch.float32, grad=False):
    return torch.randn(sizes, dtype=dtype).requires_grad_(grad)


@pytest.mark.parametrize("grad", [False, True])
def test_a_compiler_gets_functions_of_torch_where_no_kernel_runs(compiled, grad):
    compile_graph, graphs = compiled
    given = draw(5, 8, grad=grad), draw(8, grad=grad), draw(8, 8, grad=grad), draw(8)
    out, expected = compile_graph(block)(*given), plain_block(*given)
    torch.testing.assert_close(out, expected)
    if grad:
        check_gradients(out, expected, given[:3])
    assert len(graphs) == 1 + grad
    assert not any(map(operators_in, graphs))


def test_graphs_without_operators_may_come_first(compiled):
    decomposition.fast_random_decomps.cache_clear()
    for each in [each for each in decomposition.decompositions if str(each).startswith("tuner.")]:
        del decomposition.decompositions[each]
    compile_graph, graphs = compiled
    x = draw(5, 8)
    for function in (torch.sin, ops.softmax):
        compile_graph(function)(x)
    assert not any(map(operators_in, graphs))


@pytest.mark.full
def test_code_of_inductor_is_right_on_a_processor():
    torch.compiler.reset()
    x, w = draw(5, 8, dtype=torch.bfloat16), draw(8, dtype=torch.bfloat16)

    def normed(x, w):
        return ops.swiglu(ops.rms_norm(x, w.shape, w, 1e-5))

    gate, value = functional.rms_norm(x, (8,), w, 1e-5).chunk(2, -1)
    torch.testing.assert_close(
        torch.compile(normed, fullgraph=True)(x, w), functional.silu(gate) * value,
        atol=2e-2, rtol=2e-2,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", TRAINED)
def test_decomposed_graphs_have_the_gradients_of_torch(name, compiled):
    compile_graph, _ = compiled
    ours, torchs, _ = TRAINED[name]
    given = tensors_of(name, 6, 32)
    found = train(compile_graph(lambda *tensors: ours(*tensors)), given)
    for one, other in zip(found, train(torchs, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
