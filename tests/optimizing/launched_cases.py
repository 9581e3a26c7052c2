"""`tuner.optimize` on a library's Triton kernels, interpreted; `test_optimizing.py` runs it."""

from __future__ import annotations

import importlib
import os
import sys
import time
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import triton
from operator_calls import write_defaults
from table_documents import add_task, outcome
from torch.nn import functional

import tuner
from results_db import Store
from search_spaces.recorded.model_calls import read_calls
from search_spaces.records import Device, Toolchain, Workload
from search_spaces.registry import load
from tuner import runtime
from tuner.api import TuneResult
from tuner.api.databases import CallDatabase
from tuner.api.stored_results import stored_results
from tuner.base.log_ratio import LogRatio
from tuner.cli.programs import hooked_environment
from tuner.ops.operator import OPERATORS
from tuner.ops.replacing import Replacing
from tuner.optimizing.call_times import StepRecord
from tuner.optimizing.candidate_tables import tune_calls
from tuner.optimizing.optimization import compare_step, list_ways, try_tables
from tuner.optimizing.program import Program
from tuner.optimizing.program_record import record_program
from tuner.optimizing.step_comparison import PLAIN, TODAY
from tuner.optimizing.step_record import record_step
from tuner.optimizing.worthwhile_calls import rank_calls
from tuner.tables.results import kernel_facts
from tuner.tables.text import text_of

DEVICE = "NVIDIA Test"
NAME = "launched_library"
#: The library chooses the first config, since its benchmark finds all equal.
LIBRARY = """
import collections

import torch
import triton
import triton.language as tl


def bench(call, quantiles):
    call()
    return [1.0, 1.0, 1.0]


@triton.autotune([triton.Config({"BLOCK": b}) for b in BLOCKS], key=["n"], do_bench=bench)
@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


@triton.jit
def first(pointers, out):
    tl.store(out, tl.load(pointers[0]))


Pointers = collections.namedtuple("Pointers", ["x", "y"])
blocks = []


def launch(n=256, factor=2.0):
    x, out = torch.randn(n), torch.empty(n)

    def grid(meta):
        blocks.append(meta["BLOCK"])
        return (triton.cdiv(n, meta["BLOCK"]),)

    scale[grid](x, out, n, factor)
    assert torch.equal(out, x * factor)
"""
SLOW, FAST = "(16, 256)", "(256, 16)"


@pytest.fixture(autouse=True)
def own_tables(monkeypatch):
    monkeypatch.setenv("TUNER_TABLES", "")
    monkeypatch.setenv("TUNER_DEVICE", DEVICE)
    yield
    for application in runtime.applications():
        application.remove()
    runtime.clear()
    for operator in OPERATORS.values():
        operator.forget()


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Makes the library, which chooses the first of these blocks."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(blocks=SLOW):
        (tmp_path / f"{NAME}.py").write_text(f"BLOCKS = {blocks}\n{LIBRARY}")
        importlib.invalidate_caches()
        return importlib.import_module(NAME)

    yield load
    sys.modules.pop(NAME, None)


def plant(folder, call, block):
    """A table that says this block is the fastest of a recorded call."""
    folder.mkdir(exist_ok=True)
    kernel = tuner.load_kernel(call.kernel)
    entry = runtime.Entry(
        dict(call.dims), {"BLOCK": block, "num_warps": 4}, speedup_over_default=2.0
    )
    table = runtime.Table(
        kernel.name, "", runtime.current_device(), {"triton": triton.__version__}, (entry,),
        provenance=kernel_facts(kernel), launch_hash="aa", kernel_hashes=kernel.kernel_hashes(),
    )  # fmt: skip
    (folder / "planted.json").write_text(text_of(table))


def find(record, name):
    (call,) = [each for each in record.calls if each.name == name]
    return call


def test_a_step_of_an_operator_and_a_kernel_of_a_library(tmp_path, library):
    module, x = library(), torch.randn(4, 32)
    seen = iter(range(1000))

    def step():
        functional.softmax(x, -1)
        for n in (256, 256, 96):
            module.launch(n, factor=float(next(seen)))  # which is free

    record = record_step(step, tmp_path, Replacing())
    found = [(each.name, each.place, each.dims.get("n"), each.count) for each in record.calls]
    place = f"{NAME}:scale"
    assert sorted(found, key=str) == [
        (place, place, 256, 2), (place, place, 96, 1), ("softmax", "", None, 1)
    ]  # fmt: skip
    assert all(each.seconds > 0 and not each.known for each in record.calls)
    assert [each.kernel for each in record.operators] == ["softmax"]
    ranked = [each.name for each, _ in rank_calls(record)]
    assert ranked.count(place) == 2  # as each of them is more than 0.1 % of the step
    assert all(tuner.load_kernel(e.kernel).place == place for e in record.calls if e.place)


def test_what_a_table_serves_is_known(tmp_path, library):
    module = library()
    record = partial(record_step, module.launch, tmp_path, Replacing())
    plant(tmp_path, find(record(), f"{NAME}:scale"), 256)
    call = find(record(), f"{NAME}:scale")
    assert (call.known, call.gain, call.reason) == (True, 2.0, "an entry for this call")
    assert rank_calls(StepRecord(1.0, (call,))) == []
    other = record_step(partial(module.launch, 96), tmp_path, Replacing())
    assert not find(other, f"{NAME}:scale").known


def compare(step, tables):
    return [
        partial(compare_step, step, tables, operators=each, long_s=1.0)
        for each in (Replacing(), None)
    ]


@pytest.mark.parametrize(("blocks", "block", "ships"), [(SLOW, 256, True), (FAST, 16, False)])
def test_a_table_ships_only_if_the_step_is_surely_faster(tmp_path, library, blocks, block, ships):
    module, tables = library(blocks), tmp_path / "tables"
    record = record_step(module.launch, tables, Replacing())
    plant(tmp_path / "new", find(record, f"{NAME}:scale"), block)
    module.blocks.clear()
    found = try_tables(compare(module.launch, tables), record, [], tmp_path / "new", tables)
    assert {*module.blocks} == {16, 256}  # ran with the table, and without
    assert found.comparison.ships is ships
    assert [path.name for path in found.written] == (["planted.json"] if ships else [])
    assert (found.comparison.over_today.value < 0) is ships
    module.launch()
    assert module.blocks[-1] == 256
    assert len(runtime.applications()) == ships
    assert ("no table was written" in f"{found}") is not ships


def test_where_operators_make_a_step_slower_a_kernel_ships_without_them(tmp_path, library):
    module, tables, x = library(), tmp_path / "tables", torch.randn(32, 32)
    tables.mkdir()
    dims = {"rows": 32, "cols": 32, "dtype": "float32"}
    slow = partial(write_defaults, kernel=load("softmax"), workloads=[Workload.from_mapping(dims)])
    slow(tables, device=DEVICE, baselines={"eager": 9.0}, implementation="tuned")

    def step():
        functional.softmax(x, -1)
        module.launch()

    record = record_step(step, tables, Replacing())
    assert (len(record.operators), len(record.calls)) == (1, 2)
    new = tmp_path / "new"
    plant(new, find(record, f"{NAME}:scale"), 256)
    slow(new, device=DEVICE, baselines={"eager": 8.0}, implementation="tuned")
    found = try_tables(compare(step, tables), record, [], new, tables)
    assert (found.comparison.ships, found.operators) == (True, False)
    assert [path.name for path in found.written] == ["planted.json"]
    assert f'run the step in `with tuner.applied("{tables}"):`' in f"{found}"


def test_what_ships_again_takes_the_place_of_what_shipped(tmp_path, library):
    module, tables = library(), tmp_path / "tables"
    call = find(record_step(module.launch, tables, Replacing()), f"{NAME}:scale")
    for block in (256, 16):
        plant(tables, call, block)
        tuner.optimizing.optimization.turn_on(tables)
        module.launch()
        assert module.blocks[-1] == block
    assert len(runtime.applications()) == 1


@dataclass
class Measured:
    """A session whose workers have a card: what it tells is read from a database, as a session
    reads it."""

    folder: object
    asked: list

    def tune(self, spec, workload, *, budget):
        kernel = tuner.load_kernel(spec)
        self.asked.append((workload["n"], budget["search"]))
        url = f"sqlite:///{self.folder}/{len(self.asked)}.db"
        slow, fast = ({"BLOCK": block, "num_warps": 4, "num_stages": 3} for block in (16, 256))
        # At 96 nothing is surely better than the library's config.
        ratio = LogRatio(0.4, 0.39, 0.41) if workload["n"] == 256 else LogRatio(0.1, -0.1, 0.2)
        chosen = outcome(winner=fast, tie_set=(), default=slow, log_ratio=ratio)
        with Store.open(url) as store:
            run = store.begin_run("tune", "ff", 0, {}, {}).run_id
            add_task(
                store, run, workload, kernel=kernel.name, selection=chosen,
                device=Device("cuda", DEVICE, "cuda:90", 132, 1 << 37, 1 << 17),
                toolchain=Toolchain(triton=triton.__version__),
                launch_hash=kernel.launch_hash(), kernel_hashes=kernel.kernel_hashes(),
            )  # fmt: skip
        (result,) = stored_results(CallDatabase(url), run, [workload], kernel)
        assert isinstance(result, TuneResult)
        return result


def test_a_tuned_call_becomes_a_table_from_which_its_kernel_is_launched(tmp_path, library):
    module, tables, made = library(), tmp_path / "tables", tmp_path / "made"
    made.mkdir()

    def step():
        for n in (256, 256, 256, 96):
            module.launch(n)

    record = record_step(step, tables, Replacing())
    session = Measured(tmp_path, [])
    tuned = tune_calls(session, rank_calls(record), time.monotonic() + 60, made)
    assert sorted(n for n, _ in session.asked) == [96, 256]
    assert all(0 < search_s <= 60 for _, search_s in session.asked)
    notes = {each.call.dims["n"]: each.note for each in tuned}
    assert notes == {256: "", 96: "not surely faster than the library's config"}
    (gain,) = [each.gain for each in tuned if not each.note]
    assert gain == pytest.approx(15.0 / 10.0, rel=0.01)
    found = try_tables(compare(step, tables), record, tuned, made, tables)
    assert found.comparison.ships
    assert found.predicted > 0
    (path,) = found.written
    assert path.name.startswith("scale-")
    assert f"TUNER_APPLY={tables}" in f"{found}"
    module.blocks.clear()
    step()
    assert module.blocks == [256] * 4  # a config of the library's own serves other sizes too
    again = record_step(step, tables, Replacing())
    assert {each.dims["n"]: each.known for each in again.calls} == {256: True, 96: False}


def test_what_cannot_be_captured_is_said_in_one_line_and_skipped(tmp_path, library):
    module = library()

    def step():
        module.launch()
        module.first[(1,)](module.Pointers(torch.ones(4), torch.ones(4)), torch.empty(1))

    result = tuner.optimize(step, budget="20s", tables=tmp_path / "tables")
    call = find(result.record, f"{NAME}:first")
    assert (call.kernel, call.count, call.known) == ("", 1, True)
    assert "\n" not in call.reason
    (line,) = [each for each in f"{result}".splitlines() if each.startswith(f"{NAME}:first")]
    assert "cannot be tuned: its argument pointers is a Pointers, which has no record" in line
    assert "not measured" in line
    assert [each.call.name for each in result.tuned] == [f"{NAME}:scale"]
    assert "no device" in result.tuned[0].note
    assert (result.written, result.patched) == ((), ())
    assert read_calls(tmp_path / "tables" / "calls" / "calls.json") == []


PROGRAM = f"""
import torch, {NAME}
for n in (96, 256, 256):
    {NAME}.launch(n)
torch.nn.functional.softmax(torch.randn(4, 32), -1)
print({NAME}.blocks[-1])
"""


def test_a_program_is_recorded_and_run_with_its_kernels(tmp_path, library):
    library()
    paths = os.pathsep.join([f"{tmp_path}", hooked_environment()["PYTHONPATH"]])
    environment = {**hooked_environment(), "PYTHONPATH": paths}
    program = Program([sys.executable, "-c", PROGRAM], environment)
    tables = tmp_path / "tables"
    ways = list_ways(program, tables)
    first, record = record_program(ways[PLAIN], ways[TODAY], tables)
    found = sorted((each.dims["n"], each.count) for each in record.calls if each.place)
    assert found == [(96, 1), (256, 2)]
    assert [each.kernel for each in record.operators] == ["softmax"]
    assert record.seconds == pytest.approx(sum(each.seconds for each in record.calls))
    (call,) = [each for each in record.calls if each.dims.get("n") == 256]
    plant(tables, call, 256)
    plain, again = record_program(ways[PLAIN], ways[TODAY], tables)
    assert first.number == plain.number == 16
    known = {each.dims["n"]: each.known for each in again.calls if each.place}
    assert known == {256: True, 96: False}
    for operators in (True, False):
        used = list_ways(program, tables, operators=operators)[TODAY]
        assert ("TUNER_OPERATORS" in used.environment) is operators
        assert used.run().number == 256
