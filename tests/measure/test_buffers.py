"""Guarded tensors and the comparison with a reference, on any shape and dtype."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.kernel import Tolerance
from search_spaces.records import TensorSpec
from workers.measure.gate.buffers import ALIGNMENT, POISONS, Arena, holding
from workers.measure.gate.comparison import OutputComparison, compare
from workers.measure.task_tensors import Expected

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
specs = st.builds(
    TensorSpec,
    st.lists(st.integers(0, 7), max_size=3).map(tuple),
    st.sampled_from((*FLOATS, "int8", "int32", "bool")),
)


@settings(max_examples=30)
@given(st.lists(specs, min_size=1, max_size=3))
def test_every_tensor_of_an_arena_is_aligned_and_guarded(wanted):
    arena = Arena("out", "cpu")
    for spec in wanted:
        guarded = arena.tensor(spec)
        assert tuple(guarded.tensor.shape) == spec.shape
        assert str(guarded.tensor.dtype) == f"torch.{spec.dtype}"
        assert guarded.tensor.data_ptr() % ALIGNMENT == 0 or guarded.tensor.numel() == 0
        guarded.poison(POISONS[0])
        assert not any(guarded.band_changes())
        assert bool(holding(guarded.tensor, POISONS[0]).all())
        guarded.bytes.fill_(0)
        assert not any(guarded.band_changes())
        assert not bool(holding(guarded.tensor, POISONS[0]).any())


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_first_poison_is_nan_in_every_float_type(dtype):
    guarded = Arena("out", "cpu").tensor(TensorSpec((5,), dtype))
    guarded.poison(POISONS[0])
    assert bool(guarded.tensor.to(torch.float64).isnan().all())


@pytest.mark.parametrize(("offset", "band"), [(-1, 0), (12, 1), (65547, 1)])
def test_a_write_of_one_byte_outside_is_found(offset, band):
    guarded = Arena("out", "cpu").tensor(TensorSpec((3,), "float32"))
    guarded.poison(POISONS[0])
    storage = guarded.bytes.untyped_storage()
    storage[guarded.bytes.storage_offset() + offset] = 0
    assert [bool(changed) for changed in guarded.band_changes()] == [band == 0, band == 1]


def test_smaller_tensors_share_the_memory_of_larger_ones():
    arena = Arena("scratch", "cpu")
    large = arena.tensor(TensorSpec((1000,), "float32"))
    small = arena.tensor(TensorSpec((10,), "float32"))
    assert large.tensor.data_ptr() == small.tensor.data_ptr()


def _compare(actual, reference, relative=1e-2, elementwise=1e-2):
    values = torch.tensor(reference, dtype=torch.float64)
    bound = (elementwise * (1 + values.abs())).float()
    expected = Expected(values, float(torch.linalg.vector_norm(values)), bound)
    return compare("y", torch.tensor(actual), expected, Tolerance(relative, elementwise))


def test_matches_and_mismatches():
    inf, nan = math.inf, math.nan
    assert _compare([1.0, 2.0], [1.0, 2.0]) == 0.0
    assert _compare([1.001, 2.0], [1.0, 2.0]) == pytest.approx(0.001 / math.sqrt(5), rel=1e-3)
    assert _compare([inf, 1.0], [inf, 1.0]) == 0.0
    assert _compare([0.0, 0.0], [0.0, 0.0]) == 0.0
    assert "relative error" in _compare([1.1, 2.0], [1.0, 2.0])
    assert "relative error" in _compare([1e-9, 0.0], [0.0, 0.0])
    assert "cannot match" in _compare([nan, 1.0], [nan, 1.0])
    assert "cannot match" in _compare([-inf, 1.0], [inf, 1.0])
    assert "cannot match" in _compare([inf, 1.0], [3e38, 1.0])
    assert "cannot match" in _compare([1.0, 1.0], [inf, 1.0])
    assert "off by more than" in _compare([0.05] + [100.0] * 99, [0.0] + [100.0] * 99)


def test_a_comparison_does_not_change_the_output():
    actual = torch.tensor([1.0, 2.0], dtype=torch.float64)
    values = torch.tensor([1.0, 2.5], dtype=torch.float64)
    compare("y", actual, Expected(values, 1.0, values.float()), Tolerance(1.0, 1.0))
    assert actual.tolist() == [1.0, 2.0]


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20), st.data())
def test_an_error_beyond_the_tolerance_never_passes(values, data):
    index = data.draw(st.integers(0, len(values) - 1))
    actual = list(values)
    actual[index] += 0.1 * (1 + abs(values[index]))
    assert isinstance(_compare(actual, values, relative=math.inf), str)


def test_the_first_reading_counts_after_later_writes():
    values = torch.tensor([1.0, 2.0], dtype=torch.float64)
    actual = torch.tensor([1.0, math.nan])
    expected = Expected(values, math.sqrt(5), values.float())
    comparison = OutputComparison("y", actual, expected, Tolerance(1e-2, 1e-2))
    actual[1] = 2.0
    assert "cannot match" in comparison.evaluate(*(float(scalar) for scalar in comparison.scalars))
