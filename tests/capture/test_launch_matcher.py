"""Recognised launches are those whose records are the same, for random lists of arguments."""

from __future__ import annotations

import functools
import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from tuner.capturing import launch_matcher
from tuner.capturing.arguments import encode
from tuner.capturing.known_launches import KnownLaunches
from tuner.capturing.recorder import Recorder
from tuner.capturing.snapshot import Contents, Snapshot
from tuner.capturing.specialization import key_of

#: Two sets of storages with the same alignments, at different addresses.
STORAGES = [[torch.zeros(4096, dtype=torch.uint8) for _ in range(3)] for _ in range(2)]

scalars = st.sampled_from(
    [None, True, False, 0, 1, 1.0, 2.5, 0.0, -0.0, float("nan"), 70000, 70000.0, "a", "1"]
)
views = st.tuples(
    st.just("view"),
    st.integers(0, 2),
    st.sampled_from([0, 4, 16, 256, 512]),
    st.sampled_from([torch.float32, torch.float16, torch.int32]),
    st.sampled_from([((8, 8), (8, 1)), ((8, 8), (1, 8)), ((64,), (1,)), ((4, 8), (8, 1)),
                     ((0, 8), (8, 1)), ((), ())]),
)  # fmt: skip
descriptors = st.tuples(
    st.just("descriptor"),
    st.sampled_from([0, 16, 512]),
    st.sampled_from([[8, 16], [16, 16]]),
    st.sampled_from([[4, 16], [8, 16]]),
    st.sampled_from(["zero", "nan"]),
)
leaves = st.one_of(scalars, views, views, descriptors)
pairs = st.tuples(st.sampled_from([tuple, list]), st.lists(leaves, max_size=2))
arguments = st.lists(st.one_of(leaves, leaves, pairs), max_size=7)
grids = st.one_of(
    st.sampled_from([(1,), (2,), (1, 1), [1]]),
    st.tuples(st.just("function"), st.sampled_from([1, 2, 1.0, True]), st.sampled_from([None, 1])),
)


def made(spec, storages):
    """The argument of a specification, with objects of its own."""
    if isinstance(spec, tuple) and spec and spec[0] == "view":
        _, storage, offset, dtype, (shape, strides) = spec
        flat = storages[storage].view(dtype)
        return flat.as_strided(shape, strides, offset // dtype.itemsize)
    if isinstance(spec, tuple) and spec and spec[0] == "descriptor":
        _, offset, shape, block, padding = spec
        base = storages[0].view(torch.float32).as_strided(shape, (16, 1), offset // 4)
        return TensorDescriptor(base, list(shape), [16, 1], list(block), padding)
    if isinstance(spec, tuple) and spec and spec[0] in (tuple, list):
        return spec[0](made(part, storages) for part in spec[1])
    return float(repr(spec)) if type(spec) is float else spec


def grid_of(spec):
    if spec[0] != "function":
        return type(spec)(spec)
    held, default = spec[1:]
    if default is None:
        return lambda meta: (held,)
    return lambda meta, more=default: (held, more)


def launch_of(spec, storages):
    args, keyword, grid = spec
    kwargs = {"grid": grid_of(grid), "warmup": False, "BLOCK": made(keyword, storages)}
    return tuple(made(each, storages) for each in args), kwargs


def described(spec, storages):
    """The plain definition: what a record holds, without what was measured."""
    args, kwargs = launch_of(spec, storages)
    snapshot = Snapshot()
    encoded = [encode(f"a{at}", value, snapshot.add) for at, value in enumerate(args)]
    encoded.append(encode("BLOCK", kwargs["BLOCK"], snapshot.add))
    buffers, seen = snapshot.take(Contents(most_bytes=-1))
    grid = spec[2] if spec[2][0] == "function" else ("sizes", *spec[2])
    sizes = [(buffer.bytes, buffer.misalignment) for buffer in buffers]
    return repr((encoded, sizes, seen, grid))


def changed(spec):
    """Arguments that differ from this one in a single property."""
    if isinstance(spec, tuple) and spec[0] == "view":
        return views.map(lambda other: (*spec[:2], other[2], *spec[3:]))
    if isinstance(spec, tuple) and spec[0] in (tuple, list):
        return leaves.map(lambda other: (spec[0], [*spec[1], other]))
    return scalars


@st.composite
def two_launches(draw):
    """Two launches that differ in at most two places."""
    first = (draw(arguments), draw(scalars), draw(grids))
    args = list(first[0])
    for _ in range(draw(st.integers(0, 2))):
        if args:
            at = draw(st.integers(0, len(args) - 1))
            args[at] = draw(st.one_of(changed(args[at]), leaves, pairs))
    grid = draw(grids) if draw(st.integers(0, 4)) == 0 else first[2]
    keyword = draw(scalars) if draw(st.integers(0, 4)) == 0 else first[1]
    return first, (args, keyword, grid), draw(st.integers(0, 1))


@settings(max_examples=400)
@given(two_launches())
def test_keys_are_equal_exactly_where_records_are(drawn):
    first, second, moved = drawn
    same = described(first, STORAGES[0]) == described(second, STORAGES[moved])
    keys = [key_of(*launch_of(first, STORAGES[0])), key_of(*launch_of(second, STORAGES[moved]))]
    assert (keys[0] == keys[1]) == same


@pytest.mark.parametrize("in_one_call", [True, False])
@settings(max_examples=400)
@given(drawn=two_launches())
def test_a_matcher_accepts_exactly_the_launches_of_its_key(in_one_call, drawn):
    first, second, moved = drawn
    same = described(first, STORAGES[0]) == described(second, STORAGES[moved])
    with pytest.MonkeyPatch.context() as patch:
        if not in_one_call:
            patch.setattr(launch_matcher, "check_of", lambda tensors: None)
        match = launch_matcher.matcher_of(*launch_of(first, STORAGES[0]))
    assert match is not None
    try:
        found = match(*launch_of(second, STORAGES[moved]))
    except (AttributeError, TypeError):  # an argument of another kind; the recorder takes its key
        found = False
    assert found == same


def test_every_two_views_of_one_storage_are_told_apart_as_their_records_are():
    layouts = [((8, 8), (8, 1)), ((8, 8), (1, 8)), ((64,), (1,)), ((0, 8), (8, 1))]
    offsets, dtypes = (0, 4, 8, 16, 512), (torch.float32, torch.float16)
    specs = [
        ([("view", 0, offset, dtype, layout), ("view", 0, 768, torch.int32, ((4,), (1,)))], 1, (1,))
        for offset, dtype, layout in itertools.product(offsets, dtypes, layouts)
    ]
    known = [described(spec, STORAGES[0]) for spec in specs]
    for spec, record in zip(specs, known, strict=True):
        match = launch_matcher.matcher_of(*launch_of(spec, STORAGES[0]))
        found = [match(*launch_of(other, STORAGES[1])) for other in specs]
        assert found == [record == other for other in known]


@settings(max_examples=60)
@given(st.lists(two_launches(), min_size=1, max_size=8))
def test_counts_are_those_of_the_records(drawn):
    """All launches through one recorder, in turn; their number and kinds are the definition's."""
    launches = [(spec, STORAGES[moved]) for one, two, moved in drawn for spec in (one, two, one)]
    recorder, expected = Recorder(Contents()), {}
    kernel = object()
    for spec, storages in launches:
        args, kwargs = launch_of(spec, storages)
        recorder.launch(kernel, lambda *args, **kwargs: None, args, kwargs)
        kind = described(spec, storages)
        expected[kind] = expected.get(kind, 0) + 1
    assert [call.count for call in recorder.calls()] == list(expected.values())
    assert [call.count for call in recorder.calls()] == list(expected.values())


def test_more_tensors_than_are_compared_in_pairs_may_come_in_any_order():
    whole = torch.zeros(1000)
    parts = [whole[at * 100 : at * 100 + 64] for at in range(6)]
    kwargs = {"grid": (1,), "warmup": False}
    match = launch_matcher.matcher_of(tuple(parts), kwargs)
    assert match(tuple(parts), kwargs)
    assert match(tuple(parts[at] for at in (5, 0, 3, 4, 1, 2)), kwargs)
    assert not match((*parts[:5], parts[4]), kwargs)
    assert not match((*parts[:5], whole[460:524]), kwargs)


def test_classes_of_tensors_are_one_kind_and_functools_partial_is_a_grid():
    recorder = Recorder(Contents())
    x = torch.zeros(8)

    def grid(size, meta):
        return (size,)

    for tensor in (x, torch.nn.Parameter(x), x, torch.zeros(8, requires_grad=True)):
        for size in (1, 2):
            kwargs = {"grid": functools.partial(grid, size), "warmup": False}
            recorder.launch(recorder, lambda *args, **kwargs: None, (tensor,), kwargs)
    assert [call.count for call in recorder.calls()] == [4, 4]


def test_launches_of_many_threads_are_all_counted():
    recorder, kernel = Recorder(Contents()), object()
    x = torch.zeros(8)

    def work(number):
        for at in range(500):
            kwargs = {"grid": (1,), "warmup": False, "n": at % 3 + number % 2}
            recorder.launch(kernel, lambda *args, **kwargs: None, (x,), kwargs)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {call.problem: call.count for call in recorder.calls()}
    assert len(list(recorder.calls())) == 4
    assert sum(call.count for call in recorder.calls()) == 2000, counts


def test_matchers_of_one_entry_are_bounded():
    launches = KnownLaunches(None)
    for size in range(1, 100):
        launches.add((torch.zeros(size),), {"grid": (1,)}, None)
    (entry,) = launches._by_scalars.values()
    assert len(entry) == 8
