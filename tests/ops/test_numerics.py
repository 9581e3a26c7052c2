"""Operators under `batch_invariant` numerics."""

from __future__ import annotations

import json
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest
import torch
from operator_calls import CONFIG, DEVICE, write_table
from tiny_models import call, model_of
from torch import nn

from search_spaces.errors import TunerError
from tuner import ops, runtime
from tuner.ops.choosing import choose
from tuner.ops.operator import OPERATORS, version
from tuner.ops.problem import Problem

OTHER = {**CONFIG, "num_warps": 8}


def problem(rows):
    dims = {"rows": rows, "cols": 512, "dtype": "bfloat16"}
    return Problem("softmax", dims, {}, {"out": (rows, 512)})


@pytest.fixture
def both(tmp_path, monkeypatch):
    """A plain table, and a batch-invariant one for 1 to 4,096 rows, which is listed first."""
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    monkeypatch.setenv("TUNER_DEVICE", DEVICE)
    sizes = {"rows": runtime.Span(1, 65536), "cols": runtime.Span(1, 1024)}
    key = {"rows": 1024, "cols": 512, "dtype": "bfloat16"}
    kept = runtime.Entry(key, OTHER, sizes=sizes, serves={"rows": runtime.Span(1, 4096)})
    write_table(tmp_path, "softmax", [kept], DEVICE)
    document = json.loads((tmp_path / "softmax.json").read_text())
    document["provenance"]["numerics"] = "batch_invariant"
    (tmp_path / "softmax@a.json").write_text(json.dumps(document))
    write_table(tmp_path, "softmax", [replace(kept, config=CONFIG)], DEVICE)
    (tmp_path / "softmax.json").rename(tmp_path / "softmax@b.json")
    runtime.clear()
    for operator in OPERATORS.values():
        operator.forget()
    yield
    runtime.clear()


def test_only_a_batch_invariant_table_serves(both):
    assert choose(problem(100)).config == CONFIG
    with ops.numerics("batch_invariant"):
        assert choose(problem(100)).config == OTHER
        with ops.numerics("any"):
            assert choose(problem(100)).config == CONFIG
        with pytest.warns(UserWarning, match="no range of a batch-invariant table holds softmax"):
            assert choose(problem(5000)).implementation == "eager"
    assert choose(problem(100)).config == CONFIG


@pytest.mark.filterwarnings("ignore:no range of a batch-invariant table")
def test_decisions_are_kept_apart_and_come_back(both):
    x = torch.randn(4, 8)
    ops.softmax(x, -1)
    first, calls = version(), [use.calls for use in ops.report()]
    for expected in (1, 2):
        with ops.numerics("batch_invariant"):
            ops.softmax(x, -1)
            assert [use.calls for use in ops.report()] == [expected]
            assert version() != first
    assert ([use.calls for use in ops.report()], version()) == (calls, first)


def test_an_error_inside_ends_it_too(both):
    with pytest.raises(ZeroDivisionError), ops.numerics("batch_invariant"):
        raise ZeroDivisionError
    assert choose(problem(100)).config == CONFIG


class Reports(nn.Module):
    """Says what config a call would run."""

    def forward(self, x):
        if x is None:
            raise ZeroDivisionError
        return x, choose(problem(100)).config


def test_a_patched_model_asks_for_it_in_each_call(both):
    model = Reports()
    ops.patch(model, numerics="batch_invariant")
    ops.patch(model, numerics="batch_invariant")
    assert model(1) == (1, OTHER)
    with pytest.raises(ZeroDivisionError):
        model(None)
    assert choose(problem(100)).config == CONFIG
    assert pickle.loads(pickle.dumps(model))(1) == (1, OTHER)
    ops.unpatch(model)
    assert model(1) == (1, CONFIG)


def test_a_graph_is_traced_anew_under_other_numerics(both, compiled):
    compile_it, graphs = compiled
    called = compile_it(lambda x: ops.softmax(x, -1))
    x = torch.randn(4, 8)
    called(x)
    called(x)
    assert len(graphs) == 1
    with ops.numerics("batch_invariant"):
        called(x)
    assert len(graphs) == 2


def test_another_word_is_refused(both):
    with pytest.raises(TunerError, match="numerics is 'exact'"), ops.numerics("exact"):
        pass
    with pytest.raises(TunerError, match="numerics is 'exact'"):
        ops.patch(nn.Linear(2, 2), numerics="exact")


@pytest.mark.filterwarnings("ignore:no range of a batch-invariant table")
@pytest.mark.parametrize("name", ["llama", "phi3", "qwen3"])
def test_the_first_call_of_a_model_has_the_bits_of_the_next(name):
    model, inputs = model_of(name)
    ops.patch(model, numerics="batch_invariant")
    with torch.no_grad():
        first, *others = (call(model, inputs) for _ in range(3))
    assert all(torch.equal(first, each) for each in others)


def test_products_that_stay_torchs_are_named(both):
    x = torch.randn(2, 3, 3)
    with ops.numerics("batch_invariant"):
        with pytest.warns(UserWarning, match="holds softmax on cpu: torch's function runs"):
            x.softmax(-1)
        with pytest.warns(UserWarning, match=r"holds torch\.bmm: torch's function runs"):
            torch.bmm(x, x)
        with pytest.warns(UserWarning, match=r"holds torch\.einsum"):
            torch.einsum("bij,bjk->bik", x, x)
        with pytest.warns(UserWarning, match="holds matmul of a vector, of batches"):
            x @ x
        with pytest.warns(UserWarning, match="holds attention with a mask"):
            nn.functional.scaled_dot_product_attention(x, x, x, torch.zeros(3, 3))


class Waits(Reports):
    """Says it after another call has begun, or has ended."""

    def forward(self, wait):
        wait()
        return super().forward(1)


def test_calls_of_several_models_at_once_all_get_it(both):
    """The first call ends while the second one runs."""
    first, second = Waits(), Waits()
    for model in (first, second):
        ops.patch(model, numerics="batch_invariant")
    began = threading.Event()

    def let_first_end():
        began.set()
        wait([one])

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first, began.wait)
        while choose(problem(100)).config != OTHER:
            time.sleep(0.001)
        two = pool.submit(second, let_first_end)
        assert [each.result()[1] for each in (one, two)] == [OTHER, OTHER]
    assert choose(problem(100)).config == CONFIG


def test_no_baseline_stands_in_for_a_config_that_failed(both, tmp_path):
    path = tmp_path / "softmax@a.json"
    document = json.loads(path.read_text())
    document["entries"][0]["baselines"] = {"vendor": 1.1, "eager": 2.0}
    path.write_text(json.dumps(document))
    runtime.clear()
    with ops.numerics("batch_invariant"):
        assert choose(problem(100)).implementation == "tuned"
        with pytest.warns(UserWarning, match="torch's function runs"):
            assert choose(problem(100), {"tuned": "it failed"}).implementation == "eager"
