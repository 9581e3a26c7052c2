"""Plans: the arguments of launches for other tensors than those that they were made with."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import KERNELS, call_of

from search_spaces import registry
from search_spaces.records import Workload
from search_spaces.tensors import empty_tensors
from tuner.ops.operator import OPERATORS
from tuner.ops.planning import PlanError, Template, _distinct
from tuner.settings import load as load_settings
from workers.device import offline

ROOT = Path(__file__).parents[2]
H200 = offline("cuda:90")


def tensors_of(kernel, workload, config, seed):
    made = {**kernel.outputs(workload), **kernel.scratch(workload, config)}
    return {**kernel.make_inputs(workload, seed, "cpu"), **empty_tensors(made, "cpu")}


def check_equal(filled, expected):
    """A filled argument is that of a launch; tensors are passed by their addresses."""
    if isinstance(expected, torch.Tensor):
        assert filled == expected.data_ptr()
    elif hasattr(expected, "base"):
        assert filled.base.data_ptr() == expected.base.data_ptr()
        for each in ("shape", "strides", "block_shape"):
            assert getattr(filled, each) == getattr(expected, each)
    else:
        assert filled is expected or filled == expected


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=6)
@given(data=st.data())
def test_filled_arguments_are_those_of_a_launch_of_its_own(name, data):
    kernel = registry.load(name)
    workload = kernel.small_workload(data.draw(st.sampled_from(kernel.workloads())))
    space = kernel.space(workload).bind(workload, H200)
    default = kernel.default_config(workload, H200)
    configs = [default, *(each for _, each in zip(range(40), space.enumerate(), strict=False))]
    config = data.draw(st.sampled_from(configs))
    first = tensors_of(kernel, workload, config, 0)
    other = tensors_of(kernel, workload, config, 1)
    names = list(first)
    launches = kernel.launches(workload, config, first)
    genuine = kernel.launches(workload, config, other)
    for launch, own in zip(launches, genuine, strict=True):
        template = Template(launch, [first[each] for each in names])
        given_now = [other[each] for each in names]
        filled = template.fill(given_now)
        expected = dict(zip(own.fn.arg_names, own.args, strict=False)) | dict(own.kwargs)
        for parameter, value in zip(own.fn.arg_names, filled, strict=True):
            if parameter in expected:
                check_equal(value, expected[parameter])


def default_launches(name):
    """The launches of a small problem with the default config, and their tensors."""
    kernel = registry.load(name)
    workload = kernel.small_workload(kernel.workloads()[0])
    config = kernel.default_config(workload, H200)
    tensors = tensors_of(kernel, workload, config, 0)
    return kernel.launches(workload, config, tensors), tensors


@pytest.mark.parametrize("name", KERNELS)
def test_a_template_keeps_no_tensor_alive(name):
    """Plans are kept for each kind of call: one tensor in each would fill the memory of a GPU."""
    launches, tensors = default_launches(name)
    kept = [weakref.ref(each) for each in tensors.values()]
    templates = [Template(launch, [*tensors.values()]) for launch in launches]
    del tensors, launches
    gc.collect()
    assert templates
    assert not any(each() is not None for each in kept)


def test_a_launch_on_a_tensor_of_its_own_has_no_template():
    (launch,), _ = default_launches("softmax")
    with pytest.raises(PlanError, match="made itself"):
        Template(launch, [torch.empty(3)])


@given(st.integers(0, 3), st.integers(1, 5), st.booleans())
def test_tensors_that_overlap_are_copied_in_their_alignment(shift, rows, transposed):
    whole = torch.arange(64.0)
    view = whole[shift : shift + 4 * rows].view(rows, 4)
    view = view.T if transposed else view
    found = _distinct({"x": view, "y": view})
    assert found["x"] is view
    copied = found["y"]
    assert torch.equal(copied, view)
    assert copied.stride() == view.stride()
    assert copied.data_ptr() % 16 == view.data_ptr() % 16
    assert copied.untyped_storage().data_ptr() != view.untyped_storage().data_ptr()


def test_every_kernel_of_an_operator_has_a_template():
    """The cases have all kernels that operators name."""
    # attention has two kernels, moe_matmul and linear have two operators each, and the gradients of
    # linear losses in graphs are made by none of a table.
    assert len(KERNELS) == len(OPERATORS) - 2


def test_every_kernel_of_an_operator_has_a_campaign():
    loaded, _ = load_settings(ROOT / "benchmarks" / "ops.yaml")
    tasks = [task for campaign in loaded.campaigns.values() for task in campaign.tasks]
    assert {task.kernel for task in tasks} == {*KERNELS}
    for task in tasks:
        kernel = registry.load(task.kernel)
        for dims in () if task.workloads == "all" else task.workloads:
            workload = Workload.from_mapping(dims)
            kernel.check_workload(workload)
            inputs = kernel.make_inputs(workload, 0, "meta")
            assert call_of(task.kernel, workload, inputs) is not None
