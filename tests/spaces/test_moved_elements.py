"""Families that move elements without computing: transposes and gathered rows."""

from __future__ import annotations

import pytest
from spaces_devices import assemble
from spaces_interpret import wrong

from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family


def test_matrices_of_any_size_are_transposed():
    jobs = []
    for batch, rows, cols, dtype in (
        (1, 1, 1, "float32"),
        (3, 37, 71, "bfloat16"),
        (2, 64, 32, "float16"),
        (1, 5, 130, "float32"),
    ):
        small = Workload.of(batch=batch, rows=rows, cols=cols, dtype=dtype)
        for order in ("row", "column"):
            tile = {"BLOCK_R": 16, "BLOCK_C": 32, "num_warps": 1}
            jobs.append(("transpose", small, {**tile, "order": order, "stream": order == "row"}))
    assert not wrong(jobs)


def test_rows_of_any_width_are_gathered():
    jobs = []
    for tokens, vocab, dim, dtype in (
        (1, 1, 1, "float32"),
        (13, 29, 301, "bfloat16"),
        (7, 3, 64, "float16"),
    ):
        small = Workload.of(tokens=tokens, vocab=vocab, dim=dim, dtype=dtype)
        for block_t, block_d in ((1, 64), (4, 128), (2, 512)):
            shape = {"BLOCK_T": block_t, "BLOCK_D": block_d, "num_warps": 1}
            jobs.append(("embedding", small, {**shape, "stream": block_t == 1}))
    assert not wrong(jobs)


def test_a_changed_element_is_refused():
    for name in ("transpose", "embedding"):
        kernel = load(name)
        small = kernel.small_workload(kernel.workloads()[0])
        assert kernel.tolerance(small).relative < 2**-24


@pytest.mark.parametrize("name", ["transpose", "embedding"])
def test_elements_are_moved_in_words_of_16_bytes(name):
    kernel = load(name)
    large = kernel.workloads()[0]
    ptx = assemble(kernel, large)
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx
