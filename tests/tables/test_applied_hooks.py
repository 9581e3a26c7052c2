"""Launches from tables of kernels whose configs have pre_hooks: the right hook, or the library's
own launch. All results are written into memory that is not zero."""

from __future__ import annotations

import pytest
from applied_library import NAME, key

import tuner

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

MODULE = """
PRUNED = []


def zeroing(name):
    return lambda args: args[name].zero_()


def zero(args, name):
    args[name].zero_()


def noting(args):
    args["out"].zero_()


def in_a_list(pruner):
    # Triton 3.9 counts the configs; earlier versions take any iterable.
    return lambda *arguments, **named: list(pruner(*arguments, **named))


@in_a_list
def making(configs, named, *, out, **more):
    PRUNED.append((sorted(named), sorted(more)))
    for item in configs:
        parts = item.kwargs["PARTS"]
        yield triton.Config(
            {**item.kwargs, "EVEN": named["n"] % item.kwargs["BLOCK"] == 0},
            num_warps=item.num_warps,
            pre_hook=zeroing("out") if parts > 1 else None,
        )


@in_a_list
def giving(configs, named, **more):
    for item in configs:
        item.pre_hook = zeroing("out") if item.kwargs["PARTS"] > 1 else None
        yield item


def configs(make_hook=None):
    return [
        triton.Config({"BLOCK": b, "PARTS": p}, pre_hook=make_hook and make_hook(p))
        for b in (32, 64)
        for p in (2, 1)
    ]


def body(x, n, out, BLOCK: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr = False):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for row in range(8 // PARTS):
        of = x + (tl.program_id(1) * (8 // PARTS) + row) * n
        total += tl.load(of + at) if EVEN else tl.load(of + at, at < n)
    if PARTS > 1:
        tl.atomic_add(out + at, total, at < n)
    else:
        tl.store(out + at, total, at < n)


def tuned(found, prune=None):
    by = {"early_config_prune": prune} if prune else None
    return triton.autotune(found, key=["n"], prune_configs_by=by, do_bench=bench)(triton.jit(body))


plain = triton.jit(body)
made = tuned(configs(), making)
given = tuned(configs(), giving)
closures = tuned(configs(lambda p: zeroing("out")))
partials = tuned(configs(lambda p: functools.partial(zero, name="out")))
different = tuned(configs(lambda p: zeroing("out") if p > 1 else noting))
"""


@pytest.fixture
def library(applied_library):
    applied_library.load(MODULE)
    return applied_library


def launched(library, name, n=100):
    x, out = torch.randn(8, n), torch.full((n,), 7.0)
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]), meta["PARTS"])  # noqa: E731
    library.kernel(name)[grid](x, n, out=out)
    return torch.allclose(out, x.sum(0), atol=1e-5)


def use_of(library, name, config, n=100):
    """Whether two launches from a table of one config are right, and how often it was a hit."""
    path = library.table(name, (key(n), config), file=f"{name}{len(config)}{n}")
    with tuner.applied(path) as application:
        right = launched(library, name, n) and launched(library, name, n)
        return right, application.kernels[0].hits


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("n", [100, 128])
def test_a_config_that_the_pruner_makes_has_the_hook_that_it_gives(library, parts, n):
    config = {"BLOCK": 32, "PARTS": parts, "EVEN": n == 128, "num_warps": 4}
    assert use_of(library, "made", config, n) == (True, 2)
    # The pruner sees what Triton hands on: arguments by position, and keywords with the grid.
    assert library.kernel("plain").fn.__globals__["PRUNED"][-1] == (["n", "x"], ["grid", "warmup"])


def test_a_config_that_the_pruner_would_make_of_itself_has_a_hook(library):
    """As of a widened space: blocks of 16 are in no list."""
    config = {"BLOCK": 16, "PARTS": 4, "EVEN": False, "num_warps": 2}
    assert use_of(library, "made", config) == (True, 2)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"BLOCK": 32, "PARTS": 2, "EVEN": True}, "whose pre_hook is unknown"),
        ({"BLOCK": 32, "PARTS": 2, "EVEN": False, "maxnreg": 128}, "whose pre_hook is unknown"),
        ({"BLOCK": 32, "PARTS": 2}, "lacks EVEN"),
    ],
)
def test_a_config_that_the_pruner_does_not_make_is_refused_in_one_line(
    library, config, reason, caplog
):
    assert use_of(library, "made", config) == (True, 0)
    said = [each.getMessage() for each in caplog.records if reason in each.getMessage()]
    assert len(said) == 1
    assert "launching as the library does" in said[0]


def test_a_hook_that_the_pruner_adds_to_a_listed_config_is_called(library):
    for parts in (1, 2):
        assert use_of(library, "given", {"BLOCK": 32, "PARTS": parts}) == (True, 2)


@pytest.mark.parametrize("name", ["closures", "partials"])
def test_hooks_that_are_one_object_per_config_are_one_hook(library, name):
    assert use_of(library, name, {"BLOCK": 16, "PARTS": 4, "num_warps": 1}) == (True, 2)


def test_of_different_hooks_only_that_of_a_listed_config_is_known(library, caplog):
    assert use_of(library, "different", {"BLOCK": 64, "PARTS": 2}) == (True, 2)
    assert use_of(library, "different", {"BLOCK": 16, "PARTS": 2, "num_warps": 1}) == (True, 0)
    assert f"{NAME}:different" in caplog.text
    assert "whose pre_hook is unknown" in caplog.text
