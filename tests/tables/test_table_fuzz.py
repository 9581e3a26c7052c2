"""Whatever a table file holds: lookups, `hit` and launches neither raise nor repeat themselves."""

from __future__ import annotations

import copy
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_documents import document
from table_library import BIG, key

from tuner import runtime

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

numbers = st.sampled_from(
    [0, -1, 1, 3, 64, 100, 2**31, 2**63, 2**64, 10**400, -(10**400), 1e308, 5e-324, -0.0, 1.5]
)
odd_numbers = st.sampled_from([float("nan"), float("inf"), -float("inf")])
texts = st.sampled_from(
    ["", "n", "BLOCK", "num_warps", "\0", "\ud800", "a\nb", "x" * 3000, "../..", "fallback"]
) | st.text(max_size=5)
values = st.recursive(
    st.none() | st.booleans() | numbers | odd_numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def kernel(library):
    return library.load()


def whole_document(kernel):
    return document(
        [(key(), BIG), ({**key(50), "flag": None}, {"BLOCK": 32, "num_warps": 1})],
        kernel_hash=runtime.kernel_hash(kernel),
        toolchain={"triton": triton.__version__},
        default={"BLOCK": 64},
    )


def mutated(data, whole):
    """The document with up to three things replaced, removed, renamed or wrapped."""
    whole = copy.deepcopy(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        place, step = whole, data.draw(st.sampled_from(sorted(whole)))
        while isinstance(place[step], dict | list) and place[step] and data.draw(st.integers(0, 3)):
            place = place[step]
            step = data.draw(
                st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place)))
            )
        kept = place[step]
        change = data.draw(st.sampled_from(["replace", "remove", "rename", "wrap", "repeat"]))
        if change == "replace":
            place[step] = data.draw(values)
        elif change == "wrap":
            place[step] = [kept]
        elif change == "repeat" and isinstance(kept, list):
            place[step] = kept * 2
        elif isinstance(place, dict):
            del place[step]
            if change == "rename":
                place[data.draw(texts)] = kept
        if not whole:
            break
    return whole


def spoiled(data, raw):
    """Bytes with a piece put in, cut out or written over: encodings, depth, endless digits."""
    piece = data.draw(
        st.sampled_from([b"\xff", b"\xef\xbb\xbf", b"[" * 5000, b"9" * 5000, b'{"a":', b"\0", b'"'])
        | st.binary(max_size=20)
    )
    at = data.draw(st.integers(0, len(raw)))
    return raw[:at] + piece + raw[at + data.draw(st.sampled_from([0, 0, 1, len(piece)])) :]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(data=st.data())
def test_no_table_breaks_a_launch(library, kernel, caplog, data):
    document = mutated(data, whole_document(kernel))
    raw = json.dumps(document).encode()
    if data.draw(st.integers(0, 2)) == 0:
        raw = spoiled(data, raw)
    library.tables.mkdir(exist_ok=True)
    (library.tables / "scale@x.json").write_bytes(raw)
    runtime.clear()
    caplog.clear()
    fresh = runtime.Autotuned(kernel.fn, kernel.configs[:1], ["n"], kernel="scale")
    library.module.scale = fresh
    n = data.draw(st.sampled_from([100, 110, 400]))
    x = torch.zeros(n)
    with caplog.at_level(logging.WARNING, "tuner.runtime"):
        fresh.hit(x, x, n, FACTOR=3)
        library.launch(n)
        library.launch(n)
        fresh.hit(x, x, n, FACTOR=3)
        logged = len(caplog.records)
        hit = runtime.lookup("scale", key(n), tables=library.tables, default={"BLOCK": 1})
    assert hit is not None
    assert logged <= 1, caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert fresh.best_config.kwargs["BLOCK"]
