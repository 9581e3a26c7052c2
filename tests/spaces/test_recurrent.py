"""Recurrent cells and sequences."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.recurrent_cell.problem import CELLS
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32, "num_warps": 2, "num_stages": 2}
SEQUENCE = {"BLOCK_B": 16, "num_warps": 4, "ahead": False, "BLOCK_M": 64, "BLOCK_N": 32}
SEQUENCE["BLOCK_K"] = 16


def workload(cell: str, **dims: object) -> Workload:
    usual = {"batch": 5, "input": 23, "hidden": 19, "dtype": "float32"}
    return Workload.of(**usual).with_dims(cell=cell, **dims)


@pytest.mark.parametrize("cell", CELLS)
def test_a_step_of_any_size_is_computed(cell):
    cases = []
    for dims in ({}, {"dtype": "float16", "batch": 33}, {"input": 64, "hidden": 32}):
        small = workload(cell, **dims)
        tiles = (TILE, {**TILE, "BLOCK_M": 32, "BLOCK_K": 16})
        cases += [("recurrent_cell", small, tile) for tile in tiles]
    assert wrong(cases) == []


@pytest.mark.parametrize("cell", CELLS)
def test_sequences_of_any_length_are_computed(cell):
    cases = []
    for dims in (
        {"sequence": 1},
        {"sequence": 9, "dtype": "bfloat16"},
        {"sequence": 4, "hidden": 32},
    ):
        for ahead in (False, True):
            config = {**SEQUENCE, "ahead": ahead}
            cases.append(("recurrent_sequence", workload(cell, **dims), config))
    assert wrong(cases) == []


@pytest.mark.parametrize("cell", CELLS)
def test_the_reference_is_torch_s_layer_and_baselines_agree_with_it(cell):
    kernel, small = load("recurrent_sequence"), workload(cell, sequence=7)
    inputs = kernel.make_inputs(small, 1, "cpu")
    expected = kernel.reference(small, inputs)
    layer = (torch.nn.LSTM if cell == "lstm" else torch.nn.GRU)(23, 19).double()
    names = ("w_ih", "w_hh", "b_ih", "b_hh")
    for parameter, name in zip(layer.parameters(), names, strict=True):
        parameter.data.copy_(inputs[name])
    h = inputs["h"][None].double()
    state = (h, inputs["c"][None].double()) if cell == "lstm" else h
    out, last = layer(inputs["x"].double(), state)
    assert torch.allclose(out, expected["out"])
    if cell == "lstm":
        assert torch.allclose(last[1][0], expected["c_out"])
    got = kernel.baselines(small)["eager"](inputs)
    assert got.keys() == expected.keys() == kernel.outputs(small).keys()
    assert all(torch.allclose(got[name].double(), expected[name], atol=1e-5) for name in got)


@pytest.mark.parametrize("cell", CELLS)
def test_the_baselines_of_a_step_agree(cell):
    kernel, small = load("recurrent_cell"), workload(cell)
    inputs = kernel.make_inputs(small, 1, "cpu")
    expected, baselines = kernel.reference(small, inputs), kernel.baselines(small)
    for name in ("eager", "cell"):
        got = baselines[name](inputs)
        assert got.keys() == expected.keys() == kernel.outputs(small).keys()
        assert all(torch.allclose(got[key].double(), expected[key], atol=1e-5) for key in got)


@pytest.mark.parametrize("name", ["recurrent_cell", "recurrent_sequence"])
def test_cudnn_says_what_it_needs(name):
    kernel = load(name)
    small = kernel.small_workload(kernel.workloads()[-1])
    inputs = kernel.make_inputs(small, 1, "cpu")
    for vendor in ("vendor", "vendor_tf32"):
        with pytest.raises(RuntimeError, match="cuDNN needs CUDA tensors"):
            kernel.baselines(small)[vendor](inputs)


def test_errors_of_rounded_states_stay_within_the_tolerance():
    """A sequence whose state is rounded before every step, as the kernel rounds it."""
    kernel = load("recurrent_sequence")
    for cell in CELLS:
        long = workload(cell, sequence=300, hidden=128, input=64, dtype="bfloat16")
        inputs = kernel.make_inputs(long, 1, "cpu")
        exact = kernel.reference(long, inputs)["out"]
        parts = {name: tensor.double() for name, tensor in inputs.items()}
        states, h, c = [], parts["h"], parts.get("c")
        weights = [parts[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
        for row in parts["x"]:
            if c is None:
                h = torch.gru_cell(row, h, *weights)
            else:
                h, c = torch.lstm_cell(row, (h, c), *weights)
            h = h.bfloat16().double()
            states.append(h)
        got = torch.stack(states)
        error = float((got - exact).norm() / exact.norm())
        assert error < kernel.tolerance(long).relative / 2


@pytest.mark.parametrize(
    ("name", "dims", "complaint"),
    [
        ("recurrent_cell", {"cell": "rnn"}, "use lstm, gru"),
        ("recurrent_sequence", {"hidden": 129, "sequence": 4}, "or use recurrent_cell"),
    ],
)
def test_what_does_not_fit_is_refused(name, dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load(name).check_workload(workload("lstm").with_dims(**dims))
    assert complaint in f"{caught.value.message} {caught.value.hint}"


def test_a_step_uses_tensor_cores_without_spills():
    kernel = load("recurrent_cell")
    for large, product in zip(kernel.workloads()[:2], ("mma.sync", "wgmma.mma_async"), strict=True):
        ptx = assemble(kernel, large)
        # Few rows have tiles of 16, too few for the products of a warp group.
        assert product in ptx


@pytest.mark.parametrize("at", [0, 2])
def test_a_sequence_keeps_its_weights_on_chip(at):
    kernel = load("recurrent_sequence")
    large = kernel.workloads()[at]
    config = kernel.default_config(large, H200)
    _, launch = kernel.launches(large, config, meta_tensors(kernel, large, config))
    built = build(launch, H200)
    text = built.asm["ptx"]
    assert "mma" in text
    assert spilled_bytes(built) == 0
    # In the loop, the only values from memory are the products of the inputs, in float32.
    loop = text[text.rindex("mma.sync") if "wgmma" not in text else text.rindex("wgmma") :]
    assert "ld.global.b16" not in loop
