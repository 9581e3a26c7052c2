"""Gradients of attention, against autograd and at every edge of blocks."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.masked_attention import Mask, exact_attention, exact_gradients
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

SMALL = {"batch": 1, "q_heads": 4, "kv_heads": 2, "sequence": 77, "head_dim": 64}
SMALL |= {"causal": True, "dtype": "float16"}
NAMES = ("BLOCK_M", "BLOCK_N", "warps", "stages")


def workload_of(**dims: object) -> Workload:
    return Workload.of(**{**SMALL, **dims})


def config_of(*sides: int) -> dict[str, int]:
    """Blocks of queries and keys of the launch for dk and dv, then of that for dq."""
    kv, q = ((*sides[:2], 4, 1), (*sides[2:], 4, 1))
    found = {f"kv_{name}": value for name, value in zip(NAMES, kv, strict=True)}
    return found | {f"q_{name}": value for name, value in zip(NAMES, q, strict=True)}


def test_gradients_are_right_at_every_edge():
    """Sequences shorter than a block, one off a block, and whole blocks; groups of 1, 2 and 3."""
    jobs = []
    others = ({"dtype": "bfloat16", "batch": 2}, {"head_dim": 128, "kv_heads": 4}, {"q_heads": 6})
    for causal in (False, True):
        for sequence in (2, 31, 64, 77, 96):
            for sides in ((32, 32, 32, 32), (64, 32, 32, 64), (32, 64, 64, 32)):
                workload = workload_of(sequence=sequence, causal=causal)
                jobs.append(("attention_backward", workload, config_of(*sides)))
        for dims in others:
            workload = workload_of(causal=causal, **dims)
            jobs.append(("attention_backward", workload, config_of(32, 64, 64, 32)))
    assert wrong(jobs) == []


@pytest.mark.parametrize("mask", [Mask(False), Mask(True), Mask(True, 7)])
@pytest.mark.parametrize("held", [60, 2**24])
def test_exact_gradients_are_those_of_autograd(mask, held, monkeypatch):
    monkeypatch.setattr("search_spaces.kernels.masked_attention._SCORES", held)
    source = torch.Generator().manual_seed(1)
    q, dout = (torch.randn(4, 13, 8, generator=source).double() for _ in range(2))
    k, v = (torch.randn(2, 20, 8, generator=source).double() for _ in range(2))
    leaves = [each.requires_grad_() for each in (q, k, v)]
    wide = (each.repeat_interleave(2, 0) for each in (k, v))
    seen = mask.seen(torch.arange(7, 20)[:, None], torch.arange(20))
    out = torch.nn.functional.scaled_dot_product_attention(q, *wide, attn_mask=seen)
    expected = torch.autograd.grad(out, leaves, dout)
    with torch.no_grad():
        assert torch.allclose(exact_attention(q, k, v, mask=mask)[0], out)
        for got, exact in zip(exact_gradients(q, k, v, dout, mask=mask), expected, strict=True):
            assert torch.allclose(got, exact)


def test_inputs_are_those_of_a_forward_pass():
    kernel, workload = load("attention_backward"), workload_of()
    inputs = kernel.make_inputs(workload, 1, "cpu")
    q, k, v = (inputs[name].double() for name in "qkv")
    k, v = (each.repeat_interleave(2, 1) for each in (k, v))
    scores = (q @ k.transpose(-1, -2) / 8).masked_fill(
        ~torch.ones(77, 77, dtype=torch.bool).tril(), float("-inf")
    )
    assert torch.allclose(inputs["lse"].double(), scores.logsumexp(-1), atol=1e-5)
    assert torch.allclose(inputs["out"].double(), scores.softmax(-1) @ v, atol=2e-3)


# Both sums of 256 columns leave no register free: 32 rows, fewer than a warp group multiplies, and
# a few spills cost less than what else fits.
@pytest.mark.parametrize(("at", "most", "product"), [(0, 0, "wgmma.mma_async"), (3, 96, "mma.")])
def test_defaults_use_tensor_cores_and_spill_little(at, most, product):
    kernel = load("attention_backward")
    workload = kernel.workloads()[at]
    config = kernel.default_config(workload, H200)
    launches = kernel.launches(workload, config, meta_tensors(kernel, workload, config))
    assert len(launches) == 3
    for launch in launches[1:]:
        built = build(launch, H200)
        assert spilled_bytes(built) <= most
        assert built.metadata.shared <= H200.shared_bytes
        assert product in built.asm["ptx"]


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"head_dim": 96}, "use 64, 128, 256"),
        ({"q_heads": 5}, "not a multiple of kv_heads 2"),
        ({"causal": 1}, "not true or false"),
        ({"sequence": 1}, "give a sequence of at least 2"),
        ({"batch": 2**15, "sequence": 2**20}, "give a smaller batch"),
    ],
)
def test_bad_dims_are_refused_in_one_line(dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load("attention_backward").check_workload(workload_of(**dims))
    text = f"{caught.value.message} {caught.value.hint}"
    assert complaint in text
    assert "attention_backward" in text
    assert "\n" not in text
