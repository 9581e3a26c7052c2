"""The gate compares the bits of a row between places and sizes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from row_kernels import PARTS, RowSum, add_up

from search_spaces import registry
from search_spaces.errors import KernelError
from search_spaces.kernel import Tolerance
from search_spaces.records import Status, TensorSpec, Workload
from workers.job_records import Failure, RowRange
from workers.measure.gate.checks import check_variant
from workers.measure.task_tensors import Checked, TaskTensors

ROWS = RowRange("rows", 1, 300)
SIZES = (1, 2, 7, 64, 300)


def check(way, size, rows=ROWS, kernel=None):
    kernel = kernel or RowSum()
    workload = Workload.of(rows=size, cols=512)
    task = TaskTensors(kernel, workload, (1, 2), "cpu")
    run = kernel.cpu_callable(workload, {"way": way})
    found = check_variant(task, lambda: run(task.inputs), same_bits=True, rows=rows)
    first = kernel.make_inputs(workload, 1, "cpu")
    assert all(torch.equal(task.inputs[name], each) for name, each in first.items())
    return found


def bits_of(way):
    return {size: check(way, size).row_bits for size in SIZES}


def test_a_way_has_the_same_bits_at_all_sizes():
    found = {way: bits_of(way) for way in PARTS}
    assert all(len({*each.values()}) == 1 for each in found.values())
    at_one = {way: each[1] for way, each in found.items()}
    assert at_one["whole"] == at_one["slow whole"] != at_one["eighths"] == at_one["slow eighths"]


def test_bits_by_the_number_of_rows_differ_between_sizes():
    assert len({*bits_of("by count").values()}) > 1


def test_bits_by_the_place_of_a_row_are_refused():
    found = check("by place", 64)
    assert isinstance(found, Failure)
    assert found.status is Status.CORRECTNESS
    assert found.message == "the bits of a row depend on its place among rows=64"


def test_other_bits_than_those_of_the_range_are_refused():
    whole, eighths = check("whole", 64).row_bits, check("eighths", 7).row_bits
    wanted = RowRange("rows", 1, 300, eighths)
    assert isinstance(check("slow eighths", 300, wanted), Checked)
    refused = check("whole", 64, wanted)
    assert isinstance(refused, Failure)
    assert refused.message == (
        f"rows have other bits ({whole}) than in the rest of the range ({eighths})"
    )


def test_samples_of_several_rows_keep_their_order():
    rows = RowRange("rows", 32, 320)
    found = {size: check("eighths", size, rows).row_bits for size in (32, 40, 64, 320)}
    assert len({*found.values()}) == 1


def test_a_range_of_one_size_has_rows_too():
    alone, both = (check("eighths", 64, RowRange("rows", 64, high)) for high in (64, 128))
    assert alone.row_bits == both.row_bits


class RoundedProduct(RowSum):
    """x @ w in parts, in float32, rounded to 16 bits."""

    def make_inputs(self, workload, seed, device):
        made = super().make_inputs(workload, seed, device)
        source = None if device == "meta" else torch.Generator(device).manual_seed(seed)
        w = torch.randn(made["x"].shape[1], 256, generator=source, device=device)
        return {"x": made["x"], "w": w}

    def outputs(self, workload):
        return {"y": TensorSpec((workload.size("rows"), 256), "bfloat16")}

    def reference(self, workload, inputs):
        return {"y": inputs["x"].double() @ inputs["w"].double()}

    def tolerance(self, workload):
        return Tolerance(1e-2, 1e-1)

    def cpu_callable(self, workload, config):
        def run(inputs):
            rows = [
                add_up(row * inputs["w"].T, PARTS[config["way"]]) for row in inputs["x"].unbind()
            ]
            return {"y": torch.stack(rows).bfloat16()}

        return run


def test_orders_that_rarely_round_to_other_values_have_other_digests():
    kernel, found = RoundedProduct(), {}
    for way in ("whole", "eighths"):
        found[way] = {check(way, size, kernel=kernel).row_bits for size in (1, 3)}
        assert len(found[way]) == 1
    assert found["whole"] != found["eighths"]


class Pairs(RowSum):
    """One input grows with the square of the rows."""

    def make_inputs(self, workload, seed, device):
        count = workload.size("rows")
        made = super().make_inputs(workload, seed, device)
        return {**made, "pairs": torch.zeros(count, count, device=device)}


class Total(RowSum):
    """No output grows with the rows."""

    def outputs(self, workload):
        return {"n": TensorSpec((1,), "float32")}


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Pairs(), r"`pairs` of `row_sum` has the shape \(1, 1\) for 1 rows and \(64, 64\) for 64"),
        (Total(), "no output of `row_sum` grows with rows"),
    ],
)
def test_a_kernel_without_rows_is_named(kernel, message):
    with pytest.raises(KernelError, match=message):
        check("whole", 64, kernel=kernel)


def multiply_slots(task, block):
    """The products of `moe_matmul` from its order of slots, one order of summation for all."""
    inputs, top_k = task.inputs, task.workload.size("top_k")
    slots = inputs["order_16"].view(-1, 16)
    out = torch.zeros(task.workload.size("tokens") * top_k + 1, inputs["w"].shape[1])
    for expert, own in zip(inputs["experts_16"], slots, strict=True):
        if expert >= 0:
            x = inputs["x"][own.clamp(max=len(out) - 2) // top_k]
            parts = (x[:, None].float() * inputs["w"][expert].float()).unflatten(-1, (-1, block))
            out[own.long()] = parts.cumsum(-1)[..., -1].cumsum(-1)[..., -1]
    return {"out": out[:-1].view(-1, top_k, out.shape[1]).bfloat16()}


def test_inputs_that_follow_from_others_are_made_again():
    kernel, rows = registry.load("moe_matmul"), RowRange("tokens", 1, 40)
    dims = {"experts": 5, "top_k": 2, "hidden": 32, "intermediate": 24, "gemm": "gate_up"}
    found = {}
    for count in (1, 2, 9, 40):
        task = TaskTensors(
            kernel, Workload.of(tokens=count, **dims, dtype="bfloat16"), (1, 2), "cpu"
        )
        for block in (8, 32):
            run = partial(multiply_slots, task, block)
            checked = check_variant(task, run, same_bits=True, rows=rows)
            found.setdefault(block, set()).add(checked.row_bits)
    assert all(len(each) == 1 for each in found.values())
