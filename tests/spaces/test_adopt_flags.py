from __future__ import annotations

from pathlib import Path

import pytest
import spaces_flags
import torch
import triton
from spaces_devices import H200, build, meta_tensors
from test_families import interpret

from search_spaces.adoption.adopt import adopt
from search_spaces.errors import KernelError, TunerError, WorkloadError
from search_spaces.records import Workload, config_key
from tuner.compare import bench_target
from tuner.settings import validate

FILE = str(Path(spaces_flags.__file__).resolve())


def blocks(kernel, workload):
    return sorted(c["BLOCK"] for c in kernel.space(workload).bind(workload, H200).enumerate())


def test_keys_that_are_flags_texts_none_or_0_are_dims():
    kernel = spaces_flags.moded
    for workload in kernel.workloads():
        kernel.check_workload(workload)
    other = kernel.workloads()[0].with_dims(offset=5, MODE="plain", shift="full", FLAG=False)
    kernel.check_workload(other)
    for name, value, said in (
        ("FLAG", 1, "not true or false"),
        ("FLAG", None, "not true or false"),
        ("MODE", False, "not a text"),
        ("shift", 0, "not None or a text"),
        ("offset", -1, "offset is -1"),
        ("offset", True, "not an integer"),
        ("n", 0, "n is 0"),
        ("n", 3.5, "not an integer"),
    ):
        with pytest.raises(WorkloadError, match=said):
            kernel.check_workload(other.with_dims(**{name: value}))


def test_the_text_of_a_workload_tells_values_apart_and_is_what_it_was():
    values = (True, "True", None, "None", 1, "1", 1.0, "1.0", "", "a b", "a=b", 'a"b', "nan", "é")
    texts = [Workload.of(x=value).key for value in values]
    assert len(set(texts)) == len(values)
    assert all(len(text.split()) == 1 for text in texts)
    old = Workload.of(M=4096, dtype="bfloat16", causal=True, eps=1e-5, order="block-major/é")
    assert old.key == "M=4096 dtype=bfloat16 causal=True eps=1e-05 order=block-major/é"


def test_the_text_of_a_workload_names_it_on_the_command_line(tmp_path):
    given = {"n": 301, "MODE": "None", "offset": 2}
    for flag, shift in ((True, None), (False, "True")):
        workload = Workload.of(FLAG=flag, shift=shift, **given)
        looked_at = bench_target(
            validate({"version": 1}, str),
            tmp_path,
            f"{FILE}:moded",
            workloads=[workload.key],
            target="cuda:90",
            timed=False,
        )
        assert looked_at.workloads == (workload,)


def test_a_pruner_gets_keywords_as_keywords_and_may_rewrite_configs():
    kernel = spaces_flags.moded
    short, long = kernel.workloads()
    assert blocks(kernel, short) == [32, 128, 512]
    assert blocks(kernel, long) == [32, 128, 512, 1024]
    assert kernel.default_config(short, H200)["BLOCK"] == 128
    # The kernel's own configs are as they were.
    assert [c.kwargs["BLOCK"] for c in spaces_flags.moded_kernel.fn.configs] == [128, 512, 4096]
    assert kernel.space_hash(short) == kernel.space_hash(short) != kernel.space_hash(long)


def test_a_pruner_that_misses_an_argument_is_told_how_to_get_it():
    given = spaces_flags.moded._given
    names = ("workloads", "make_inputs", "outputs", "arguments", "grid", "reference", "cost")
    parts = {name: getattr(given, name) for name in (*names, "dims")}
    kernel = adopt(spaces_flags.moded_kernel, name="mine", **parts)
    with pytest.raises(TunerError, match=r"early_config_prune raises TypeError.*'n'") as caught:
        kernel.default_config(kernel.workloads()[0], H200)
    assert "keywords=" in str(caught.value.hint)
    with pytest.raises(KernelError, match="keywords names N"):
        adopt(spaces_flags.moded_kernel, name="mine", keywords=["N"], **parts)


def test_a_model_sees_what_the_autotuner_shows_it():
    seen = []

    def model(x_ptr, n, BLOCK, num_warps, num_ctas, **others):
        seen.append({"BLOCK": BLOCK, **others})
        return BLOCK

    tuned = triton.autotune(
        configs=[triton.Config({"BLOCK": block}) for block in (1024, 64, 256, 512)],
        key=["n"],
        prune_configs_by={"perf_model": model, "top_k": 0.5},
    )(spaces_flags.partial_sums_kernel)
    given = spaces_flags.plain._given
    names = ("workloads", "outputs", "grid", "reference", "cost", "dims", "inputs", "scratch")
    kernel = adopt(
        tuned,
        name="mine",
        arguments=lambda w, t: {
            "x_ptr": t["x"],
            "order_ptr": t["order_64"],
            "part_ptr": t["part"],
            "out_ptr": t["out"],
            "n": w["n"],
        },
        **{name: getattr(given, name) for name in names},
    )
    assert blocks(kernel, kernel.workloads()[0]) == [64, 256]
    assert kernel.default_config(kernel.workloads()[0], H200)["BLOCK"] == 64
    assert {"grid", "warmup", "num_stages", "out_ptr"} <= set(seen[0])


def test_a_kernel_without_an_autotuner_comes_with_configs_scratch_and_arguments_by_config():
    kernel = spaces_flags.plain
    workload = kernel.workloads()[0]
    assert blocks(kernel, workload) == [64, 256]
    for config in kernel.space(workload).bind(workload, H200).enumerate():
        tensors = meta_tensors(kernel, workload, config)
        assert tensors["part"].shape == (triton.cdiv(1000, config["BLOCK"]),)
        launches = kernel.launches(workload, config, tensors)
        assert [launch.fn.__name__ for launch in launches] == [
            "fill_kernel",
            "fill_kernel",
            "partial_sums_kernel",
        ]
        assert launches[-1].args[1] is tensors[f"order_{config['BLOCK']}"]
        assert "cubin" in build(launches[-1], H200).asm
    inputs = kernel.make_inputs(workload, 0, "cpu")
    assert int(inputs["order_64"].max()) == 6
    assert 7 <= int(inputs["order_256"].min()) < int(inputs["order_256"].max()) < 1000
    assert inputs["order_64"].dtype is torch.int32


def test_configs_go_with_heuristics_too():
    given = spaces_flags.plain._given
    names = ("workloads", "outputs", "grid", "reference", "cost", "dims", "inputs")
    ruled = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
    kernel = adopt(
        ruled(spaces_flags.partial_sums_kernel),
        name="mine",
        configs=[triton.Config({}, num_warps=warps) for warps in (2, 4)],
        arguments=lambda w, t: {
            "x_ptr": t["x"],
            "order_ptr": t["order_64"],
            "part_ptr": t["x"],
            "out_ptr": t["out"],
            "n": w["n"],
        },
        **{name: getattr(given, name) for name in names},
    )
    workload = kernel.workloads()[0]
    config = kernel.default_config(workload, H200)
    assert config_key(config) == config_key({"num_warps": 2, "num_stages": 3})
    (launch,) = kernel.launches(workload, config, meta_tensors(kernel, workload, config))
    assert launch.kwargs["BLOCK"] == 1024
    assert launch.kwargs["num_warps"] == 2


def test_inputs_that_are_only_restored_need_no_initial_values():
    kernel = spaces_flags.moded
    jobs = [
        (f"{FILE}:moded", kernel.small_workload(workload), config)
        for workload in kernel.workloads()
        for config in kernel.space(workload).bind(workload, H200).enumerate()
    ]
    first = spaces_flags.plain.workloads()[0]
    jobs.append((f"{FILE}:plain", first, spaces_flags.plain.default_config(first, H200)))
    outcomes = interpret(jobs)
    assert all(outcome["passed"] for outcome in outcomes), outcomes


def test_wrong_uses_of_configs_and_initial_are_said():
    given = spaces_flags.plain._given
    names = ("workloads", "outputs", "arguments", "grid", "reference", "cost", "dims")
    parts = {name: getattr(given, name) for name in names}
    with pytest.raises(KernelError, match="neither inputs nor make_inputs"):
        adopt(spaces_flags.moded_kernel, name="mine", **parts)
    parts["inputs"] = given.inputs
    with pytest.raises(KernelError, match=r"configs=\[\] leaves nothing"):
        adopt(spaces_flags.partial_sums_kernel, name="mine", configs=[], **parts)
    with pytest.raises(KernelError, match=r"under @triton\.autotune, which has configs"):
        adopt(spaces_flags.moded_kernel, name="mine", configs=[triton.Config({})], **parts)
    with pytest.raises(KernelError, match=r"not under @triton\.autotune") as caught:
        adopt(spaces_flags.partial_sums_kernel, name="mine", **parts)
    assert "configs=[triton.Config" in str(caught.value.hint)
    configs = [triton.Config({"BLOCK": 64})]
    kernel = adopt(
        spaces_flags.partial_sums_kernel,
        name="mine",
        configs=configs,
        scratch=given.scratch,
        initial={"total": 0},
        **parts,
    )
    workload = kernel.workloads()[0]
    config = kernel.default_config(workload, H200)
    assert config_key(config) == config_key({"BLOCK": 64, "num_warps": 4, "num_stages": 3})
    with pytest.raises(KernelError, match="initial names total"):
        kernel.launches(workload, config, meta_tensors(kernel, workload, config))
