from __future__ import annotations

import enum
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import spaces_adopted
import torch
import triton
import triton.language as tl
from spaces_devices import H200, build, meta_tensors
from test_families import interpret

from search_spaces.adoption.adopt import adopt
from search_spaces.errors import KernelError, TunerError, WorkloadError
from search_spaces.kernel import Cost
from search_spaces.records import Workload
from search_spaces.registry import load, spec_of
from tuner.runtime import Span
from tuner.tables.valid_sizes import valid_sizes

FILE = str(Path(spaces_adopted.__file__).resolve())


def test_the_space_holds_exactly_the_configs_its_own_pruning_keeps():
    kernel = spaces_adopted.adopted
    bound = kernel.space(kernel.workloads()[0]).bind(kernel.workloads()[0], H200)
    found = [
        (config["BLOCK"], config["UNROLL"], config["num_warps"], config["num_stages"])
        for config in bound.enumerate()
    ]
    # The fourth config is pruned: its block is larger than twice the vector.
    assert sorted(found) == [(128, None, 2, 3), (256, 2, 4, 3), (1024, None, 8, 2)]
    assert bound.feasible(kernel.default_config(kernel.workloads()[0], H200))
    assert "none of the kernel's own configs" in str(
        bound.why_not({"BLOCK": 128, "UNROLL": 2, "num_warps": 2, "num_stages": 3})
    )


def test_widening_gives_the_cross_product_that_pruning_keeps():
    kernel = spaces_adopted.scale_add(widen=True)
    bound = kernel.space(kernel.workloads()[0]).bind(kernel.workloads()[0], H200)
    # Three blocks, with and without unrolling, 2 to 8 warps, 2 or 3 stages.
    assert bound.size() == 3 * 2 * 3 * 2
    assert kernel.space_hash(kernel.workloads()[0]) != spaces_adopted.adopted.space_hash(
        kernel.workloads()[0]
    )


@pytest.mark.parametrize("widen", [False, True])
def test_own_configs_are_valid_wherever_the_pruner_keeps_them(widen):
    """And other combinations of their values where they were run."""
    kernel, key = spaces_adopted.scale_add(widen=widen), {"n": 4096, "dtype": "float32"}
    own = {"BLOCK": 1024, "UNROLL": None, "num_warps": 8, "num_stages": 2}
    assert valid_sizes(kernel, H200, key, own) == {"n": Span(257, 2**31 - 1)}
    assert valid_sizes(kernel, H200, key, {**own, "UNROLL": 2}) == {}


def test_adopted_kernels_compute_what_they_promise():
    jobs = []
    for attribute, kernel in (
        ("adopted", spaces_adopted.adopted),
        ("in_place", spaces_adopted.in_place),
    ):
        for workload in kernel.workloads():
            bound = kernel.space(workload).bind(workload, H200)
            jobs += [
                (f"{FILE}:{attribute}", kernel.small_workload(workload), config)
                for config in bound.enumerate()
            ]
    outcomes = interpret(jobs)
    assert all(outcome["passed"] for outcome in outcomes), outcomes
    assert len(outcomes) == 3 + 3 + 2


def test_heuristics_and_preparations_are_part_of_what_is_built():
    kernel = spaces_adopted.in_place
    workload = kernel.workloads()[0]
    config = kernel.default_config(workload, H200)
    launches = kernel.launches(workload, config, meta_tensors(kernel, workload, config))
    assert [launch.fn.__name__ for launch in launches] == [
        "fill_kernel",
        "copy_kernel",
        "accumulate_kernel",
    ]
    assert launches[-1].kwargs["BLOCK"] == 128
    for launch in launches:
        assert "cubin" in build(launch, H200).asm


def test_baselines_run_the_reference_in_the_workloads_dtype():
    kernel = spaces_adopted.adopted
    workload = kernel.workloads()[1]
    inputs = kernel.make_inputs(workload, 3, "cpu")
    out = kernel.baselines(workload)["eager"](inputs)["out"]
    assert out.dtype is torch.float16
    assert torch.equal(out, 2.0 * inputs["x"] + inputs["y"])


def test_another_process_finds_an_adopted_kernel(tmp_path):
    assert spec_of(spaces_adopted.adopted) == "spaces_adopted:adopted"
    again = load("spaces_adopted:adopted")
    assert again is spaces_adopted.adopted
    again.spec = ""


def test_dims_are_the_keys_and_dtype():
    with pytest.raises(WorkloadError, match="unknown dim m"):
        spaces_adopted.adopted.check_workload(Workload.of(m=3, n=3, dtype="float32"))
    with pytest.raises(WorkloadError, match="n is missing"):
        spaces_adopted.adopted.check_workload(Workload.of(dtype="float32"))


def parts(**changes):
    nothing = lambda *_: {}  # noqa: E731
    given = dict.fromkeys(("inputs", "outputs", "arguments", "grid", "reference"), nothing)
    given |= {"cost": lambda _: Cost(1, 1), "workloads": [Workload.of(n=8, dtype="float32")]}
    return {"name": "mine", **given, **changes}


def test_by_default_inputs_and_outputs_are_moved_once():
    given = spaces_adopted.adopted._given
    vectors = {"inputs": given.inputs, "outputs": given.outputs}
    words = {key: each for key, each in parts(**vectors).items() if key != "cost"}
    (workload,) = words["workloads"]
    assert adopt(spaces_adopted.scale_add_kernel, **words).cost(workload) == Cost(0, 3 * 8 * 4)


def test_what_cannot_be_adopted_is_said():
    plain = spaces_adopted.scale_add_kernel.fn
    with pytest.raises(KernelError, match=r"not under @triton\.autotune"):
        adopt(plain, **parts())
    hooked = triton.autotune([triton.Config({}, pre_hook=print)], key=["n"])(plain)
    with pytest.raises(KernelError, match="pre_hook"):
        adopt(hooked, **parts())
    with pytest.raises(KernelError, match="no workloads"):
        adopt(spaces_adopted.scale_add_kernel, **parts(workloads=[]))


def test_a_model_with_top_k_ranks_the_configs():
    tuned = triton.autotune(
        spaces_adopted.CONFIGS,
        key=["n"],
        prune_configs_by={"perf_model": lambda BLOCK, **_: -BLOCK, "top_k": 2},
    )(spaces_adopted.scale_add_kernel.fn)
    given = spaces_adopted.adopted._given
    kernel = adopt(
        tuned,
        **parts(
            inputs=given.inputs,
            outputs=given.outputs,
            arguments=given.arguments,
            grid=given.grid,
            reference=given.reference,
        ),
    )
    workload = kernel.workloads()[0]
    bound = kernel.space(workload).bind(workload, H200)
    assert sorted(config["BLOCK"] for config in bound.enumerate()) == [1024, 65536]
    assert json.dumps(kernel.space(workload).describe())
    assert bound.sample(random.Random(0), 9)
    assert "triton" in sys.modules


def test_a_kernel_under_the_runtimes_decorator_is_adopted_alike():
    from tuner.runtime import autotune

    decorated = autotune(
        configs=spaces_adopted.CONFIGS,
        key=["n"],
        prune_configs_by={"early_config_prune": spaces_adopted.keep_small},
    )(spaces_adopted.scale_add_kernel.fn)
    given = spaces_adopted.adopted._given
    names = ("inputs", "outputs", "arguments", "grid", "reference", "workloads")
    kernel = adopt(decorated, **parts(**{name: getattr(given, name) for name in names}))
    workload = kernel.workloads()[0]
    twin = spaces_adopted.adopted
    spaces = [item.space(workload).bind(workload, H200) for item in (kernel, twin)]
    assert list(spaces[0].enumerate()) == list(spaces[1].enumerate())


def configs_of(*values, **options):
    """The values of F in the space of a kernel with these configs."""
    listed = [triton.Config({"BLOCK": 64, "F": value}) for value in values]
    kernel = adopt(
        triton.autotune(listed, key=["n"], **options)(spaces_adopted.scale_add_kernel.fn), **parts()
    )
    return kernel.space(Workload.of(n=8, dtype="float32")).parameters, kernel


def shown(*values):
    parameters, _ = configs_of(*values)
    return next(each.values() for each in parameters if each.name == "F")


class Mode(enum.Enum):
    FAST = 1


def act(x):
    return x


def test_config_values_are_numbers_and_places():
    assert shown(*(2 ** np.arange(5, 8))) == (32, 64, 128)
    kinds = {type(value) for value in shown(np.float64(0.5), np.bool_(True), 1)}
    assert kinds == {float, bool, int}
    assert shown(tl.constexpr(64), 128) == (64, 128)
    assert shown(act, Mode.FAST) == (f"{__name__}:act", "Mode.FAST")
    assert shown((act, 1), ("act", 1)) == (f"({__name__}:act, 1)", "('act', 1)")
    assert shown(True, 1, 1.0) == (True, 1, 1.0)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ((None, "None"), "both read 'None'"),
        ((Mode.FAST, "Mode.FAST"), "both read 'Mode.FAST'"),
        ((lambda x: x, lambda x: -x), "both read"),
        ((object(), 1), "which has no name"),
        ((float("inf"), 1.0), "to inf, and JSON has"),
        ((float("nan"), 1.0), "to nan, and JSON has"),
        ((np.float64("inf"), 1.0), "to inf, and JSON has"),
    ],
)
def test_config_values_that_cannot_be_told_apart_or_stored_are_refused(values, error):
    with pytest.raises(TunerError, match=error) as caught:
        shown(*values)
    assert caught.value.hint


@pytest.mark.parametrize("option", ["reset_to_zero", "restore_value"])
def test_a_misspelt_argument_of_the_decorator_is_refused(option):
    """By us, or by Triton itself from 3.9 on."""
    refused = rf"{option} names outt, .*did you mean 'out_ptr'|{option} contains names .* outt"
    with pytest.raises((KernelError, ValueError), match=refused):
        configs_of(1, **{option: ["outt"]})
