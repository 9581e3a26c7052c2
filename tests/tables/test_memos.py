"""Memos tell apart the launches that keys tell apart, in all forms of call."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from tuner.runtime import Arguments, DeviceFacts, Entry, Table, call_key
from tuner.runtime._call_key import describe, plain
from tuner.runtime._memo import Memos


def launched(scale, x, n, m=8, flag=True, bias=None, more=0):
    pass


SIGNATURE = inspect.signature(launched)
NAMES = list(SIGNATURE.parameters)
DEFAULTS = {"m": 8, "flag": True, "bias": None, "more": 0}
TENSORS = [torch.zeros(4), torch.zeros(4, 8), torch.zeros(4, dtype=torch.float16)]
scalars = st.sampled_from([0, 1, 1.0, 2.5, True, False, 8, "a", "float16", None])
odd = st.sampled_from(
    [
        torch.float16,
        (1, 2),
        (2, 1),
        SimpleNamespace,
        TensorDescriptor(TENSORS[1], [4, 8], [8, 1], [2, 8]),
        TensorDescriptor(TENSORS[1], [2, 8], [8, 1], [2, 8]),
    ]
)
tensors = st.sampled_from(TENSORS)
some = st.one_of(scalars, tensors)


@st.composite
def calls(draw):
    """All arguments by name, and a form in which a launch passes them."""
    values = {
        "scale": draw(st.one_of(scalars, odd, tensors)),
        "x": draw(tensors),
        "n": draw(st.one_of(scalars, odd)),
        "m": draw(scalars),
        "flag": draw(scalars),
        "bias": draw(st.one_of(st.none(), tensors)),
        "more": draw(some),
    }
    return values, *draw(forms(values))


@st.composite
def forms(draw, values):
    given = draw(st.integers(0, len(NAMES)))
    names = [
        name
        for name in NAMES[given:]
        if not (DEFAULTS.get(name, "none") is values[name] and draw(st.booleans()))
    ]
    return tuple(values[name] for name in NAMES[:given]), {
        name: values[name] for name in draw(st.permutations(names))
    }


def counted(value, typed):
    """What counts of a wanted value."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype
    return describe(value), typed and isinstance(value, bool)


def key_of(values, wanted, typed):
    """The plain definition: wanted values, and the dtype of every tensor."""
    dtypes = {name: v.dtype for name, v in values.items() if isinstance(v, torch.Tensor)}
    return [counted(values[name], typed) for name in NAMES if name in wanted], dtypes


@settings(max_examples=500)
@given(calls(), calls(), st.sets(st.sampled_from(NAMES)), st.booleans(), st.data())
def test_launches_of_one_memo_have_one_key(first, second, wanted, typed, data):
    memos = Memos(NAMES, DEFAULTS, wanted, describe, typed=typed)
    other = data.draw(forms(first[0]))
    launches = [first, second, (first[0], *other)]
    for _, args, kwargs in launches:  # A launch of another kind makes a new revision.
        memos.maker(args, kwargs)
    made = [memos.maker(args, kwargs)(args, kwargs, None) for _, args, kwargs in launches]
    known = [key_of(values, wanted, typed) for values, _, _ in launches]
    assert made[0] != made[1] or known[0] == known[1]
    if (len(first[1]), [*first[2]]) == (len(other[0]), [*other[1]]):
        assert made[0] == made[2]


@settings(max_examples=500)
@given(calls(), calls(), st.lists(st.sampled_from([(1,), (2,), (1, 1), len]), min_size=2))
def test_captured_launches_of_one_memo_have_one_key(first, second, grids):
    memos = Memos(NAMES, DEFAULTS, NAMES, describe, typed=True, captured=True)
    launches = list(zip((first, second), grids, strict=False))
    for (_, args, kwargs), grid in launches:
        memos.maker(args, kwargs, grid)
    made = [
        memos.maker(args, kwargs, grid)(args, kwargs, grid) for (_, args, kwargs), grid in launches
    ]
    known = [repr(call_key(with_one_shape(call[0], grid), grid)) for call, grid in launches]
    assert made[0] != made[1] or known[0].replace(".0", "") == known[1].replace(".0", "")


def with_one_shape(values, grid):
    """With a tuple as grid, shapes are nothing that the kernel sees."""
    return {
        name: value.flatten()[:1] if isinstance(value, torch.Tensor) and grid is not len else value
        for name, value in values.items()
    }


@pytest.mark.parametrize(
    "options", [{}, {"key_map": lambda args: {"n": args["n"], "m": args["m"]}}]
)
@settings(max_examples=200)
@given(call=calls(), data=st.data())
def test_all_forms_of_a_launch_find_one_entry(options, call, data):
    values = {**call[0], "n": 1, "x": TENSORS[0], "scale": 2}
    entries = tuple(Entry({"n": 1, "m": m}, {"BLOCK": at}) for at, m in enumerate((8, 0, 2.5)))
    table = Table("launched", "", DeviceFacts("a"), {}, entries)
    arguments = Arguments(NAMES, launched, ["n"], **options)
    arguments.learn(table)
    found = []
    for _ in range(3):
        args, kwargs = data.draw(forms(values))
        found.append(arguments.find(table, args, kwargs)[0])
    assert found[0] == found[1] == found[2]


def test_a_value_that_is_no_scalar_counts_by_what_a_table_holds():
    memos = Memos(["n"], {}, ["n"], plain)
    for value in (torch.float16, "float16"):
        memos.maker((value,), {})
    make = memos.maker(("float16",), {})
    assert make(("float16",), {}, None) == make((torch.float16,), {}, None)
    assert make(("float16",), {}, None) != make((torch.float32,), {}, None)


def test_an_argument_that_does_not_count_is_not_taken_for_another():
    memos = Memos(["n", "t", "x", "bias"], {"x": 0, "bias": None}, ["n"], plain)
    args, bias = (1, TENSORS[0]), TENSORS[1]
    make = memos.maker(args, {"x": 2})
    assert make(args, {"x": 2}, None) == make(args, {"x": 3}, None)
    assert make(args, {"x": 2}, None) != make(args, {"bias": bias}, None)
    make = memos.maker((*args, 2), {})
    assert make((*args, 2), {}, None) == make((*args, 3), {}, None)
    assert make((*args, 2), {}, None) != make((*args, 2, bias), {}, None)
    assert make((*args, 2), {}, None) != make((*args, 2), {"bias": bias}, None)
