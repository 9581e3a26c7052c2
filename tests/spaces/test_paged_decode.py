"""Decoding over a paged cache: any page size, group and split."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

SMALL = {"sequences": 2, "q_heads": 6, "kv_heads": 2, "keys": 150, "page_size": 16}
SMALL |= {"head_dim": 64, "dtype": "float16"}
Job = tuple[Workload, int, int, int]
USUAL = {"BLOCK_N": 32, "splits": 1, "heads": 4, "num_warps": 2, "stages": 1}


def workload_of(**dims: object) -> Workload:
    return Workload.of(**{**SMALL, **dims})


def split_jobs() -> list[Job]:
    """Blocks inside a page and over several, splits of several blocks and of none."""
    return [
        (workload_of(page_size=page_size, dtype="bfloat16"), heads, splits, block)
        for page_size in (16, 64)
        for heads in (1, 2, 4)
        for splits, block in ((1, 128), (4, 32), (8, 16))
    ]


def shape_jobs() -> list[Job]:
    """Head dims, groups and lengths that no block divides."""
    return [
        (workload_of(**dims), heads, splits, 16)
        for dims in (
            {"head_dim": 96},
            {"head_dim": 192, "q_heads": 2},
            {"q_heads": 17, "kv_heads": 1, "sequences": 1},
            {"keys": 1},
            {"sequences": 1, "keys": 129},
            {"keys": 64, "page_size": 64},
        )
        for heads, splits in ((1, 1), (8, 1), (1, 2), (32, 4))
        if dims.get("keys", 99) >= 16 * splits or splits == 1
    ]


def test_any_split_and_share_of_heads_is_right():
    jobs = [
        ("paged_decode", workload, {**USUAL, "heads": heads, "splits": splits, "BLOCK_N": block})
        for workload, heads, splits, block in [*split_jobs(), *shape_jobs()]
    ]
    assert wrong(jobs) == []


def test_pages_stand_in_an_order_of_the_seed():
    kernel, workload = load("paged_decode"), workload_of(sequences=5)
    inputs = kernel.make_inputs(workload, 1, "cpu")
    assert sorted(inputs["block_table"].flatten().tolist()) == list(range(50))
    assert sorted(inputs["lengths"].tolist()) == [30, 60, 90, 120, 150]
    other = kernel.make_inputs(workload, 2, "cpu")
    assert not torch.equal(inputs["block_table"], other["block_table"])


def test_baselines_agree_with_the_reference_or_say_what_they_need():
    kernel, workload = load("paged_decode"), workload_of()
    inputs = kernel.make_inputs(workload, 1, "cpu")
    expected, baselines = kernel.reference(workload, inputs)["out"], kernel.baselines(workload)
    out = baselines["eager"](inputs)["out"].double()
    assert (out - expected).norm() <= kernel.tolerance(workload).relative * expected.norm()
    with pytest.raises(RuntimeError, match="needs CUDA tensors"):
        baselines["flash"](inputs)


def test_defaults_load_words_ahead_and_do_not_spill():
    kernel = load("paged_decode")
    workload = kernel.workloads()[0]
    default = dict(kernel.default_config(workload, H200))
    assert default["heads"] == 4
    for config in (default, {**default, "heads": 1, "BLOCK_N": 32, "splits": 1}):
        assert kernel.space(workload).bind(workload, H200).why_not(config) is None
        launches = kernel.launches(workload, config, meta_tensors(kernel, workload, config))
        built = build(launches[0], H200)
        assert spilled_bytes(built) == 0
        ptx = built.asm["ptx"]
        assert "cp.async" in ptx
        assert ("mma.sync" in ptx) == (config["heads"] > 1)


def test_a_long_request_is_split_by_default():
    kernel = load("paged_decode")
    alone = kernel.workloads()[2]
    assert alone["sequences"] == 1
    assert kernel.default_config(alone, H200)["splits"] == 64


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"page_size": 24}, "use 16, 32, 64, 128, 256"),
        ({"head_dim": 80}, "use 64, 96, 128, 192, 256"),
        ({"q_heads": 5}, "not a multiple of kv_heads 2"),
        ({"sequences": 2**15, "keys": 2**20}, "give fewer sequences"),
        ({"keys": 0}, "keys is 0"),
    ],
)
def test_bad_dims_are_refused_in_one_line(dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load("paged_decode").check_workload(workload_of(**dims))
    text = f"{caught.value.message} {caught.value.hint}"
    assert complaint in text
    assert "paged_decode" in text
    assert "\n" not in text
