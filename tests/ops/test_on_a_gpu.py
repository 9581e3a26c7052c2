"""Operators on a GPU: plans, gradients, graphs, compilation, streams and threads."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from functools import partial

import pytest
import torch
from operator_calls import (
    block,
    check_gradients,
    plain_block,
    results_of,
    write_defaults,
)
from operator_cases import KERNELS, call_of
from torch.nn import functional
from trained import TRAINED, tensors_of, train, widen

from search_spaces import registry
from search_spaces.baselines import list_baselines
from tuner import ops, runtime
from tuner.ops import choosing
from tuner.ops.operator import OPERATORS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def every_entry_serves(monkeypatch):
    """Small problems are far from the entries of tables."""
    # `torch.compile` sets it for its own kernels; later tests build with Triton's assembler.
    monkeypatch.setenv("TRITON_PTXAS_PATH", "")
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    for operator in OPERATORS.values():
        operator.forget()
    with ops.prefer_tuned():
        yield


def half(*sizes, grad=False):
    return torch.randn(sizes, device="cuda", dtype=torch.bfloat16).requires_grad_(grad)


def near(one, other, bound=2e-2):
    one, other = one.double(), other.double()
    return (one - other).norm() <= bound * other.norm()


def check_near(one, other):
    assert near(one, other, 4e-2)


def captured(function, *given, **options):
    """A graph of a call, and the results that each replay overwrites."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(*given, **options)
    return graph, out


def arguments(grad=False):
    return half(96, 512, grad=grad), half(512, grad=grad), half(512, 512, grad=grad), half(512)


def test_tuned_kernels_run_and_are_right():
    given = arguments()
    assert near(block(*given), plain_block(*given))
    runs = {use.operator: use.implementation for use in ops.report()}
    assert {runs[name] for name in ("rms_norm", "softmax", "add_rms_norm")} == {"tuned"}


def test_a_plan_serves_other_tensors_and_equal_ones():
    w = half(512)
    one, other = half(64, 512), half(64, 512)
    for x, r in ((one, one), (one, other), (other, other)):  # the first is planned with one tensor
        y, total = ops.add_rms_norm(x, r, w)
        assert torch.equal(total, x + r)
        assert near(y, functional.rms_norm(total, (512,), w, 1e-5))


def test_a_misaligned_tensor_has_a_plan_of_its_own():
    whole = half(64 * 512 + 1)
    for x in (whole[:-1].view(64, 512), whole[1:].view(64, 512)):
        assert near(ops.softmax(x), x.softmax(-1))


def test_gradients_are_those_of_torch():
    given = arguments(grad=True)
    check_gradients(block(*given), plain_block(*given), given[:3], close=check_near)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_training_is_that_of_torch_and_never_waits_for_the_device(name, factor):
    ours, torchs, _ = TRAINED[name]
    given = tensors_of(name, 96, 512, "cuda", torch.bfloat16)
    train(ours, given, factor)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = train(ours, given, factor, times=2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(found, train(torchs, widen(given), factor, times=2), strict=True):
        check_near(one, other)


def test_a_target_that_is_no_class_fails_on_the_device():
    code = (
        "import torch; from tuner import ops; x = torch.randn(64, 512, device='cuda').bfloat16()\n"
        "t = torch.full((64,), 512, device='cuda')\n"
        "with ops.prefer_tuned(): ops.cross_entropy(x.requires_grad_(), t)\n"
        "torch.cuda.synchronize()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "assert" in done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("grad", [False, True])
def test_a_graph_is_compiled_without_a_break(grad):
    torch.compiler.reset()
    given = arguments(grad=grad)
    compiled = torch.compile(block, fullgraph=True)
    out, expected = compiled(*given), plain_block(*given)
    assert near(out, expected)
    if grad:
        check_gradients(out, expected, given[:3], close=check_near)


def test_a_cuda_graph_replays_warm_calls():
    given = arguments()
    ops.warm(block, *given)
    graph, out = captured(block, *given)
    for _ in range(2):
        given[0].copy_(half(96, 512))
        graph.replay()
        assert near(out, plain_block(*given))


@pytest.fixture
def defaults(tmp_path, monkeypatch):
    """Writes a table of the default configs of a kernel's workloads for this device."""
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))

    def write(name):
        kernel, device = registry.load(name), torch.cuda.get_device_name()
        some = [each for each in kernel.workloads() if not each.get("quantized")]
        write_defaults(tmp_path, kernel, some, device)

    yield write
    runtime.clear()


def experts(tokens=48, ids=None, grad=False):
    """x, gate_up, down, weights and ids of a layer of 8 experts, two for each token."""
    weights, found = ops.topk_routing(torch.randn(tokens, 8, device="cuda"), 2)
    x, gate_up, down = (half(*sizes) for sizes in ((tokens, 256), (8, 256, 256), (8, 256, 128)))
    given = [x, gate_up / 16, down / 12]
    if ids is not None:
        found = torch.tensor(ids, dtype=torch.int32, device="cuda").expand(tokens, 2).contiguous()
    return *(each.detach().requires_grad_(grad) for each in given), weights, found


def exact_experts(x, gate_up, down, weights, ids):
    on_cpu = (each.detach().cpu().double() for each in (x, gate_up, down, weights))
    return ops.moe(*on_cpu, ids.cpu()).to("cuda")


def test_a_cuda_graph_orders_the_slots_of_other_ids(defaults):
    defaults("moe_matmul")
    given = experts()
    ops.warm(ops.moe, *given)
    graph, out = captured(ops.moe, *given)
    for ids in (None, [5, 0], [7, 7]):
        for old, new in zip(given, experts(ids=ids), strict=True):
            old.copy_(new)
        graph.replay()
        assert near(out, exact_experts(*given))


def test_torchs_layer_of_experts_is_captured_and_differentiated():
    given = experts(tokens=33)
    ops.moe(*given)
    graph, out = captured(ops.moe, *given)
    graph.replay()
    assert near(out, exact_experts(*given))
    given = experts(grad=True)
    wide = [each.detach().double().requires_grad_() for each in given[:3]]
    out, exact = ops.moe(*given), ops.moe(*wide, given[3].double(), given[4])
    check_gradients(out, exact, given[:3], wide, close=check_near)


@pytest.mark.parametrize("by", ["tuned", "eager"])
@pytest.mark.parametrize("window", [0, 50])
def test_lengths_of_packed_sequences_are_free(defaults, monkeypatch, by, window):
    defaults("varlen_attention")
    if by == "eager":
        monkeypatch.setattr(choosing, "pick", lambda *_: ("eager", None))
    q, k, v = half(400, 8, 64), half(400, 2, 64), half(400, 2, 64)
    cu_seqlens = torch.zeros(5, dtype=torch.int32, device="cuda")
    ops.warm(ops.varlen_attention, q, k, v, cu_seqlens, causal=True, window=window)
    graph, out = captured(ops.varlen_attention, q, k, v, cu_seqlens, causal=True, window=window)
    for bounds in ([0, 400, 400, 400, 400], [0, 1, 1, 390, 400], [0, 100, 200, 300, 400]):
        cu_seqlens.copy_(torch.tensor(bounds))
        graph.replay()
        wide = (each.double() for each in (q, k, v))
        assert near(out, ops.varlen_attention(*wide, cu_seqlens, causal=True, window=window))
    runs = {use.implementation for use in ops.report() if use.operator == "varlen_attention"
            and use.workload}  # fmt: skip
    assert runs == {by}


def test_gradients_of_packed_sequences_are_those_of_wide_ones():
    given = half(200, 8, 64, grad=True), half(200, 2, 64, grad=True), half(200, 2, 64, grad=True)
    cu_seqlens = torch.tensor([0, 7, 150, 200], dtype=torch.int32, device="cuda")
    wide = [each.detach().double().requires_grad_() for each in given]
    out, exact = (ops.varlen_attention(*each, cu_seqlens, causal=True) for each in (given, wide))
    check_gradients(out, exact, given, wide, close=check_near)


def test_calls_keep_no_memory(defaults):
    for name in ("moe_matmul", "varlen_attention"):
        defaults(name)

    def call(tokens):
        given = half(tokens, 512), half(512), half(512, 512), half(512)
        q, k = half(1, 16, tokens, 128), half(tokens, 8, 64)
        bounds = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
        block(*given)
        ops.attention(q, q, q, is_causal=True)
        ops.varlen_attention(k, k, k, bounds, causal=True)
        ops.moe(*experts(tokens))

    call(64)  # workspaces of libraries stay
    before = torch.cuda.memory_allocated()
    for tokens in (2048, 4096, 8192):
        call(tokens)
    gc.collect()
    assert len([use for use in ops.report() if use.implementation == "tuned"]) > 12
    assert torch.cuda.memory_allocated() - before < 2**20


def pick_only(name, implementation, baselines, without, loss):
    return ("eager" if name in without else name), None


@pytest.mark.parametrize("name", KERNELS)
def test_every_baseline_is_right_and_leaves_earlier_results(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    kernel = registry.load(name)
    some = [kernel.small_workload(each) for each in kernel.workloads()]
    some = [each for each in dict.fromkeys(some) if not each.get("quantized")]
    write_defaults(tmp_path, kernel, some, torch.cuda.get_device_name())
    ran = set()
    for workload in some:
        for baseline in list_baselines(kernel, workload):
            if baseline.startswith("compile") or baseline in ran:
                continue
            monkeypatch.setattr(choosing, "pick", partial(pick_only, baseline))
            for operator in OPERATORS.values():
                operator.forget()
            kept = []
            for seed in (1, 2):
                tensors = kernel.make_inputs(workload, seed, "cuda")
                if (call := call_of(name, workload, tensors)) is None:
                    break
                found, exact = results_of(call()), kernel.reference(workload, tensors)
                kept.append([*zip(found, exact.values(), strict=False)])
            if any(use.implementation == baseline for use in ops.report()):
                ran.add(baseline)
            bound = 4 * kernel.tolerance(workload).relative
            if (name, baseline) == ("cross_entropy", "eager"):
                bound = 1e-2  # torch rounds losses to the dtype of the logits
            for out, expected in (pair for each in kept for pair in each):
                assert near(out.view(expected.shape), expected, bound), (workload.key, baseline)
    runtime.clear()
    assert ran


def test_a_call_inside_of_a_capture_compiles_nothing():
    x = half(33, 512)
    torch.softmax(x, -1)
    graph, out = captured(ops.softmax, x)
    graph.replay()
    assert near(out, x.softmax(-1))


def test_compilation_can_wait_for_warm(monkeypatch):
    monkeypatch.setenv("TUNER_COMPILE", "warm")
    x = half(40, 512)
    assert near(ops.softmax(x), x.softmax(-1))
    assert not [use for use in ops.report() if use.implementation == "tuned"]
    ops.warm(ops.softmax, x)
    ops.softmax(x)
    assert [use.calls for use in ops.report() if use.implementation == "tuned"] == [2]


def test_threads_and_streams():
    w = half(512)
    wrong = []

    def work(rows):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                x = half(rows, 512)
                if not near(
                    *(rms(x, (512,), w, 1e-5) for rms in (ops.rms_norm, functional.rms_norm))
                ):
                    wrong.append(rows)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(32 + at // 2,)) for at in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_two_devices():
    for index in (1, 0):
        x = half(64, 512).to(f"cuda:{index}")
        assert near(ops.softmax(x), x.softmax(-1))


def test_autocast_casts_as_torch_does():
    x, w = torch.randn(64, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert ops.matmul(x, w).dtype is torch.matmul(x, w).dtype is torch.bfloat16
        low = half(64, 512)
        assert ops.softmax(low).dtype is torch.softmax(low, -1).dtype is torch.float32
        assert near(ops.softmax(low), torch.softmax(low, -1), 1e-5)


#: A process that calls two operators, one of them with descriptors, and says what it compiled.
CALLS = """
import json, torch, triton
from tuner import ops
hits = []
triton.knobs.compilation.listener = lambda **facts: hits.append(facts["cache_hit"])
kernels = ops.prefer_tuned()
kernels.__enter__()
x, w = torch.ones(64, 512, device="cuda"), torch.ones(512, device="cuda")
y = ops.rms_norm(x.bfloat16(), w.shape, w.bfloat16(), 1e-5)
q = torch.randn(1, 16, 1024, 128, device="cuda", dtype=torch.bfloat16)
z = ops.attention(q, q, q, is_causal=True)
assert torch.isfinite(z).all() and torch.allclose(y.float(), torch.ones_like(x), atol=0.02)
print(json.dumps([hits, [[use.operator, use.implementation] for use in ops.report()]]))
"""


def test_a_shipped_cache_of_kernels_needs_no_compiler(tmp_path):
    built, shipped = (tmp_path / name for name in ("triton", "kept"))
    environment = os.environ | {"TRITON_CACHE_DIR": str(built)}

    def run(**more):
        command = [sys.executable, "-c", CALLS]
        done = subprocess.run(
            command, env=environment | more, check=True, capture_output=True, text=True
        )
        return json.loads(done.stdout.splitlines()[-1])

    compiled, uses = run()
    assert compiled
    assert not any(compiled)
    assert ["rms_norm", "tuned"] in uses
    # A cache is shipped as an archive, and unpacked at the same path on the other machine.
    shutil.copytree(built, shipped)
    shutil.rmtree(built)
    shutil.copytree(shipped, built)
    loaded, again = run(CC="/bin/false", CXX="/bin/false")
    assert all(loaded)
    assert len(loaded) == len(compiled)
    assert again == uses
