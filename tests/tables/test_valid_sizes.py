"""The sizes of an entry agree with what the kernel's declaration calls valid."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_documents import H200

from search_spaces.constraints import Constraint, Preference
from search_spaces.dims import Dims
from search_spaces.kernel import Kernel
from search_spaces.params import PowerOfTwo
from search_spaces.records import Workload
from search_spaces.registry import load
from search_spaces.space import SearchSpace
from tuner.runtime import Span
from tuner.tables.valid_sizes import valid_sizes

CONFIG = {"BLOCK": 64}
TOP = 2**31 - 1


class Sized(Kernel):
    """A kernel of two sizes whose config is valid where a rule says so."""

    name = "sized"
    dims = Dims(n=int, m=int, flag=bool)

    def __init__(self, rule: Callable[[Workload], bool]) -> None:
        self.rule = rule

    def space(self, workload: Workload) -> SearchSpace:
        rules = [
            Constraint("rule", lambda config, w, d: self.rule(w), "the rule"),
            Preference("like", lambda config, w, d: w.size("n") == 96, "not worth trying"),
        ]
        return SearchSpace([PowerOfTwo("BLOCK", 16, 16)], rules, admits=["BLOCK"])


def sizes_of(rule: Callable[[Workload], bool], n: int = 96, m: int = 96) -> dict[str, Span]:
    return valid_sizes(Sized(rule), H200, {"n": n, "m": m, "flag": True}, CONFIG)


@pytest.mark.parametrize(
    ("rule", "n", "expected"),
    [
        (lambda w: True, 96, Span(1, TOP)),
        (lambda w: w.size("n") <= 1000, 96, Span(1, 1000)),
        (lambda w: w.size("n") >= 33, 96, Span(33, TOP)),
        (lambda w: 90 <= w.size("n") <= 96, 96, Span(90, 96)),
        (lambda w: w.size("n") % 32 == 0, 96, Span(32, TOP // 32 * 32, 32)),
        (lambda w: w.size("n") % 32 == 0 and w.size("n") > 64, 96, Span(96, TOP // 32 * 32, 32)),
        (lambda w: w.size("n") == 96, 96, None),
        (lambda w: w.size("n") in (64, 96), 96, Span(64, 96, 32)),
        (lambda w: w.size("n") in (7, 96), 96, None),
        (lambda w: False, 96, None),
        (lambda w: w.size("n") < 3, 1, Span(1, 2)),
        (lambda w: 1 / (w.size("n") - 96) > 0, 95, None),
    ],
)
def test_a_span_is_what_is_valid_around_the_entry(rule, n, expected):
    assert sizes_of(rule, n).get("n") == expected


@pytest.mark.parametrize("problem", [KeyError("n"), ZeroDivisionError(), TypeError("x")])
def test_a_rule_that_raises_shows_nothing(problem):
    def rule(workload: Workload) -> bool:
        if workload.size("n") != 96:
            raise problem
        return True

    assert set(sizes_of(rule)) == {"m"}


def test_a_kernel_that_is_not_known_has_no_sizes():
    assert valid_sizes(None, H200, {"n": 96}, CONFIG) == {}


@settings(max_examples=40)
@given(
    st.integers(1, 5000), st.integers(1, 5000), st.integers(12, 31), st.sampled_from([1, 2, 8, 16])
)
def test_spans_hold_together(n, m, octaves, multiple):
    """A limit of the product is kept by all sizes that the spans hold."""
    n, m = n * multiple, m * multiple

    def rule(w: Workload) -> bool:
        return w.size("n") * w.size("m") <= 2**octaves and w.size("n") % multiple == 0

    found = sizes_of(rule, n, m)
    if not rule(Workload.of(n=n, m=m)):
        assert found == {}
        return
    rng = random.Random(n)
    own = Workload.of(n=n, m=m)
    for _ in range(50):
        drawn = own.with_dims(**{name: draw(rng, span) for name, span in found.items()})
        assert rule(drawn)
    assert all(own.size(name) in span for name, span in found.items())


@pytest.mark.parametrize("n", [1, 5, 96, 4000])
def test_a_dim_that_a_limit_does_not_name_keeps_its_sizes(n):
    limited = Dims(n=int, m=2**20, k=2**20)

    class Limited(Sized):
        dims = limited

    kernel = Limited(lambda w: w.size("m") <= w.size("k"))
    found = valid_sizes(kernel, H200, {"n": n, "m": 96, "k": 128}, CONFIG)
    assert found["n"] == Span(1, TOP)
    assert found["m"].high <= found["k"].low


def test_few_tokens_have_the_configs_of_many():
    """Of tokens, experts and experts per token, only the last two limit each other."""
    kernel = load("moe_matmul")
    sizes = {"tokens": 4096, "experts": 128, "top_k": 8, "hidden": 2048, "intermediate": 768}
    key = {**sizes, "gemm": "down", "dtype": "bfloat16"}
    config = kernel.default_config(Workload.from_mapping(key), H200)
    assert valid_sizes(kernel, H200, key, config)["tokens"].low == 1


def draw(rng: random.Random, span: Span) -> int:
    steps = (span.high - span.low) // span.multiple
    return span.low + rng.choice([0, steps, rng.randint(0, steps)]) * span.multiple


#: Entries of built-in families, the free dim, and its last size that is asked.
CASES = [
    ("matmul", {"M": 1000, "N": 4096, "K": 4096, "dtype": "bfloat16"}, "M", 3000),
    ("matmul", {"M": 256, "N": 256, "K": 4096, "dtype": "bfloat16"}, "K", 9000),
    ("matmul", {"M": 1000, "N": 1003, "K": 997, "dtype": "float16"}, "N", 3000),
    ("softmax", {"rows": 512, "cols": 1000, "dtype": "float32"}, "cols", 40000),
    ("layer_norm", {"rows": 4096, "cols": 768, "dtype": "float16"}, "rows", 9000),
    ("rms_norm", {"rows": 4096, "cols": 4096, "dtype": "float16"}, "cols", 20000),
]


@pytest.mark.parametrize(("name", "key", "dim", "last"), CASES)
def test_spans_are_those_of_the_declaration_at_every_integer(name, key, dim, last):
    kernel, workload = load(name), Workload.from_mapping(key)
    configs = kernel.space(workload).bind(workload, H200).sample(random.Random(1), 3)
    spans = [valid_sizes(kernel, H200, key, config).get(dim) for config in configs]
    for size in range(1, last):
        near = workload.with_dims(**{dim: size})
        bound = kernel.space(near).bind(near, H200)
        for config, span in zip(configs, spans, strict=True):
            valid = bound.why_invalid(config) is None
            assert valid == (span is not None and size in span), (config, span, size)
