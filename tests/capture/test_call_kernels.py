"""Kernels of captured calls: their outputs, inputs, references, and the gate over all configs."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import numpy
import pytest
import torch
from capture_calls import (
    H200,
    add,
    blocks,
    bound,
    captured,
    default_of,
    hashes_of,
    inputs_of,
    only,
    results_of,
    run_python,
    values_of,
)

import tuner
from search_spaces.errors import KernelError, TunerError, WorkloadError
from search_spaces.identity import refuse_unnamed
from search_spaces.records import Workload
from search_spaces.registry import load
from tuner.capturing.declared import kernel_of
from workers.job_records import Failure
from workers.measure.gate.checks import check_variant
from workers.measure.task_tensors import TaskTensors
from workers.measure.triton_launch import bind


@pytest.fixture
def hazards(hazards, monkeypatch):
    """With fills of tensors for the interpreter too."""
    from tuner.capturing import call_kernel as made

    fill = importlib.reload(importlib.import_module("search_spaces.fill"))
    monkeypatch.setattr(made, "fill_launch", fill.fill_launch)
    yield hazards
    monkeypatch.undo()
    importlib.reload(fill)


def passing(kernel, configs=None):
    """Whether each config passes the correctness gate, by its block; of the space by default."""
    task = TaskTensors(kernel, only(kernel), (0, 1), "cpu")
    found = {}
    for config in configs or bound(kernel).enumerate():
        variant = bind(task, config)
        outcome = check_variant(task, variant.run, outputs=variant.outputs, scratch=variant.scratch)
        found[config.get("KEEP", config.get("BLOCK"))] = not isinstance(outcome, Failure)
    return found


def all_correct(kernel):
    outcomes = passing(kernel)
    assert outcomes
    assert all(outcomes.values()), outcomes
    return kernel


def declared(launch, *given, **options):
    """The kernel of what one call launches."""
    return captured(launch, *given)[0].declare(**options)


def declared_over(kernel, *tensors, n=100, **options):
    """The kernel of a launch over blocks of n elements; `out` is empty."""
    return declared(lambda: kernel[blocks(n)](*tensors, n), **options)


def x_and_out(n=100):
    return torch.randn(n), torch.empty(n)


def written(kernel):
    """What the only call writes: buffer name, whether it is updated, and whether in part."""
    call = kernel.call(only(kernel))
    return {call.buffers[each.buffer].name: (each.updated, each.partial) for each in call.written}


def test_a_written_tensor_is_an_output_and_all_others_are_inputs(kernels):
    kernel = declared(add, kernels.tuned)
    workload = only(kernel)
    assert written(kernel) == {"out": (False, False)}
    inputs, results = results_of(kernel)
    assert sorted(inputs) == ["x", "y"]
    assert torch.equal(results["out"], inputs["x"] + 2.0 * inputs["y"])
    assert workload == Workload.of(x="float32[100]", y="float32[100]", out="float32[100]", n=100)
    assert default_of(kernel) == {"BLOCK": 64, "num_warps": 4, "num_stages": 3}
    assert kernel.place == "capture_kernels:tuned"
    assert {config["BLOCK"] for config in kernel.listed_configs(workload, H200)} == {64, 128}
    all_correct(kernel)


@pytest.mark.parametrize("name", ["tuned_over_heuristics", "heuristics_over_tuned"])
def test_kernels_under_heuristics_pass_the_gate(kernels, name):
    all_correct(declared(add, getattr(kernels, name)))


def test_an_update_in_place_starts_from_its_old_values(hazards):
    kernel = declared_over(hazards.in_place, torch.randn(100))
    assert written(kernel) == {"x": (True, False)}
    inputs, results = results_of(kernel)
    assert list(inputs) == ["x_initial"]
    assert torch.equal(results["x"], 2.0 * inputs["x_initial"] + 1.0)
    all_correct(kernel)


def test_elements_that_stay_are_filled_before_a_launch(hazards):
    kernel = declared_over(hazards.every_third, *x_and_out())
    assert written(kernel) == {"out": (False, True)}
    all_correct(kernel)


def test_a_form_that_forgets_old_values_does_not_pass(hazards):
    n, out, g = 100, torch.randn(100), blocks(100)
    mask = (torch.arange(n) % 3 == 0).to(torch.uint8)
    bits = torch.randint(0, 128, (n,), dtype=torch.uint8)
    states = [torch.randint(100, 156, (n,), dtype=torch.uint8) for _ in range(2)]
    more = torch.rand(n) + 0.5, torch.rand(n) + 0.5
    for written_by, launch in (
        ({"out": (True, False)}, lambda: hazards.add_residual[g](more[0], out, n, True, 32)),
        ({"out": (False, True)}, lambda: hazards.masked_fill[g](mask, out, n, True, 32)),
        ({"out": (False, True)}, lambda: hazards.masked_fill[g](mask, out * 0, n, True, 32)),
        ({"x": (True, True)}, lambda: hazards.set_bit[g](bits.clone(), n, True, 32)),
        (
            dict.fromkeys(("p", "m", "v", "absmax", "steps"), (True, False)),
            lambda: hazards.adam[g](out, torch.randn(n), *states, *more, n, True, 32),
        ),
    ):
        kernel = declared(launch, space={"KEEP": [True, False]})
        both = [{**default_of(kernel), "KEEP": keeps} for keeps in (True, False)]
        assert passing(kernel, both) == {True: True, False: False}, kernel.name
        assert written(kernel) == written_by


def test_a_kernel_without_inputs_has_a_reference(hazards):
    kernel = all_correct(declared(lambda: hazards.positions[blocks(99)](torch.empty(99), 99, 32)))
    assert torch.equal(kernel.reference(only(kernel), {})["out"], torch.arange(99.0))


@pytest.mark.parametrize("name", ["add_to", "add_reset", "add_hooked"])
def test_sums_by_atomics_start_from_zero(hazards, name):
    kernel = declared_over(getattr(hazards, name), torch.randn(100), torch.zeros(4))
    inputs, results = results_of(kernel)
    assert list(inputs) == ["x"]
    assert torch.allclose(results["total"], inputs["x"].view(25, 4).sum(0), atol=1e-5)
    all_correct(kernel)


def test_a_hook_that_does_more_than_zero_tensors_is_refused_in_one_line(hazards):
    with pytest.raises(KernelError, match="pre_hook changes total to something other than zero"):
        declared_over(hazards.add_filled, torch.randn(100), torch.zeros(4))


def split_sum(hazards, n=100):
    """Launch the kernel whose pruner makes its configs, into memory that is not zero."""
    x, out = torch.randn(8, n), torch.full((n,), 7.0)
    hazards.split_sum[lambda meta: (-(-n // meta["BLOCK"]), meta["PARTS"])](x, n, out=out)
    assert torch.allclose(out, x.sum(0), atol=1e-5)


@pytest.mark.parametrize("n", [100, 128])
def test_configs_that_a_pruner_makes_have_the_hooks_that_it_gives_them(hazards, n):
    kernel = declared(split_sum, hazards, n)
    assert written(kernel) == {"out": (False, False)}
    configs = list(bound(kernel).enumerate())
    assert {(c["PARTS"], c["EVEN"]) for c in configs} == {(p, n == 128) for p in (1, 2, 4)}
    tensors = {"x": torch.randn(8, n), "out": torch.empty(n)}
    fills = {c["PARTS"]: len(kernel.launches(only(kernel), c, tensors)) - 1 for c in configs}
    assert fills == {1: 0, 2: 1, 4: 1}
    for config in configs:
        assert all(passing(kernel, [config]).values()), config


def test_a_widened_space_has_what_the_pruner_would_leave_as_it_is(hazards):
    kernel = declared(split_sum, hazards, widen=True)
    values = values_of(kernel)
    assert (values["EVEN"], values["BLOCK"]) == ((False,), (16, 32, 64, 128))
    default, feasible = default_of(kernel), bound(kernel).feasible
    assert default["PARTS"] == 2
    assert feasible(default)
    assert feasible({**default, "BLOCK": 16, "PARTS": 1})
    # The pruner makes 4 of 8, and sets no registers: such configs have no known hook.
    assert not feasible({**default, "PARTS": 8})
    assert not feasible({**default, "maxnreg": 128})


def test_hooks_that_are_one_object_per_config_are_one_hook(hazards):
    given = hazards.add_by_closures, torch.randn(100), torch.zeros(4)
    kernel = declared_over(*given, widen=True)
    assert bound(kernel).feasible({**default_of(kernel), "BLOCK": 16, "num_warps": 2})
    assert list(inputs_of(kernel)) == ["x"]
    all_correct(declared_over(*given))


def test_options_among_the_constants_of_a_config_are_options_of_this_triton(hazards):
    kernel = all_correct(declared_over(hazards.known_option, *x_and_out()))
    assert default_of(kernel)["enable_fp_fusion"] is False
    unknown = "Triton .* does not know the option enable_time_travel"
    with pytest.raises(KernelError, match=unknown) as refused:
        declared_over(hazards.unknown_option, *x_and_out())
    assert "\n" not in refused.value.message


def test_wide_integers_are_never_poisoned(hazards):
    x, out = x_and_out()
    kernel = declared_over(hazards.counted, x, torch.zeros(1, dtype=torch.int32), out)
    # The counter depends on the number of programs, so only blocks of the default agree with it.
    assert written(kernel)["counter"] == (True, False)
    assert passing(kernel) == {32: True, 64: False}


def test_kept_indices_are_those_of_the_call(hazards):
    (x, out), index = x_and_out(), torch.randperm(100)
    kernel = all_correct(declared_over(hazards.scattered, x, index, out))
    assert torch.equal(inputs_of(kernel, seed=1)["index"], index)


def plus_one(x):
    return x + 1.0


def test_a_config_that_disagrees_with_the_librarys_own_or_the_users_reference_fails(hazards):
    kernel = declared_over(hazards.wrong_for_some, *x_and_out())
    assert passing(kernel) == {32: True, 64: False}
    kernel = declared_over(hazards.wrong_for_some, *x_and_out(), reference=plus_one)
    assert passing(kernel) == {32: False, 64: True}
    assert list(kernel.baselines(only(kernel))) == ["eager"]


@pytest.mark.parametrize(
    ("x", "out"),
    [
        (torch.randn(200)[::2], torch.empty(100)),  # strides
        (torch.randn(101)[1:], torch.empty(103)[3:]),  # not aligned to 16 bytes
        (torch.randn(1).expand(100), torch.empty(300)[::3]),  # stride 0, and gaps in the output
    ],
)
def test_strides_and_alignment_are_those_of_the_call(hazards, x, out):
    def launch():
        hazards.strided[(4,)](x, out, 100, x.stride(0), out.stride(0), BLOCK=32)

    kernel = all_correct(declared(launch))
    workload = only(kernel)
    outputs = {name: torch.zeros(spec.shape) for name, spec in kernel.outputs(workload).items()}
    made = kernel.launches(workload, default_of(kernel), {**inputs_of(kernel), **outputs})[-1]
    for again, original in zip(made.args[:2], (x, out), strict=True):
        assert again.stride() == original.stride()
        assert again.shape == original.shape
    ends = [int(text.partition("@")[2] or 0) for text in (workload["x"], workload["out"])]
    assert ends == [x.data_ptr() % 16, out.data_ptr() % 16]


def test_arguments_that_share_memory_share_it_again(hazards):
    whole = torch.randn(120)
    x, out = whole[20:], whole[:100]  # every element is read before a program overwrites it

    def launch():
        hazards.strided[(1,)](x, out, 100, 1, 1, BLOCK=128)

    kernel = all_correct(declared(launch))
    assert only(kernel)["out"] == "float32[100]=x-80"
    assert list(kernel.outputs(only(kernel))) == ["x"]


def test_tuples_dtypes_and_functions_are_passed_again(hazards):
    import triton.language as tl

    x, out = torch.randn(50), torch.empty(50, dtype=torch.float16)

    def launch():
        hazards.applied[(1,)]((x, 3.0), out, 50, hazards.doubled, tl.float16, BLOCK=64)

    kernel = all_correct(declared(launch))
    assert only(kernel)["pair"] == "(float32[50],3.0)"
    assert only(kernel)["F"] == "hazard_kernels:doubled"
    inputs, results = results_of(kernel)
    assert torch.equal(results["out"], (inputs["pair_0"] * 6.0).half())


def by_descriptor(hazards, x, out):
    from triton.tools.tensor_descriptor import TensorDescriptor

    source, target = (TensorDescriptor(each, [128], [1], [16]) for each in (x, out))
    hazards.by_descriptor[blocks(128)](source, target, 128)


def test_descriptors_made_by_the_host_are_made_again_with_the_blocks_of_a_config(hazards):
    x, out = x_and_out(128)
    kernel = all_correct(declared(by_descriptor, hazards, x, out))
    assert torch.equal(out, 2.0 * x)
    assert only(kernel)["source"] == "descriptor(float32[128],128/1)"
    assert written(kernel) == {"target": (False, False)}
    inputs, results = results_of(kernel)
    assert torch.equal(results["target"], 2.0 * inputs["source"])
    # Widening opens clusters for kernels with descriptors.
    assert values_of(declared(by_descriptor, hazards, x, out, widen=True))["num_ctas"] == (1, 2)


def test_an_identity_does_not_depend_on_what_else_the_process_has_imported(
    kernels, tmp_path, forgotten_modules
):
    def hashes():
        return hashes_of(declared(lambda: add(kernels.plain, BLOCK=64)))

    first = hashes()
    other = Path(__file__).parents[1] / "spaces" / "identity_kernels"
    shutil.copytree(other, tmp_path, dirs_exist_ok=True)
    load(f"{tmp_path / 'on_cpu.py'}:Leaky", device=H200)
    assert hashes() == first


def test_an_identity_does_not_depend_on_the_random_numbers_of_a_call(kernels, forgotten_modules):
    """Equal calls with other values are one kernel, in this process and from its file."""

    def launch():
        kernels.plain[blocks(100)](*torch.randn(2, 100), torch.empty(100), 100, 2.0, BLOCK=64)

    one, other = declared(launch), declared(launch)
    assert one.call(only(one)) != other.call(only(other)), "the numbers were recorded"
    assert hashes_of(one) == hashes_of(other) == hashes_of(tuner.load_kernel(other.spec))


def test_a_widened_space_keeps_to_tiles_that_registers_can_hold(kernels):
    x, out = torch.randn(64, 64), torch.empty(64, 64)

    def launch():
        kernels.square_tiles[lambda meta: (-(-64 // meta["ROWS"]), -(-64 // meta["COLS"]))](
            x, out, 64
        )

    kernel = declared(launch, widen=True)
    space, default = bound(kernel), {**default_of(kernel)}
    assert space.feasible(default)
    assert space.feasible({**default, "ROWS": 64, "COLS": 64, "num_warps": 1})
    assert space.feasible({**default, "ROWS": 128, "COLS": 128, "num_warps": 4})
    refused = space.why_not({**default, "ROWS": 128, "COLS": 128, "num_warps": 2})
    assert "more than 128 elements of a tile" in refused


def test_a_widened_grid_may_read_a_constexpr_that_the_caller_passes(kernels):
    kernel = declared(lambda: add(kernels.warps_alone, BLOCK=32), widen=True)
    assert kernel.call(only(kernel)).grid.reads == ("BLOCK",)
    assert only(kernel)["BLOCK"] == 32
    assert bound(kernel).feasible(default_of(kernel))


def test_values_are_drawn_like_those_of_the_call(hazards):
    x = torch.rand(100) + 1.0
    kernel = all_correct(declared(lambda: hazards.root[(4,)](x, x.clone(), 100, BLOCK=32)))
    inputs = inputs_of(kernel, seed=3)["x"]
    assert float(x.min()) <= float(inputs.min()) <= float(inputs.max()) <= float(x.max())


def test_calls_that_cannot_be_tuned_say_why_in_one_line(hazards, kernels):
    x, out = torch.randn(100) - 5.0, torch.empty(100)
    with numpy.errstate(invalid="ignore"), tuner.capture() as calls:
        hazards.root[(4,)](x, out, 100, BLOCK=32)
        hazards.idle[(1,)](x, BLOCK=64)
        kernels.made_inside()[(1,)](x, 64)
    reasons = [
        "out has NaN on values drawn like those of the call",
        "no tensor changes when it runs again",
        "made inside a function",
    ]
    assert "cannot be tuned" in f"{calls}"
    for call, reason in zip(calls, reasons, strict=True):
        with pytest.raises(KernelError, match=reason) as refused:
            call.declare()
        assert "\n" not in refused.value.message
        with pytest.raises(TunerError, match=reason):
            tuner.tune(call)
        with tuner.session() as session, pytest.raises(TunerError, match=reason):
            session.tune(call)


# -- workloads and spaces ----------------------------------------------------------------------
def test_all_calls_of_a_kernel_are_its_workloads(kernels):
    with tuner.capture() as calls:
        for n in (100, 200, 100):
            add(kernels.tuned, n)
    kernel = calls["tuned"].declare()
    assert [workload["n"] for workload in kernel.workloads()] == [100, 200]
    other = kernel.workloads()[0].with_dims(n=300)
    with pytest.raises(WorkloadError, match="no such call was captured"):
        kernel.check_workload(other)


def test_of_launches_that_differ_in_options_the_most_frequent_counts(kernels):
    with tuner.capture() as calls:
        for warps in (4, 8, 8):
            add(kernels.plain, grid=(1,), BLOCK=128, num_warps=warps)
    kernel = calls["plain"].declare()
    assert list(bound(kernel).enumerate()) == [{"num_warps": 8, "num_stages": 3}]


def test_widening_opens_options_and_the_constexprs_of_the_configs(kernels):
    kernel = declared(add, kernels.tuned, widen=True)
    values = values_of(kernel)
    assert values["BLOCK"] == (32, 64, 128, 256)
    assert values["num_warps"] == (1, 2, 4, 8, 16)
    assert {"num_stages", "maxnreg"} <= values.keys()
    assert "num_ctas" not in values  # nothing that several CTAs of a program could share
    default = default_of(kernel)
    assert (default["BLOCK"], default["num_warps"], default["maxnreg"]) == (64, 4, None)
    assert bound(kernel).feasible(default)


def test_space_names_parameters_with_their_values(kernels):
    space = {"BLOCK": [16, 32], "num_warps": [2]}
    kernel = declared(lambda: add(kernels.plain, BLOCK=128), space=space)
    assert "BLOCK" not in only(kernel)
    found = [(each["BLOCK"], each["num_warps"]) for each in bound(kernel).enumerate()]
    assert sorted(found) == [(16, 2), (16, 4), (32, 2), (32, 4), (128, 2), (128, 4)]
    assert default_of(kernel)["BLOCK"] == 128
    all_correct(kernel)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"BLOK": [1]}, "did you mean 'BLOCK'"),
        ({"n": [1]}, "n, which is no constexpr"),
        ({"BLOCK": 64}, "space has BLOCK=64"),
        ({"BLOCK": [64]}, "its grid \\(1,\\) is a tuple, so BLOCK stays at 128"),
    ],
)
def test_a_space_that_the_call_cannot_have_is_refused_in_one_line(kernels, space, message):
    with pytest.raises(KernelError, match=message):
        declared(lambda: add(kernels.plain, grid=(1,), BLOCK=128), space=space)


def test_a_constexpr_that_does_not_change_a_tuple_grid_is_tuned_on_the_users_word(hazards):
    x, out = x_and_out(64)
    launch, space = (lambda: hazards.halves[(1,)](x, out, 64, 1, BLOCK=64)), {"PARTS": [2, 4]}
    with pytest.raises(KernelError, match="is a tuple, so PARTS stays at 1") as refused:
        declared(launch, space=space)
    assert "declare(same_grid=['PARTS'])" in refused.value.hint
    kernel = declared(launch, space=space, same_grid=["PARTS"])
    found = [config["PARTS"] for config in bound(kernel).enumerate()]
    assert (sorted(found), "PARTS" in only(kernel)) == ([1, 2, 4], False)
    assert hashes_of(load(kernel.spec)) == hashes_of(all_correct(kernel))
    wrong = {"space": {"BLOCK": [32]}, "same_grid": ["BLOCK"]}  # leaves half of out unwritten
    assert passing(declared(launch, **wrong)) == {64: True, 32: False}


def test_a_kernel_without_a_workload_is_refused():
    with pytest.raises(TunerError, match="there is no workload"):
        tuner.tune("softmax")
    with pytest.raises(TunerError, match="there is no workload"):
        tuner.tune(tuner.load_kernel("softmax"))


def test_captured_calls_take_no_workload(kernels):
    with pytest.raises(TunerError, match="captured calls have their own workloads"):
        tuner.tune(captured(add, kernels.tuned)["tuned"], {"n": 100})


# -- other processes ---------------------------------------------------------------------------
def test_the_file_of_a_declaration_makes_the_same_kernel(kernels, tmp_path):
    kernel = declared(add, kernels.tuned, widen=True, tolerance=0.5, folder=tmp_path)
    again = tuner.load_kernel(kernel.spec)
    assert again.workloads() == kernel.workloads()
    assert hashes_of(again) == hashes_of(kernel)
    own = again.spec.rpartition(":")[0]
    refuse_unnamed(again, [n for n, m in sys.modules.items() if getattr(m, "__file__", "") != own])
    assert again.space_hash(again.workloads()[0]) == kernel.space_hash(kernel.workloads()[0])
    assert again.tolerance(again.workloads()[0]).relative == 0.5
    # Equal calls have one identity, however often they were launched.
    with tuner.capture() as later:
        for _ in range(2):
            add(kernels.tuned)
    assert later[0].declare(widen=True, tolerance=0.5, folder=tmp_path).spec == kernel.spec


TUNE = """
import sys
import tuner

if __name__ == "__main__":
    calls = tuner.load_calls(sys.argv[1])["tuned"]
    kernel = calls.declare(space={"BLOCK": [32]}, tolerance=0.01)
    with tuner.session(target="cuda:90") as session:
        for found in [
            session.tune(kernel, strategy="grid"),
            session.tune(kernel, kernel.workloads()[1], strategy="grid"),
            session.tune(calls[0].declare(), strategy="grid"),
            session.tune(calls[0], strategy="grid"),
        ]:
            for each in found if isinstance(found, list) else [found]:
                rows = each.trials
                kind, n = type(found).__name__, each.workload["n"]
                print(kind, n, *set(rows["source"]), *set(rows["status"].astype(str)))
"""


def test_a_declared_kernel_is_tuned_and_tuned_again(kernels, tmp_path, monkeypatch):
    with tuner.capture() as calls:
        for n in (100, 200):
            add(kernels.tuned, n)
    calls.save(tmp_path / "calls.json")
    (tmp_path / "tune.py").write_text(TUNE)
    monkeypatch.delenv("TRITON_INTERPRET")
    done = run_python(tmp_path, "tune.py", "calls.json")
    assert done.stdout.splitlines() == [
        "list 100 built correct",
        "list 200 built correct",
        "TuneResult 200 reused correct",
        "TuneResult 100 built correct",
        "TuneResult 100 reused correct",
    ], done.stderr


SLOW = """
import tuner

if __name__ == "__main__":
    calls = tuner.load_calls("calls.json")
    limits = {"pool": {"build_timeout": 1e-3}}
    result = tuner.tune(calls[0], target="cuda:90", progress=False, settings=limits)
    print(result.note)
"""


@pytest.mark.slow
def test_a_tune_call_whose_builds_take_too_long_ends_and_says_so(kernels, tmp_path):
    captured(add, kernels.tuned).save(tmp_path / "calls.json")
    (tmp_path / "slow.py").write_text(SLOW)
    done = run_python(tmp_path, "slow.py", TRITON_INTERPRET="0")
    assert "timeout: the build took longer than 0.001 s (4x)" in done.stdout, done.stderr


def test_a_file_of_calls_holds_what_they_write(hazards, tmp_path):
    calls = captured(hazards.add_hooked[blocks(100)], torch.randn(100), torch.zeros(4), 100)
    calls.save(tmp_path / "calls.json")
    (call,) = tuner.load_calls(tmp_path / "calls.json").records
    assert call.zeroed == ("total",)
    assert [(each.buffer, each.updated) for each in call.written] == [(1, False)]


def test_a_declaration_of_a_kernel_that_is_gone_is_refused_in_one_line(kernels, tmp_path):
    kernel = declared(add, kernels.tuned, folder=tmp_path)
    del kernels.tuned
    with pytest.raises(KernelError, match="has no tuned any more"):
        tuner.load_kernel(kernel.spec)


def test_the_text_of_a_declaration_is_data(kernels):
    with pytest.raises(Exception, match="Expecting value"):
        kernel_of("__import__('os')")
