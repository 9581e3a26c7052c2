"""Operators in models of transformers and diffusers, and in place of torch's functions."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections import Counter

import pytest
import torch
from tiny_models import MODELS, call, gradients, model_of
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from tuner import ops
from tuner.ops.joined_layers import join_layers, run_joint, separate_layers
from tuner.ops.operator import OPERATORS

#: transformers and diffusers import libraries that warn.
pytestmark = pytest.mark.filterwarnings("default", "error:ops.patch")


def state(model):
    """All that a module has but its class, in which tensors are by their bits."""
    return {
        name: (
            type(module).__name__,
            {key: value for key, value in vars(module).items() if key[0] != "_"},
        )
        for name, module in model.named_modules()
    }


def check_gradients(found, wanted):
    assert found.keys() == wanted.keys()
    largest = max(float(each.abs().max()) for each in wanted.values())
    for key, gradient in found.items():  # that of a bias of keys is nought
        bound = 1e-4 * float(wanted[key].abs().max()) + 1e-6 * largest
        torch.testing.assert_close(gradient, wanted[key], rtol=1e-3, atol=bound)


#: An operator that each model needs at least.
RUNS = {
    "llama": {"rms_norm", "rotary", "add_rms_norm", "linear with swiglu"},
    "phi3": {"rms_norm", "rotary", "add_rms_norm", "linear with swiglu"},
    "phi": {"layer_norm", "linear"},
    "gemma3": {"rms_norm", "rotary", "activation"},
    "vit": {"layer_norm", "linear", "linear with gelu"},
    "siglip": {"layer_norm", "linear", "activation"},
    "whisper": {"layer_norm", "activation"},
    "unet": {"group_norm", "layer_norm", "activation", "linear", "linear with gelu"},
    "dit": {"linear", "activation"},
    "flux": {"rms_norm", "activation"},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_computes_the_same(name):
    model, inputs = model_of(name)
    before, wanted = state(model), gradients(model, inputs)
    weights = {key: each.clone() for key, each in model.state_dict().items()}
    with torch.no_grad():
        expected = call(model, inputs)

    patched = ops.patch(model)

    assert RUNS.get(name, set()) <= {each.operator for each in patched if not each.left}
    assert ops.patch(model) == patched
    for _ in range(2):  # the second call is compared with nothing
        with torch.no_grad():
            torch.testing.assert_close(call(model, inputs), expected, rtol=1e-4, atol=1e-5)
    found = gradients(model, inputs)
    check_gradients(found, wanted)
    after = model.state_dict()
    assert list(after) == list(weights)
    assert all(torch.equal(after[key], each) for key, each in weights.items())

    assert ops.unpatch(model) is model
    assert state(model) == before
    assert not any(hasattr(type(each), "_tuner_patch") for each in model.modules())
    assert all(each.untyped_storage().nbytes() == each.nbytes for each in model.parameters())
    with torch.no_grad():
        assert torch.equal(call(model, inputs), expected)


def test_what_was_replaced_is_a_table():
    model, _ = model_of("vit")
    found = ops.patch(model)
    lines = str(found).splitlines()
    assert any(line.split()[:3] == ["LayerNorm", "5", "layer_norm"] for line in lines)
    (left,) = [each for each in found if each.left]
    assert (left.name, left.module, left.left) == (
        "embeddings.patch_embeddings.projection", "Conv2d", "a bias")  # fmt: skip


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_patched_and_independent(copied):
    model, inputs = model_of("llama")
    expected = call(model, inputs)
    ops.patch(model)
    call(model, inputs)
    other = copied(model)
    assert "_tuner_calls" not in set().union(*map(vars, other.modules()))
    ops.unpatch(model)
    assert type(other.model.norm) is not type(model.model.norm)
    torch.testing.assert_close(call(other, inputs), expected, rtol=1e-4, atol=1e-5)
    ops.patch(other)  # joins the weights of the copy
    torch.testing.assert_close(call(other, inputs), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(call(ops.unpatch(other), inputs), expected)


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
def test_generation_with_a_cache(name):
    model, inputs = model_of(name)
    expected = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    ops.patch(model)
    assert torch.equal(model.generate(**inputs, max_new_tokens=4, do_sample=False), expected)


def test_one_instance_is_patched_and_freed():
    model, _ = model_of("llama")
    first, other = (layer.mlp for layer in model.model.layers)
    ops.patch(first)
    assert type(first).__name__ == type(other).__name__ == "LlamaMLP"
    assert isinstance(first, type(other))
    assert not any(hasattr(type(each), "_tuner_patch") for each in other.modules())
    first(torch.randn(2, 32))
    weight = weakref.ref(first.down_proj.weight)
    model.model.layers[0].mlp = first = None
    assert weight() is None


@pytest.mark.parametrize("name", ["llama", "gemma", "phi3"])
@pytest.mark.parametrize("more", [{}, {"num_items_in_batch": 7}, {"shift": True}])
def test_a_step_of_training_stores_no_logits(name, more):
    model, inputs = model_of(name)
    labels = inputs["input_ids"].clone()
    labels[:, :4] = -100
    named = {key: each for key, each in more.items() if key != "shift"}
    if "shift" in more:
        named["shift_labels"] = functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()

    def train():
        model.zero_grad()
        found = model.train()(**inputs, labels=labels, **named)
        found.loss.backward()
        return found, {key: each.grad.clone() for key, each in model.named_parameters()}

    (plain, expected), _ = train(), ops.patch(model)
    patched, found = train()
    assert plain.logits is not None
    assert patched.logits is None
    torch.testing.assert_close(patched.loss, plain.loss)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    asked = model.eval()(**inputs, labels=labels, **named)
    torch.testing.assert_close(asked.loss, plain.loss)
    assert asked.logits is not None
    ops.unpatch(model)
    assert torch.equal(train()[0].loss, plain.loss)


def test_autocast_is_left_to_the_model():
    model, inputs = model_of("llama")
    with torch.autocast("cpu", torch.bfloat16):
        expected, wanted = call(model, inputs), gradients(model, inputs)
        ops.patch(model)
        assert torch.equal(call(model, inputs), expected)
        for key, gradient in gradients(model, inputs).items():
            assert torch.equal(gradient, wanted[key])


@pytest.mark.parametrize("name", ["llama", "phi", "unet"])
def test_weights_are_saved_and_loaded(tmp_path, name):
    model, inputs = model_of(name)
    expected = call(model, inputs)
    ops.patch(model)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(call(loaded, inputs), expected)
    weights = {key: each.clone() for key, each in loaded.state_dict().items()}
    model.load_state_dict(weights)
    model.load_state_dict(weights, assign=True)  # the weights of a layer lie apart again
    torch.testing.assert_close(call(model, inputs), expected, rtol=1e-4, atol=1e-5)


def test_an_optimizer_changes_joined_weights():
    model, inputs = model_of("llama")
    other = copy.deepcopy(model)
    ops.patch(model)
    for each in (model, other):
        optimizer = torch.optim.SGD(each.parameters(), 0.1)
        for _ in range(2):
            gradients(each, inputs)
            optimizer.step()
    torch.testing.assert_close(call(model, inputs), call(other, inputs), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("own", [True, False])
def test_checkpointing(own):
    model, inputs = model_of("llama")
    wanted = gradients(model, inputs)
    ops.patch(model)
    if own:
        model.train().gradient_checkpointing_enable()
        found = gradients(model, inputs)
    else:
        y = checkpoint(lambda ids: model(ids)[0], inputs["input_ids"], use_reentrant=False)
        model.zero_grad()
        y.square().mean().backward()
        found = {name: each.grad for name, each in model.named_parameters()}
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[key], rtol=1e-3, atol=1e-5)


def test_a_second_derivative_of_a_gated_layer():
    layer = model_of("llama")[0].model.layers[0].mlp.double()
    ops.patch(layer)
    x = torch.randn(3, 32, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)
    assert torch.autograd.gradgradcheck(layer, x)


@pytest.mark.parametrize("name", ["llama", "phi3", "vit"])
def test_a_patched_model_is_compiled_whole(name):
    model, inputs = model_of(name)
    expected, wanted = call(model, inputs), gradients(model, inputs)
    wanted = {key: each.clone() for key, each in wanted.items()}
    ops.patch(model)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(call(compiled, inputs), expected, rtol=1e-4, atol=1e-5)
    found = gradients(compiled, inputs)
    check_gradients({key: found[f"_orig_mod.{key}"] for key in wanted}, wanted)
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral", "gemma"])
@pytest.mark.parametrize("masked", [False, True])
def test_whole_sequences_need_no_mask_in_a_graph(name, masked):
    model, inputs = model_of(name)
    if masked:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][0, :3] = 0
    expected = call(model, inputs)
    ops.patch(model)
    masks = []

    def read(graph, _):
        masks.extend(
            (node.kwargs["attn_mask"], node.kwargs["is_causal"])
            for node in graph.graph.nodes
            if "scaled_dot_product_attention" in f"{node.target}"
        )
        return graph

    torch.compiler.reset()
    found = call(torch.compile(model, fullgraph=True, backend=read), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(masks) == 2
    assert all((mask is not None, causal) == (masked, not masked) for mask, causal in masks)
    torch.compiler.reset()


def test_a_window_shorter_than_the_sequence_keeps_its_mask_in_a_graph():
    model, inputs = model_of("mistral")
    model.config.sliding_window = inputs["input_ids"].shape[1] - 1
    expected = call(model, inputs)
    ops.patch(model)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(call(compiled, inputs), expected, rtol=1e-4, atol=1e-5)
    torch.compiler.reset()


@pytest.mark.parametrize("apart", [False, True])
def test_layers_of_one_input_are_one_product_in_a_graph(apart):
    model, inputs = model_of("llama")
    inner, x = model.model, {"input_ids": inputs["input_ids"]}
    expected = call(inner, x)
    ops.patch(inner)
    seen = []

    def read(graph, _):
        seen.extend(f"{node.target}" for node in graph.graph.nodes)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(inner, fullgraph=True, backend=read)
    if apart:
        for each in inner.parameters():
            each.data = each.data.clone()
    torch.testing.assert_close(call(compiled, x), expected, rtol=1e-4, atol=1e-5)
    assert seen.count("tuner.joint_linear") == 2 * 2
    torch.compiler.reset()


@pytest.fixture
def one_process(tmp_path):
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("first", [True, False])
def test_a_sharded_model(one_process, first):
    model, inputs = model_of("llama")
    expected, wanted = call(model, inputs), gradients(model, inputs)
    model.zero_grad()
    if first:
        ops.patch(model)
    for layer in (*model.model.layers, model):
        fully_shard(layer, mesh=one_process)
    if not first:
        ops.patch(model)
    torch.testing.assert_close(call(model, inputs), expected, rtol=1e-4, atol=1e-5)
    for key, gradient in gradients(model, inputs).items():
        torch.testing.assert_close(gradient.full_tensor(), wanted[key], rtol=1e-3, atol=1e-5)
    ops.unpatch(model)
    torch.testing.assert_close(call(model, inputs), expected, rtol=0, atol=0)
    assert "FSDP" in type(model.model.layers[0]).__name__


def test_hooks_of_inner_layers_run():
    model, inputs = model_of("llama")
    ops.patch(model)
    call(model, inputs)  # compared with the layers' own code, which runs all hooks
    seen = []
    layer = model.model.layers[0]
    for inner in (
        layer.mlp.gate_proj,
        layer.mlp.down_proj,
        layer.self_attn.v_proj,
        layer.post_attention_layernorm,
    ):
        inner.register_forward_hook(lambda *given: seen.append(given[0]))
    with torch.no_grad():
        call(model, inputs)
        call(model, inputs)
    layer.mlp.register_forward_hook(lambda *given: seen.append(given[0]))
    with torch.no_grad():
        call(model, inputs)
    assert len(seen) == 4 + 4 + 5


def count(model, inputs, run=call):
    """How often each function of torch ran."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run(model, inputs)
    return Counter({each.key: each.count for each in found.key_averages()})


def test_layers_of_one_input_are_one_product():
    model, inputs = model_of("llama")
    inner, x = model.model, {"input_ids": inputs["input_ids"]}
    plain = count(inner, x, gradients)
    ops.patch(model)
    with torch.no_grad():
        call(inner, x)
        found = count(inner, x)
    # Heads, attention's last, gate and value, the last: of which that adds to the residual.
    assert (found["aten::mm"], found["aten::addmm_"]) == (2 * 3, 2)
    gradients(inner, x)
    found = count(inner, x, gradients)
    assert (
        plain["aten::mm"] - found["aten::mm"] == 2 * 3 * 3
    )  # two layers; three less, and six in the backward


@pytest.mark.parametrize("bias", [True, False])
def test_derivatives_of_layers_of_one_input(bias):
    layers = [torch.nn.Linear(6, rows, bias=bias).double() for rows in (4, 2, 2)]
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    parameters = [each for layer in layers for each in layer.parameters()]

    def run(*_):
        return run_joint(layers, x)

    assert run() is None
    with torch.no_grad():
        join_layers(layers)
    torch.testing.assert_close(run(), torch.cat([each(x) for each in layers], -1))
    assert torch.autograd.gradcheck(run, (x, *parameters))
    assert torch.autograd.gradgradcheck(run, (x, *parameters))
    layers[1].weight.requires_grad_(False)
    run().sum().backward()
    assert [each.grad is None for each in parameters].count(True) == 1
    with torch.no_grad():
        separate_layers(layers)
    assert run() is None


@pytest.mark.parametrize("which", [0, 1])
def test_layers_run_one_by_one_after_one_of_them_got_a_bias(which):
    layers, x = [torch.nn.Linear(6, 4, bias=False) for _ in range(2)], torch.randn(3, 6)
    with torch.no_grad():
        join_layers(layers)
        assert run_joint(layers, x) is not None
        layers[which].bias = torch.nn.Parameter(torch.ones(4))
        assert run_joint(layers, x) is None


def test_a_wrong_operator_is_noticed_once(monkeypatch):
    model, inputs = model_of("llama")
    expected = call(model, inputs)
    right = OPERATORS["rms_norm"].reference
    ops.patch(model)
    monkeypatch.setattr(OPERATORS["rms_norm"], "reference", lambda *given: right(*given) * 1.01)
    with pytest.warns(UserWarning, match="rms_norm in LlamaRMSNorm differs") as warned:
        found = call(model, inputs)
    assert len(warned) == 1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not hasattr(type(model.model.layers[0].input_layernorm), "_tuner_patch")
    torch.testing.assert_close(call(model, inputs), expected, rtol=1e-4, atol=1e-5)


def test_replaced_functions_run_operators():
    x, w = torch.randn(4, 8), torch.randn(6, 8)
    plain = [each() for each in CALLS(x, w)]
    ops.report()
    for operator in OPERATORS.values():
        operator.forget()
    with ops.replaced():
        found = [each() for each in CALLS(x, w)]
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)
    assert {use.operator for use in ops.report()} >= {
        "softmax", "log_softmax", "rms_norm", "layer_norm", "group_norm", "activation", "matmul",
        "linear", "attention", "cross_entropy",
    }  # fmt: skip
    for operator in OPERATORS.values():
        operator.forget()
    functional.softmax(x, -1)
    assert not ops.report()


def CALLS(x, w):
    q, bias, target = x.view(1, 2, 2, 8), w.new_ones(6), torch.arange(4)
    f = functional
    return [
        lambda: f.softmax(x, dim=-1), lambda: f.softmax(x, dim=-1, dtype=torch.float64),
        lambda: torch.softmax(x, 0), lambda: x.softmax(-1), lambda: x.log_softmax(dim=-1),
        lambda: f.rms_norm(x, (8,), w[0], 1e-5), lambda: f.layer_norm(x, (8,), w[0], w[1]),
        lambda: f.group_norm(x[None], 2, w[0, :4], w[1, :4]), lambda: f.gelu(x),
        lambda: f.gelu(x, approximate="tanh"), lambda: f.silu(x), lambda: f.silu(x.clone(), True),
        lambda: torch.matmul(x, w.T), lambda: x @ w.T,
        lambda: torch.matmul(x, w.T, out=torch.empty(4, 6)),
        lambda: f.linear(x, w), lambda: f.linear(x, w, bias), lambda: f.cross_entropy(x, target),
        lambda: f.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda: f.embedding(target, x), lambda: f.conv2d(q, q),
    ]  # fmt: skip


def test_replaced_functions_of_a_model():
    model, inputs = model_of("llama")
    wanted = gradients(model, inputs)
    with ops.replaced():
        found = gradients(model, inputs)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[key], rtol=1e-3, atol=1e-5)
