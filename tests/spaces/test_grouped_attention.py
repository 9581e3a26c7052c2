"""Attention of heads in groups: right at every edge of blocks, windows and sequences."""

from __future__ import annotations

import math
from itertools import islice, product

import pytest
import torch
from spaces_devices import H200, MI300X, assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.masked_attention import Mask, longest_length, spread_lengths
from search_spaces.records import Device, Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

B200 = Device("cuda", "NVIDIA B200", "cuda:100", 148, 180 << 30, 232448, 65536)
USUAL = {"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
USUAL |= {"loads": "pointer", "order": "head"}
DENSE = {"batch": 1, "q_heads": 4, "kv_heads": 2, "queries": 37, "keys": 77, "head_dim": 64}
PACKED = {"tokens": 67, "sequences": 3, "q_heads": 6, "kv_heads": 2, "head_dim": 64}
Job = tuple[str, Workload, dict[str, object]]
MASK = {"causal": True, "window": 0, "dtype": "float16"}


def dense(**dims: object) -> Workload:
    return Workload.of(**{**DENSE, **MASK, **dims})


def packed(**dims: object) -> Workload:
    return Workload.of(**{**PACKED, **MASK, **dims})


def both(config: dict[str, object]) -> list[dict[str, object]]:
    """The config by pointers and by descriptors, in either order."""
    return [config, {**config, "loads": "descriptor", "specialize": False, "order": "block"}]


def causal_jobs() -> list[Job]:
    """Windows of one key, of less and of more than a block, and of more than all keys."""
    configs = [
        {**USUAL, "pack": pack, "split": split} for pack in (False, True) for split in (False, True)
    ]
    return [
        ("grouped_attention", dense(window=window), each)
        for window in (0, 1, 20, 64, 500)
        for config in (configs if window in (0, 20) else configs[-1:])
        for each in (both(config) if config["pack"] else [config])
    ]


def edge_jobs() -> list[Job]:
    """A single query, whole blocks, blocks that are one off, and several batches."""
    config = {**USUAL, "BLOCK_M": 64, "pack": True, "split": True}
    jobs: list[Job] = [("grouped_attention", dense(batch=3), config)]
    for queries, keys in ((1, 100), (5, 64), (64, 64), (33, 32)):
        for pack in (False, True):
            plain = dense(queries=queries, keys=keys, causal=False, dtype="bfloat16")
            jobs += [("grouped_attention", plain, each) for each in both({**USUAL, "pack": pack})]
            if queries <= keys:
                config = {**USUAL, "BLOCK_M": 64, "pack": pack, "split": True}
                jobs.append(("grouped_attention", plain.with_dims(causal=True), config))
    return jobs


def part_jobs() -> list[Job]:
    """Head dims that are multiplied in two parts."""
    dims = [(96, 96), (192, 128), (128, 256), (64, 192)]
    return [
        ("grouped_attention", dense(head_dim=head_dim, value_dim=value_dim, q_heads=2), each)
        for head_dim, value_dim in dims
        for each in both({**USUAL, "BLOCK_M": 64, "split": True})
    ]


def packed_jobs() -> list[Job]:
    """Sequences of one token, shorter and longer than a block, and groups that divide no block."""
    jobs: list[Job] = []
    for causal, sequences, heads in product((False, True), (1, 3, 12), (1, 3)):
        dims = {"q_heads": heads, "kv_heads": 1, "head_dim": 96}
        workload = packed(causal=causal, sequences=sequences, **dims)
        config = {**USUAL, "pack": sequences != 3} if heads > 1 else dict(USUAL)
        if causal:
            config["split"] = sequences > 1
        jobs += [("varlen_attention", workload, each) for each in both(config)[:heads]]
    windowed = packed(window=9, dtype="bfloat16")
    config = {**USUAL, "pack": True, "split": True}
    return jobs + [("varlen_attention", windowed, each) for each in both(config)]


def test_every_way_through_is_right_at_every_edge():
    assert wrong([*causal_jobs(), *edge_jobs(), *part_jobs(), *packed_jobs()]) == []


@pytest.mark.parametrize("name", ["grouped_attention", "varlen_attention"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("keys", [24, 4096])
def test_head_dims_in_two_parts_are_valid_in_pipelined_loops_alone(name, head_dim, keys):
    kernel, sizes = load(name), {"head_dim": head_dim, "causal": True}
    if name == "grouped_attention":
        workload = dense(queries=keys, keys=keys, **sizes)
    else:
        workload = packed(tokens=keys, sequences=1, **sizes)
    space = kernel.space(workload).bind(workload, H200)
    default = kernel.default_config(workload, H200)
    parts = head_dim in (96, 192)
    for config in (default, *islice(space.enumerate(), 200)):
        assert space.why_invalid(config) is None
        fault = space.why_invalid({**config, "num_stages": 1})
        assert (fault is not None) == parts, fault
        assert fault is None or "in two parts" in fault


def test_lengths_add_up_and_differ():
    for tokens, sequences in ((1, 1), (7, 7), (97, 3), (16384, 16), (2**20, 4096)):
        lengths = spread_lengths(tokens, sequences)
        assert (len(lengths), sum(lengths)) == (sequences, tokens)
        assert min(lengths) >= 1
        assert 0 <= longest_length(tokens, sequences) - max(lengths) <= 1
    assert spread_lengths(1600, 16)[-1] > 180


@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (4, 9), (9, 9)])
@pytest.mark.parametrize("window", [0, 1, 3, 9, 20])
def test_pairs_are_those_that_the_mask_shows(queries, keys, window):
    mask = Mask(True, window)
    places, at = torch.arange(keys - queries, keys)[:, None], torch.arange(keys)
    seen = mask.seen(places, at)
    assert mask.pairs(queries, keys) == int(seen.sum())
    assert mask.hides_nothing(queries, keys) == bool(seen.all())
    causal = torch.ones(queries, keys, dtype=torch.bool).tril()
    assert mask.is_plain_causal(queries, keys) == (
        queries == keys and torch.equal(seen, causal) and not 0 < window < keys
    )


def test_the_reference_is_the_definition():
    kernel, workload = load("grouped_attention"), dense(window=20)
    inputs = kernel.make_inputs(workload, 3, "cpu")
    q, k, v = (inputs[name].double() for name in "qkv")
    k, v = (each.repeat_interleave(2, 1) for each in (k, v))
    places, keys = torch.arange(40, 77)[:, None], torch.arange(77)
    scores = q @ k.transpose(-1, -2) / 8
    scores.masked_fill_((keys > places) | (keys <= places - 20), -math.inf)
    found = kernel.reference(workload, inputs)["out"]
    assert torch.allclose(found, scores.softmax(-1) @ v, rtol=1e-10, atol=1e-12)


def test_baselines_that_are_compiled_are_known_as_such():
    from search_spaces.tensors import is_compiled

    baselines = load("grouped_attention").baselines(dense())
    assert {name for name, one in baselines.items() if is_compiled(one)} == {"compile", "flex"}


@pytest.mark.parametrize(
    ("name", "at", "changes"),
    [
        ("grouped_attention", 0, {}),
        ("grouped_attention", 0, {"loads": "descriptor", "specialize": False}),
        ("grouped_attention", 11, {"loads": "descriptor", "specialize": False}),
        ("varlen_attention", 0, {}),
    ],
)
def test_defaults_use_tensor_cores_and_do_not_spill(name, at, changes):
    kernel = load(name)
    workload = kernel.workloads()[at]
    config = {**kernel.default_config(workload, H200), **changes}
    ptx = assemble(kernel, workload, config)
    assert "wgmma.mma_async" in ptx
    assert "ex2.approx" in ptx
    assert ("cp.async.bulk.tensor" in ptx) == (config["loads"] == "descriptor")


def test_few_queries_share_a_block_of_matrix_instructions():
    kernel = load("grouped_attention")
    workload = kernel.workloads()[2]
    config = kernel.default_config(workload, H200)
    assert config["pack"]
    assert config["BLOCK_M"] == 16
    assert "mma.sync" in assemble(kernel, workload, config)


def test_what_a_target_lacks_is_no_point_of_its_space():
    kernel = load("grouped_attention")
    workload = kernel.workloads()[0]
    offered = {}
    for device in (MI300X, H200, B200):
        points = list(kernel.space(workload).bind(workload, device).enumerate())
        offered[device.target] = {(c["loads"], c.get("specialize", False)) for c in points}
    assert offered["hip:gfx942"] == {("pointer", False)}
    assert offered["cuda:90"] == {("pointer", False), ("descriptor", False)}
    assert ("descriptor", True) in offered["cuda:100"]


@pytest.mark.parametrize(
    ("name", "dims", "complaint"),
    [
        ("grouped_attention", {"q_heads": 5}, "not a multiple of kv_heads 2"),
        ("grouped_attention", {"head_dim": 80}, "use 64, 96, 128, 192, 256"),
        ("grouped_attention", {"value_dim": 80}, "use 64, 96, 128, 192, 256"),
        ("grouped_attention", {"window": 8, "causal": False}, "give causal=true"),
        ("grouped_attention", {"window": -1}, "sizes are at least 0"),
        ("grouped_attention", {"queries": 100}, "give keys of at least 100"),
        ("grouped_attention", {"batch": 2**15, "queries": 2**20, "keys": 2**20}, "smaller batch"),
        ("varlen_attention", {"tokens": 2}, "give each sequence a token"),
        ("varlen_attention", {"sequences": 5000}, "more than the 4096"),
    ],
)
def test_bad_dims_are_refused_in_one_line(name, dims, complaint):
    workload = dense(**dims) if name == "grouped_attention" else packed(**dims)
    with pytest.raises(WorkloadError) as caught:
        load(name).check_workload(workload)
    text = f"{caught.value.message} {caught.value.hint}"
    assert complaint in text
    assert name in text
    assert "\n" not in text
