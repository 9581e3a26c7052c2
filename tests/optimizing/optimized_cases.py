"""`tuner.optimize` on kernels in Triton's interpreter; `test_optimizing.py` runs this file."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from operator_calls import write_defaults
from torch.nn import functional

import tuner
from search_spaces import registry
from search_spaces.recorded.model_calls import read_calls
from search_spaces.records import Workload
from tuner import ops, runtime
from tuner.cli.programs import hooked_environment
from tuner.ops.call_counts import Scope
from tuner.ops.operator import OPERATORS
from tuner.ops.patching import find_models
from tuner.ops.replacing import Replacing
from tuner.optimizing.optimization import compare_step, list_ways, try_tables, turn_on
from tuner.optimizing.program import Program
from tuner.optimizing.program_record import record_program
from tuner.optimizing.step_comparison import PLAIN, TODAY, is_surely_faster
from tuner.optimizing.step_record import Side, find_operators, record_step

DEVICE = "NVIDIA Test"
X, W = torch.randn(4, 32), torch.ones(32)
SOFTMAX = {"rows": 4, "cols": 32, "dtype": "float32"}


def step():
    """A norm and three softmaxes in torch's functions, and one softmax of ours."""
    y = functional.rms_norm(X, (32,), W, 1e-6)
    for _ in range(2):
        y = functional.softmax(y, -1)
    return ops.softmax(y.double()), ops.softmax(y)


@pytest.fixture(autouse=True)
def own_tables(monkeypatch):
    monkeypatch.setenv("TUNER_TABLES", "")
    monkeypatch.setenv("TUNER_DEVICE", DEVICE)
    yield
    runtime.clear()
    for operator in OPERATORS.values():
        operator.forget()


def plant(folder, eager=9.0, fastest="tuned"):
    """A table that says the interpreted kernel is the fastest, or torch's function."""
    folder.mkdir(exist_ok=True)
    workload, fields = Workload.from_mapping(SOFTMAX), {"baselines": {"eager": eager}}
    fields["implementation"] = fastest
    write_defaults(folder, registry.load("softmax"), [workload], DEVICE, **fields)


@pytest.mark.parametrize("make", [lambda step: step, torch.compile(backend="eager")])
def test_a_step_is_recorded_by_kind(tmp_path, make):
    plant(tmp_path)
    before = ops.report()
    found = {each.kernel: each for each in record_step(make(step), tmp_path, Replacing()).calls}
    assert {name: each.count for name, each in found.items()} == {"softmax": 3, "rms_norm": 1}
    assert dict(found["softmax"].dims) == SOFTMAX
    assert [(found[n].known, found[n].gain) for n in found if n == "softmax"] == [(True, 9.0)]
    assert (found["rms_norm"].known, found["rms_norm"].gain) == (False, 1.0)
    assert all(each.seconds > 0 for each in found.values())
    assert ops.report() == before


def test_a_planted_worse_table_is_not_shipped(tmp_path):
    plant(tmp_path / "new")
    tables, way = tmp_path / "tables", Replacing()
    record = record_step(step, tmp_path, way)
    ways = [partial(compare_step, step, tables, operators=each, long_s=1.0) for each in (way, None)]
    result = try_tables(ways, record, [], tmp_path / "new", tables)
    assert not result.comparison.ships
    assert result.comparison.over_today.low > 0
    assert not result.written
    assert not tables.exists()
    assert os.environ["TUNER_TABLES"] == ""
    assert "no table was written: new ones are not surely faster" in f"{result}"


def test_a_better_table_is_shipped_and_in_use(tmp_path):
    tables = tmp_path / "tables"
    plant(tables)
    plant(tmp_path / "new", 0.1, "eager")
    way = Replacing()
    step = partial(ops.softmax, X)
    ways = [partial(compare_step, step, tables, operators=each, long_s=1.0) for each in (way, None)]
    record = record_step(lambda: ops.softmax(X), tables, way)
    result = try_tables(ways, record, [], tmp_path / "new", tables)
    assert result.comparison.ships
    assert [path.read_bytes() for path in result.written] == [
        (tmp_path / "new" / "softmax.json").read_bytes()
    ]
    assert f"set TUNER_TABLES={tables}" in f"{result}"
    ops.softmax(X)
    assert [(use.implementation, use.reason) for use in ops.report()] == [
        ("eager", "fastest in its entry")
    ]


PROGRAM = """
import torch
from torch.nn import functional
x = torch.randn(4, 32)
torch.compile(functional.softmax)(x, -1) if "TORCH_COMPILE_DISABLE" in os.environ else None
functional.softmax(x, -1)
from tuner import ops
ops.softmax(x.double())
print(" ".join(each.implementation for each in ops.report()))
"""


def test_a_program_runs_operators_by_the_tables_in_place_of_torchs_functions(tmp_path):
    plant(tmp_path)
    command = [sys.executable, "-c", f"import os{PROGRAM}"]
    ways = list_ways(Program(command, hooked_environment()), tmp_path)
    outcome, record = record_program(ways[PLAIN], ways[TODAY], tmp_path)
    assert outcome.last_line == "eager"
    (call,) = record.calls
    assert (call.kernel, dict(call.dims), call.count) == ("softmax", SOFTMAX, 2)
    assert (call.known, call.gain) == (True, 9.0)
    assert record.seconds == call.seconds > 0
    assert sorted(ways[TODAY].run().last_line.split()) == ["eager", "tuned"]
    apply = ["-m", "tuner", "apply", "--operators", "--tables", tmp_path, "--", *command]
    done = subprocess.run([sys.executable, *apply], capture_output=True, text=True, check=True)
    assert (sorted(done.stdout.split()), done.stderr) == (["eager", "tuned"], "")


MODELS = """
import torch
from torch.nn import functional
x, model, other = torch.randn(4, 32), torch.nn.LayerNorm(32), torch.nn.Sequential(torch.nn.GELU())
plain = type(model)
with torch.device("cpu"), torch.inference_mode():
    model(x)
functional.softmax(x, -1)
torch.compile(other, backend="aot_eager", fullgraph=True)(model(x)).sum().backward()
from tuner import ops
print(type(model) is plain, *sorted({each.operator for each in ops.report()}))
"""


def test_a_program_runs_operators_in_its_models(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", MODELS]
    ways = list_ways(Program(command, hooked_environment()), tmp_path)
    assert ways[PLAIN].run().last_line == "True"
    assert ways[TODAY].run().last_line == "False activation activation_backward layer_norm"


def test_what_ships_decides_in_this_process(tmp_path):
    ops.softmax(X)
    plant(tmp_path)
    turn_on(tmp_path)
    turn_on(tmp_path)
    ops.softmax(X)
    assert [use.implementation for use in ops.report()] == ["tuned"]
    assert os.environ["TUNER_TABLES"] == f"{tmp_path}"


def test_the_whole_without_a_device_that_is_timed(tmp_path):
    result = tuner.optimize(step, budget="30s", tables=tmp_path / "tables")
    assert {each.call.kernel for each in result.tuned} <= {"softmax", "rms_norm"}
    assert all("no device" in each.note for each in result.tuned)
    assert (result.comparison.ships, result.written) == (False, ())
    counts = {call.kernel: call.count for call in read_calls(tmp_path / "tables" / "calls")}
    assert counts == {"softmax": 3, "rms_norm": 1}
    text = f"{result}"
    for line in ("one step: ", "kernel ", "all else", "saving: 0.0% predicted", "calls.json"):
        assert line in text


class Model(torch.nn.Module):
    """Two norms of which one is named twice, and what operators do not compute."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.inner = torch.nn.Sequential(torch.nn.Linear(32, 32), self.norm)

    def forward(self, x):
        return self.norm(self.inner(x)).tanh()


def is_patched(model):
    return any(hasattr(type(each), "_tuner_patch") for each in model.modules())


@pytest.mark.parametrize("make", [lambda model: model, torch.compile(backend="eager")])
def test_models_of_a_step_are_patched(tmp_path, make):
    model, other, done = Model(), torch.nn.Linear(32, 32), ops.patch(mine := torch.nn.LayerNorm(32))
    assert done

    @make
    def step():
        return other(mine(model(X)))

    assert find_models(step) == [model]
    operators = find_operators(step)
    with Side(Scope(), operators).active():
        assert is_patched(model)
    assert not is_patched(model)
    (call,) = record_step(step, tmp_path, operators).calls
    assert (call.kernel, call.count) == ("layer_norm", 2 + 1)
    result = tuner.optimize(step, budget="5s", tables=tmp_path)
    assert is_patched(model) is is_surely_faster(result.comparison.measured)
    assert result.patched == (("Model",) if is_patched(model) else ())
    assert ("patched Model" in f"{result}") is is_patched(model)
    assert is_patched(mine)


def test_another_budget_is_refused(tmp_path):
    for budget in ("soon", 0, -1, None):
        with pytest.raises(tuner.TunerError, match=r"budget: .* is no"):
            tuner.optimize(step, budget=budget, tables=tmp_path)
