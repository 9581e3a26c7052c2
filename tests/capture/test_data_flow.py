"""What the TTIR of a compiled launch shows of scalar arguments."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from search_spaces.kernel import Launch
from tuner.capturing.data_flow import free_scalars
from workers.compiling.absent_target import use_target
from workers.compiling.gpu import compile_launch

SOURCE = """import triton
import triton.language as tl

@triton.jit(noinline=True)
def outside(value):
    return value * 2

@triton.jit
def inside(value, factor):
    return value * factor

@triton.jit
def kernel(x, index, out, {scalars}, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
{body}
    tl.store(out + at, value)
"""
SCALARS = {"a": 3, "b": 0.75}
_names = itertools.count()


class Lowered:
    """A kernel of some lines: its TTIR, and the addresses and masks of a run in the interpreter."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.memory = torch.zeros(3, 4096)
        self.index = torch.zeros(4096, dtype=torch.int32)

    def ttir(self, **options):
        x, index = torch.empty(64, device="meta"), self.index.to("meta")
        given = {"BLOCK": 64, **options}
        launch = Launch(self.kernel, (1,), (x, index, x, *SCALARS.values()), given)
        with use_target("cuda:90") as driver:
            return compile_launch(launch, driver)[0].asm["ttir"]

    def trace(self, monkeypatch, **values):
        x, out = self.memory[0, 1024:], self.memory[1, 1024:]
        seen = []

        def record(name, mask_at):
            own = getattr(InterpreterBuilder, name)

            def access(builder, pointers, *rest):
                seen.append((name, pointers.data.tolist(), rest[mask_at].data.tolist()))
                return own(builder, pointers, *rest)

            monkeypatch.setattr(InterpreterBuilder, name, access)

        with monkeypatch.context() as monkeypatch:
            record("create_masked_load", 0)
            record("create_masked_store", 1)
            scalars = {**SCALARS, **values}
            InterpretedFunction(self.kernel.fn)[(1,)](x, self.index, out, *scalars.values(), 64)
        return seen


@pytest.fixture(scope="module")
def lower(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")

    def lowered(lines):
        body = "".join(f"    {line}\n" for line in lines)
        file = folder / f"kernel_{next(_names)}.py"
        file.write_text(SOURCE.format(scalars=", ".join(SCALARS), body=body))
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return Lowered(module.kernel)

    return lowered


@pytest.mark.parametrize(
    ("line", "free"),
    [
        ("value += a * b", "ab"),
        ("value = inside(value, b) + tl.rand(a, at)", "ab"),
        ("value = tl.where(a > 5, value, b)", "ab"),
        ("value += tl.sum(value * b, 0) + tl.max(value + a, 0)", "ab"),
        ("value += tl.cumsum(value * b, 0) + a", "ab"),
        ("value += tl.load(x + at, at < 9, b) + a", "ab"),
        ("value += tl.load(x + at + a) * b", "b"),
        ("value += tl.load(x + at, at < a) * b", "b"),
        ("tl.store(out + at, value * b, at < a)", "b"),
        ("tl.atomic_add(out + at, value * b, at < a)", "b"),
        ("tl.atomic_cas(index + at, at, at + a)", "b"),
        ("tl.device_assert(b < 4)", "a"),
        ("tl.device_print('b', b)", "a"),
        ("value += outside(b)", "a"),
        ("value += tl.load(x + tl.load(index + at)) * b", "ab"),
        ("tl.store(index + at, at + a); value += tl.load(x + tl.load(index + at)) * b", "b"),
        ("tl.store(out + at, at + a); value += tl.load(x + tl.load(index + at)) * b", "ab"),
        ("tl.store(tl.where(at < a, x + at, out + at), b)", "b"),
    ],
)
def test_a_scalar_is_free_where_it_reaches_only_data(lower, line, free):
    assert free_scalars(lower(line.split("; ")).ttir(debug="assert" in line)) == {*free}


@pytest.mark.parametrize(
    ("lines", "free"),
    [
        (["for i in range(0, a):", "    value += b * i"], "b"),
        (["for i in range(0, 8):", "    value = value * b + a"], "ab"),
        (["for i in range(0, 8):", "    value += tl.load(x + at + i * 8) * b + a"], "ab"),
        (
            ["step = 8", "for i in range(0, 8):", "    value += tl.load(x + at + step) * b",
             "    step += a"],
            "b",
        ),
        (["if a > 2:", "    value += tl.load(x + at + 64) * b"], "b"),
        (["if tl.sum(value, 0) > 2:", "    value += tl.load(x + at + 64) * b + a"], "ab"),
        (["size = tl.sum(value, 0)", "while size < b:", "    size = size * 2 + 1",
          "    value += a"], "a"),
        (["size = tl.sum(value, 0)", "while size < 9:", "    size = size * 2 + b",
          "    value += a"], "a"),
        (["if a > 2:", "    return", "value *= b"], "b"),
    ],
)  # fmt: skip
def test_loops_and_branches_are_followed(lower, lines, free):
    assert free_scalars(lower(lines).ttir()) == {*free}


def test_a_text_that_is_no_ttir_frees_nothing():
    for text in ("", "module {", "tt.func public @k(", "tt.func public @k(%a: i32) {\n %b = ??"):
        assert free_scalars(text) <= {"a"}


_expression = st.recursive(
    st.sampled_from(["value", "a", "b", "at", "i"]),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+*-"), inner),
    max_leaves=4,
)
_line = st.one_of(
    st.builds("value += {}".format, _expression),
    st.builds("value += tl.where({} > 2, value, 1.0)".format, _expression),
    st.builds("value += tl.load(x + at, at < {}, 0.0)".format, _expression),
    st.builds("value += tl.load(x + at + {} % 64)".format, st.sampled_from(["a", "i"])),
)
_block = st.one_of(
    st.just([]),
    st.builds(lambda end: [f"for i in range(0, {end}):"], st.sampled_from(["4", "a", "a + 1"])),
    st.builds(lambda left: [f"if {left} > 2:"], st.sampled_from(["a", "b", "i", "a * b"])),
)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(block=_block, lines=st.lists(_line, min_size=1, max_size=3))
def test_a_free_scalar_leaves_all_addresses_and_masks_as_they_are(lower, monkeypatch, block, lines):
    text = ["i = at * 0 + 1" if not block else "i = 1", *block]
    kernel = lower([*text, *(f"    {line}" if block else line for line in lines)])
    free = free_scalars(kernel.ttir())
    first = kernel.trace(monkeypatch)
    for name, other in (("a", 5), ("a", 0), ("b", -2.5)):
        if name in free:
            assert kernel.trace(monkeypatch, **{name: other}) == first
