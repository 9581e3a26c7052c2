"""Arguments that JSON lacks: members of enumerations, and floats that are not finite."""

from __future__ import annotations

import enum
import json

import pytest
import torch
from capture_calls import apply_own, blocks, captured, hashes_of, only, results_of, run_python

import tuner
from search_spaces.errors import KernelError, TunerError


def launch_mode(hazards, mode, part=None):
    x, out = torch.randn(100), torch.empty(100)
    hazards.by_mode[blocks(100)](x, out, 100, mode, (part, 3), BLOCK=64)


def launch_maximum(hazards, low=float("-inf")):
    x, out, top = torch.randn(100), torch.empty(100), torch.empty(100)
    hazards.running_maximum[blocks(100)](x, out, top, 100, low, low, BLOCK=64)
    return out, top


def through_file(calls, folder):
    calls.save(folder / "calls.json")
    json.loads((folder / "calls.json").read_text(), parse_constant=pytest.fail)
    return tuner.load_calls(folder / "calls.json")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Mode.DOUBLE", "hazard_kernels:Mode.DOUBLE"),
        ("Policy.DOUBLE", 8),
        ("Name.DOUBLE", "double"),
    ],
)
def test_members_of_enumerations_are_recorded_by_their_place(hazards, tmp_path, name, key):
    kind, _, member = name.partition(".")
    mode = getattr(hazards, kind)[member]
    calls = through_file(captured(launch_mode, hazards, mode, mode), tmp_path)
    (call,) = calls.records
    assert call.problem == ""
    assert call.arguments["MODE"] == {"enum": f"hazard_kernels:{name}"}
    assert call.arguments["pair"] == {"tuple": [{"enum": f"hazard_kernels:{name}"}, 3]}
    kernel = calls[0].declare(folder=tmp_path)
    workload = only(kernel)
    assert (workload["MODE"], workload["pair"]) == (key, f"({key},3)")
    assert type(workload["MODE"]) is type(key)
    inputs, results = results_of(kernel)
    assert torch.equal(results["out"], inputs["x"] * (2.0 if kind == "Mode" else 1.0))
    assert hashes_of(kernel)
    assert apply_own(kernel, lambda: launch_mode(hazards, mode, mode), tmp_path) == [(1, 0)]
    if kind == "Mode":
        other = hazards.Mode.ADD
        assert apply_own(kernel, lambda: launch_mode(hazards, other, mode), tmp_path) == [(0, 1)]


def test_members_that_no_other_process_finds_are_refused_in_one_line(hazards, tmp_path):
    inner = enum.Enum("Inner", ["A"])
    flags = enum.Flag("Flags", ["A", "B"], module="hazard_kernels")
    hazards.Flags = flags
    for mode, reason in (
        (inner.A, "MODE is a Inner, and no module holds Inner"),
        (flags.A | flags.B, "MODE is a Flags, which has no record"),
    ):
        (call,) = captured(launch_mode, hazards, mode).records
        assert reason in call.problem
        assert "\n" not in call.problem
    calls = through_file(captured(launch_mode, hazards, hazards.Mode.ADD), tmp_path)
    text = (tmp_path / "calls.json").read_text()
    for place, reason in (
        ("hazard_kernels:Mode.GONE", "hazard_kernels has no Mode.GONE any more"),
        ("os:system", "os:system is no member of an enumeration"),
    ):
        (tmp_path / "calls.json").write_text(text.replace("hazard_kernels:Mode.ADD", place))
        with pytest.raises(KernelError, match=reason):
            tuner.load_calls(tmp_path / "calls.json")[0].declare()
    assert calls[0].declare()


def test_floats_that_are_not_finite_are_texts_in_records_and_keys(hazards, tmp_path):
    calls = through_file(captured(launch_maximum, hazards), tmp_path)
    (call,) = calls.records
    assert (call.problem, call.arguments["low"]) == ("", {"float": "-inf"})
    kernel = calls[0].declare(folder=tmp_path)
    workload = only(kernel)
    assert (workload["low"], workload["LOW"]) == ("-inf", "-inf")
    inputs, results = results_of(kernel)
    hidden = torch.arange(100) % 4 == 3
    expected = inputs["x"].masked_fill(hidden, float("-inf"))
    assert torch.equal(results["top"], expected)
    assert torch.allclose(results["out"], expected.exp())
    assert hashes_of(kernel)
    # An infinite scale would let every result pass.
    assert kernel.tolerance(workload).elementwise < 1e-3
    assert apply_own(kernel, lambda: launch_maximum(hazards), tmp_path) == [(1, 0)]
    assert apply_own(kernel, lambda: launch_maximum(hazards, -9.0), tmp_path) == [(0, 1)]


SCRIPT = """
import sys
import tuner
if __name__ == "__main__":
    kernel = tuner.load_calls("calls.json")[0].declare()
    result = tuner.tune(kernel, target="cuda:90", budget=1, progress=False)
    print(sorted(set(result.trials["status"].astype(str))), *set(result.trials["message"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("launch", [launch_mode, launch_maximum])
def test_such_calls_are_built_for_a_gpu(hazards, tmp_path, launch):
    given = [hazards.Mode.DOUBLE] if launch is launch_mode else []
    captured(launch, hazards, *given).save(tmp_path / "calls.json")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run_python(tmp_path, "script.py", TRITON_INTERPRET="0")
    assert "['correct']" in done.stdout, done.stdout + done.stderr


def test_a_space_of_a_constexpr_that_json_lacks_is_refused_in_one_line(hazards):
    for calls, space in (
        (captured(launch_maximum, hazards), {"LOW": [0.0]}),
        (captured(launch_mode, hazards, hazards.Mode.ADD), {"MODE": [1]}),
    ):
        with pytest.raises(TunerError, match="has no plain value, so it stays") as refused:
            calls[0].declare(space=space)
        assert "\n" not in refused.value.message


def test_an_option_that_json_lacks_is_refused_in_one_line(hazards):
    given = torch.randn(64), torch.empty(64), 64, 1
    (call,) = captured(hazards.halves[(1,)], *given, BLOCK=64, waves=float("inf")).records
    assert call.problem == "its option waves is inf, which has no record"
