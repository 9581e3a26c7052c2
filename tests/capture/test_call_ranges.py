"""Captured calls at other sizes: each is the call that would have been captured there."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
import triton
from capture_calls import H200, add, blocks, hashes_of, run_python
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tuner
from results_db import Store
from search_spaces.errors import KernelError, WorkloadError
from search_spaces.size_range import Range
from tuner import runtime
from tuner.tables.results import kernel_facts
from tuner.tables.text import text_of
from tuner.tables.valid_sizes import valid_sizes

PAGE = (Path(__file__).parents[2] / "docs" / "capture.md").read_text()


def cdiv(one, other):
    return -(-one // other)


def vector(kernels, n):
    add(kernels.tuned, n)


def computed(kernels, n):
    add(kernels.heuristics_alone, n)


def rows(hazards, n, n_cols=40, padding=8):
    x = torch.randn(n, n_cols + padding)[:, :n_cols]
    w, out = torch.randn(n_cols), torch.empty(n, n_cols)
    grid = lambda meta: (cdiv(n, meta["ROWS"]), cdiv(n_cols, meta["COLS"]))  # noqa: E731
    hazards.scaled_rows[grid](x, w, out, x.stride(0), n, n_cols)


def columns(hazards, n):
    rows(hazards, 12, n, 0)


def flat(hazards, n, n_cols=24):
    x = torch.randn(n * n_cols)
    hazards.flat_rows[blocks(n * n_cols)](x, torch.empty_like(x), n * n_cols, n, n_cols, BLOCK=64)


def doubled(hazards, n, tuple_grid=True):
    x = torch.randn(n, 40)
    grid = (n,) if tuple_grid else lambda meta: (n,)
    hazards.doubled_rows[grid](x, torch.empty_like(x), 40, BLOCK=64)


def persistent(hazards, n):
    grid = lambda meta: (min(6, cdiv(n, meta["BLOCK"])),)  # noqa: E731
    hazards.persistent[grid](torch.randn(n), torch.empty(n), n, BLOCK=32)


def scaled_blocks(hazards, n):
    count = cdiv(n, 32)
    tensors = torch.randn(n), torch.randn(n + 1), torch.randn(count), torch.empty(n)
    hazards.scaled_blocks[(count,)](*tensors, n, BLOCK=32)


def looked_up(hazards, n):
    """Every element of a table has a row that uses it, from 50 rows on."""
    table, index = torch.randn(50), (torch.arange(n) * 7 % 50).int()
    index[-1] = 49
    hazards.gathered_again[blocks(n)](table, index, torch.empty(n), n)


def captured_calls(launch, *sizes):
    with tuner.capture() as calls:
        for size in sizes:
            launch(size)
    return calls


def captured(launch, *sizes):
    calls = captured_calls(launch, *sizes)
    return calls[calls.names[0]]


#: What is launched, the size that is free, the sizes that are captured, and the largest one that is
#: asked for: the interpreter runs one program after the other, and some have one for each row.
CASES = {
    "tuned": (vector, "n", [100, 65], 160),
    "heuristics_alone": (computed, "n", [100, 301], 160),
    "scaled_rows over rows": (rows, "n_rows", [13, 30], 48),
    "scaled_rows over columns": (columns, "n_cols", [40, 71], 48),
    "flat_rows": (flat, "n_rows", [11, 29], 48),
    "doubled_rows over a dim": (doubled, "x[0]", [7, 19], 48),
    "scaled_rows over a dim": (columns, "w[0]", [40, 71], 48),
    "persistent": (persistent, "n", [100, 47], 160),
    "scaled_blocks": (scaled_blocks, "n", [64, 33, 150], 160),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_of_any_size_is_the_one_that_is_captured_there(kernels, hazards, case):
    launch, name, sizes, largest = CASES[case]
    launch = partial(launch, kernels if launch in (vector, computed) else hazards)
    kernel = captured(launch, *sizes).declare(ranges={name: (1, largest)})

    @settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(1, largest))
    def check(size):
        workload = kernel.workloads()[0].with_dims(**{name: size})
        genuine = captured(launch, size).declare()
        (other,) = genuine.workloads()
        made, found = kernel.call(workload), genuine.call(other)
        for each in ("arguments", "views", "keywords", "options"):
            assert getattr(made, each) == getattr(found, each)
        assert [(b.bytes, b.misalignment) for b in made.buffers] == [
            (b.bytes, b.misalignment) for b in found.buffers
        ]
        inputs = kernel.make_inputs(workload, 0, "cpu")
        tensors = {**inputs, **tuner_outputs(kernel, workload)}
        for config in kernel.space(workload).bind(workload, H200).enumerate():
            one = kernel.launches(workload, config, tensors)[-1]
            same = genuine.launches(other, config, tensors)[-1]
            assert (one.grid, one.kwargs) == (same.grid, same.kwargs)
            assert [type(each) for each in one.args] == [type(each) for each in same.args]
        results = kernel.reference(workload, inputs)
        expected = genuine.reference(other, inputs)
        assert results.keys() == expected.keys()
        assert all(torch.equal(results[key], expected[key]) for key in expected)

    check()


def tuner_outputs(kernel, workload):
    return {
        name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
        for name, spec in kernel.outputs(workload).items()
    }


def write_table(kernel, key, sizes, parts, folder):
    """A file of a table. sizes: the only free dim; parts: configs by the ends of what they serve.

    Every entry was tuned at the size above its low end.
    """
    ((dim, _),) = sizes.items()
    entries = tuple(
        runtime.Entry(
            key.with_dims(**{dim: low + 1}).as_dict(), config, sizes=sizes,
            serves={dim: runtime.Span(low, high)},
        )
        for (low, high), config in parts.items()
    )  # fmt: skip
    table = runtime.Table(
        kernel.name, "", runtime.current_device(), {"triton": triton.__version__}, entries,
        runtime.Rule("sizes"), provenance=kernel_facts(kernel), launch_hash="aa",
        kernel_hashes=kernel.kernel_hashes(),
    )  # fmt: skip
    (folder / "table.json").write_text(text_of(table))
    assert runtime.read(folder / "table.json").entries == entries
    return folder / "table.json"


@pytest.mark.parametrize("widen", [False, True])
def test_every_size_of_a_range_is_launched_from_its_table(hazards, tmp_path, widen):
    calls = captured(partial(columns, hazards), 40, 71)
    kernel = calls.declare(ranges={"n_cols": Range(3, 50)}, widen=widen)
    (key,) = {each.with_dims(n_cols=40) for each in kernel.workloads()}
    assert key.as_dict() == {
        "x": "float32[12,n_cols]", "w": "float32[n_cols]", "out": "float32[12,n_cols]",
        "stride": "1*n_cols", "n_rows": 12, "n_cols": 40,
    }  # fmt: skip
    config = kernel.default_config(key, H200)
    sizes = valid_sizes(kernel, H200, key.as_dict(), config)
    assert sizes == {"n_cols": runtime.Span(3, 50)}
    parts = [(3, 30, 2), (31, 50, 4)]
    configs = {(low, high): {**config, "ROWS": block} for low, high, block in parts}
    table = write_table(kernel, key, sizes, configs, tmp_path)
    with tuner.applied(table) as application:
        for at in range(3, 51):
            columns(hazards, at)
            assert hazards.scaled_rows.best_config.kwargs["ROWS"] == (2 if at < 31 else 4)
        (use,) = application.kernels
        assert (use.hits, use.misses) == (48, 0)
        # Other sizes are near, as of any call: a config of the library's own serves them.
        rows(hazards, 12, 40, 8)
        rows(hazards, 13, 40, 0)
        columns(hazards, 1)
    (use,) = application.kernels
    assert (use.hits, use.misses) == (50, 1)


def test_every_size_of_a_dim_is_launched_from_its_table(hazards, tmp_path):
    kernel = captured(partial(doubled, hazards), 7, 29).declare(
        ranges={"x[0]": (1, 50)}, space={"num_warps": [2, 8]}
    )
    key = kernel.workloads()[0]
    assert key.as_dict() == {
        "x[0]": 7, "x": "float32[x[0],40]", "out": "float32[x[0],40]", "n_cols": 40, "BLOCK": 64
    }  # fmt: skip
    config = kernel.default_config(key, H200)
    sizes = {"x[0]": runtime.Span(1, 50)}  # a widened config is right between the sizes run
    parts = {(low, high): {**config, "num_warps": warps}
             for low, high, warps in [(1, 30, 2), (31, 50, 8)]}  # fmt: skip
    with tuner.applied(write_table(kernel, key, sizes, parts, tmp_path)) as application:
        for at in range(1, 51):
            doubled(hazards, at)
            doubled(hazards, at, tuple_grid=False)
        assert [(use.hits, use.misses) for use in application.kernels] == [(100, 0)]
        doubled(hazards, 91)  # near, with a config that its caller does not choose
    assert [(use.hits, use.misses) for use in application.kernels] == [(100, 1)]


def test_integers_that_index_what_stays_are_those_of_the_calls(hazards):
    kernel = captured(partial(looked_up, hazards), 60, 300).declare(ranges={"n": (8, 500)})
    for size in (8, 60, 301, 500):
        workload = kernel.workloads()[0].with_dims(n=size)
        index = kernel.make_inputs(workload, 0, "cpu")["index"]
        assert len(index) == size
        nearest = (torch.arange(size) % (60 if size < 100 else 300) * 7 % 50).int()
        assert (index == nearest).sum() >= size - size // 60 - 1


def test_other_processes_make_the_same_calls(hazards, tmp_path):
    kernel = captured(partial(columns, hazards), 40, 71).declare(
        ranges={"n_cols": (1, 90)}, folder=tmp_path
    )
    workload = kernel.workloads()[0].with_dims(n_cols=33)
    again = tuner.load_kernel(kernel.spec)
    assert again.call(workload) == kernel.call(workload)
    assert hashes_of(again) == hashes_of(kernel)
    assert dict(again.ranges) == {"n_cols": Range(1, 90)}
    for wrong in (91, 0, True, "3"):
        with pytest.raises(WorkloadError, match=r"is outside of 1\.\.90"):
            kernel.check_workload(workload.with_dims(n_cols=wrong))
    with pytest.raises(WorkloadError, match="no such call"):
        kernel.check_workload(workload.with_dims(n_rows=13))


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"m": (1, 9)}, "ranges names m, which is no argument"),
        ({"scale": (1, 9)}, "ranges names scale, which is free"),
        ({"x": (1, 9)}, "ranges names x, which is no size"),
        ({"x[1]": (1, 9)}, "ranges names x[1], which is no argument and no dim of a tensor"),
        ({"BLOCK": (1, 9)}, "ranges names BLOCK, which is no size"),
        ({"n": (9, 1)}, "9..1 is empty: 9 is above 1"),
        ({"n": 9}, "ranges has n=9: no range"),
        ({"n": (0, 9)}, "0 is no size"),
        ({"n": (1, 9), "m": (1, 9)}, "ranges names n and m"),
    ],
)
def test_a_range_that_the_call_cannot_have_is_refused_in_one_line(kernels, ranges, message):
    with pytest.raises(KernelError, match=re.escape(message)) as error:
        tuner.tune(captured(partial(vector, kernels), 100, 65), ranges=ranges)
    assert "\n" not in error.value.message
    assert error.value.hint


def indexed(hazards, n):
    x, index, out = torch.randn(n), torch.randperm(n).int(), torch.empty(n)
    hazards.scattered[blocks(n)](x, index, out, n)


def one_program(hazards, n):
    hazards.root[(1,)](torch.rand(n), torch.empty(n), n, BLOCK=256)


@pytest.mark.parametrize(
    ("launch", "name", "sizes", "message"),
    [
        (flat, "n_rows", [100], "what follows n_rows is not seen in calls with n_rows=100"),
        (one_program, "n", [100, 200], "its grid (1,) may follow n or not"),
        (scaled_blocks, "n", [70, 33], "dim 0 of ends is 71 at n=70 and 34 at n=33, which is no m"),
        (indexed, "n", [100, 500], "index has integers that may be indices (it holds up to 499)"),
        (looked_up, "n", [100, 200], "index has integers that may be indices (it holds up to 49)"),
        (indexed, "n", [100], "index has integers that may be indices (it holds up to 99)"),
    ],
)
def test_what_the_calls_do_not_show_is_refused_in_one_line(hazards, launch, name, sizes, message):
    calls = captured(partial(launch, hazards), *sizes)
    with pytest.raises(KernelError, match=re.escape(message)) as error:
        calls.declare(ranges={name: (1, 2000)})
    assert "\n" not in error.value.message
    assert error.value.hint


def test_an_error_names_what_a_range_may_name_and_what_is_missed(kernels, hazards):
    with pytest.raises(KernelError) as error:
        captured(partial(vector, kernels), 100, 65).declare(ranges={"m": (1, 9)})
    assert error.value.hint == "it may name n, x[0], y[0], out[0]"
    with pytest.raises(KernelError) as error:
        captured(partial(scaled_blocks, hazards), 70, 33).declare(ranges={"n": (1, 9)})
    assert error.value.hint == "capture a third n: it shows whether this is n+1"
    with pytest.raises(KernelError) as error:
        captured(partial(indexed, hazards), 100, 500).declare(ranges={"n": (1, 9)})
    assert "a table of calls of several sizes serves those between them" in error.value.hint


def partly(hazards, n):
    """A grid of the caller's that reaches 256 elements alone."""
    x = torch.rand(n)
    hazards.root[(4,)](x, torch.empty(n), n, BLOCK=64)


def test_a_grid_that_is_too_small_elsewhere_is_found_by_running_there(hazards):
    calls = captured(partial(partly, hazards), 230, 100)
    with pytest.raises(KernelError, match="at n=461: it leaves elements of out as they are"):
        calls.declare(ranges={"n": (1, 1000)})


def test_indices_below_the_least_size_are_drawn_again(hazards):
    def launch(n):
        x, index, out = torch.randn(n), torch.randint(0, 4, (n,)).int(), torch.empty(n)
        hazards.gathered_again[blocks(n)](x, index, out, n)

    kernel = captured(launch, 100, 150).declare(ranges={"n": (8, 300)})
    for size in (8, 300):
        workload = kernel.workloads()[0].with_dims(n=size)
        index = kernel.make_inputs(workload, 0, "cpu")["index"]
        assert len(index) == size
        assert 0 <= int(index.min()) <= int(index.max()) < 4


RUN = """
import sys
import tuner

if __name__ == "__main__":
    calls = tuner.load_calls(sys.argv[1])
    result = tuner.tune(calls["tuned"], ranges={"n": (60, 300)}, target="cuda:90", budget=1)
    print(type(result).__name__, *(each.workload.key for each in result.results))
    print(*(f"{status}" for each in result.results for status in each.trials["status"]))
"""


@pytest.mark.full  # builds of a range are those of config.yaml, below
def test_tune_builds_and_verifies_the_sizes_of_a_range(kernels, tmp_path, monkeypatch):
    captured_calls(partial(vector, kernels), 100, 65).save(tmp_path / "calls.json")
    (tmp_path / "run.py").write_text(RUN)
    monkeypatch.delenv("TRITON_INTERPRET")
    done = run_python(tmp_path, "run.py", "calls.json")
    assert done.stdout.splitlines() == [
        "RangeResult x=float32[n] y=float32[n] out=float32[n] n=60", "correct"
    ], done.stderr  # fmt: skip


CONFIG = """
version: 1
campaigns:
  main:
    targets: [cuda:90]
    budget: {trials: 1}
    tasks:
      - kernel: SPEC
        ranges: {n: 60..300}
        coverage: {held_out: 1}
"""


@pytest.fixture
def campaign(kernels, tmp_path, monkeypatch):
    """Runs the program on captured calls of config.yaml; returns what it prints."""
    kernel = captured(partial(vector, kernels), 100, 65).declare(folder=tmp_path / "kernels")
    monkeypatch.delenv("TRITON_INTERPRET")

    def run(*arguments, change=("", "")):
        text = CONFIG.replace(*change).replace("SPEC", f"{Path(kernel.spec).relative_to(tmp_path)}")
        (tmp_path / "config.yaml").write_text(text)
        return run_python(tmp_path, "-m", "tuner", "run", "main", *arguments, COLUMNS="200")

    return run


def test_a_range_of_captured_calls_stands_in_config_yaml(campaign, tmp_path):
    plan = campaign("--dry-run", "--format", "json")
    assert plan.returncode == 0, plan.stderr
    workloads = [each["workload"] for each in json.loads(plan.stdout)]
    sizes = [int(re.search(r"\bn=(\d+)", each)[1]) for each in workloads]
    assert {60, 300} < set(sizes)
    assert all("x=float32[n]" in each for each in workloads)
    done = campaign()
    assert done.returncode == 0, done.stderr
    with Store.open(f"sqlite:///{tmp_path / 'results' / 'tuner.db'}") as store:
        run = store.run(1)
        tasks = store.tasks(run.run_id)
        assert {task.key.workload["n"] for task in tasks} == set(sizes)
        assert all(str(task.place.sizes) == "60..300" for task in tasks)
        status = [trial.status for task in tasks for trial in store.trials(task.task_id)]
        assert set(status) == {"correct"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{n: 60..300}", "{n: 60..300, m: 1..9}"), "captured calls have one range"),
        (("ranges", "workloads: [{n: 8}]\n        ranges"), "n is given by a workload"),
        (("ranges", "workloads: [{}]\n        ranges"), "no such call was captured"),
    ],
)
def test_a_wrong_range_in_config_yaml_is_one_line(campaign, change, message):
    done = campaign("--dry-run", change=change)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_shows_a_range(kernels, tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n([^`]*?ranges=.*?)```", PAGE, re.DOTALL)
    kernel = None

    class Exported:
        def export(self, path):
            return [path]

    def tune(calls, **keywords):
        nonlocal kernel
        kernel = calls.declare(**keywords)
        return Exported()

    monkeypatch.setattr(tuner, "tune", tune)
    exec(block, {"tuner": tuner, "launch": partial(vector, kernels)})
    assert kernel.call(kernel.workloads()[0].with_dims(n=65536)).grid.sizes == (1024,)
