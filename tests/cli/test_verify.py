"""`tuner verify`: the status of every config, with and without the device."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from bench_samples import RECORDED, scale_kernel, text

from search_spaces.records import config_key


def test_every_config_of_a_recording_gets_its_recorded_status(tuner, replay):
    space = replay(failures=0.4)
    result = tuner("verify", RECORDED, "--all", "-f", "json")
    assert result.code == 1
    found = {config_key(row["config"]): row for row in json.loads(result.out)}
    assert {key: row["status"] for key, row in found.items()} == {
        config_key(entry.config): f"{entry.status}" for entry in space.configs
    }
    assert all(row["note"] for row in found.values() if row["status"] != "correct")
    counts = Counter(row["status"] for row in found.values())
    for status, count in counts.items():
        assert f"{count} {status}" in result.err


def test_a_draw_is_the_same_for_the_same_seed(tuner, replay):
    replay()

    def drawn(seed: int) -> set[str]:
        result = tuner("verify", RECORDED, "--sample", 5, "--seed", seed, "-f", "json")
        assert result.code == 0, result.err
        return {config_key(row["config"]) for row in json.loads(result.out)}

    assert len(drawn(1)) == 5
    assert drawn(1) == drawn(1) != drawn(2)


def test_a_config_wrong_only_on_the_check_size_is_found(tuner, folder):
    spec = scale_kernel(folder)
    result = tuner("verify", spec, "--all", "--workload", "n=1000", "-f", "json")
    assert result.code == 1, result.err
    rows = {row["config"]["way"]: row for row in json.loads(result.out)}
    assert {way: row["status"] for way, row in rows.items()} == {
        "add": "correct",
        "wrong": "correctness",
        "ends": "correctness",
        "raises": rows["raises"]["status"],
    }
    assert rows["raises"]["status"] in ("runtime", "compile")
    assert "not today" in rows["raises"]["note"]
    assert rows["ends"]["note"].endswith("(at n=37)")
    assert rows["add"]["check_size"] == "n=37"
    assert rows["add"]["checked_by"] == "device"
    assert 0 <= rows["add"]["error"] <= 1e-5


def test_an_infeasible_config_is_a_finding_only_when_it_is_named(tuner, replay):
    space = replay(failures=0.4)
    entry = next(entry for entry in space.configs if entry.status == "constraints")
    result = tuner("verify", RECORDED, "--config", text(entry.config))
    assert result.code == 1
    assert "constraints" in result.out
    only = [entry.config for entry in space.configs if entry.status == "correct"][:2]
    arguments = [word for config in only for word in ("--config", text(config))]
    assert tuner("verify", RECORDED, *arguments).code == 0


#: Doubles the first BLOCK elements; a search tries the block that holds the row.
HOLDING = """
import torch
from tuner import Choice, Constraint, Dims, Kernel, SearchSpace, Workload

class Holding(Kernel):
    name, kinds, dims, small = "holding", ("cpu",), Dims(n=int), {"n": 37}
    def workloads(self): return [Workload.of(n=64), Workload.of(n=4096)]
    def inputs(self, workload): return {"x": workload.spec("n", dtype="float32")}
    def eager(self, workload): return lambda x: x * 2
    def space(self, workload):
        blocks = Choice("BLOCK", (64 if workload.size("n") <= 64 else 4096,))
        return SearchSpace([blocks], CONSTRAINTS, kernel="holding", admits=["BLOCK"])
    def cpu_callable(self, workload, config):
        def double(inputs):
            out, block = torch.zeros_like(inputs["x"]), config["BLOCK"]
            out[:block] = 2 * inputs["x"][:block]
            return {"out": out}
        return double

def holds(config, workload, device): return config["BLOCK"] >= workload.size("n")
"""


@pytest.mark.parametrize("truthful", [True, False])
def test_a_config_said_to_be_valid_at_another_size_is_run_there(tuner, folder, truthful):
    rule = '[Constraint("hold", holds, "a row needs a block")]' if truthful else "[]"
    (folder / "k.py").write_text(f"{HOLDING}\nCONSTRAINTS = {rule}\n")
    workloads = ("--workload", "n=64", "--workload", "n=4096")
    result = tuner("verify", "k.py:Holding", "--sample", 1, *workloads, "-f", "json")
    rows = json.loads(result.out)
    assert result.code == (not truthful)
    assert {(row["workload"], row["variant"], row["status"]) for row in rows} == {
        ("n=64", None, "correct"),
        ("n=64", "of n=4096", "correct"),
        ("n=4096", None, "correct"),
    } | (set() if truthful else {("n=4096", "of n=64", "correctness")})


def test_a_triton_kernel_without_its_gpu(tuner, folder):
    result = tuner(
        "verify", "softmax", "--target", "cuda:75", "--sample", 2, "--workload",
        "rows=64 cols=512 dtype=float16", "-f", "json",
    )  # fmt: skip
    assert result.code == 0, result.err
    rows = json.loads(result.out)
    assert [row["variant"] for row in rows].count(None) == 2
    assert any((row["variant"] or "").startswith("of rows=") for row in rows)
    assert all(row["target"] == "cuda:75" for row in rows)
    for row in rows:
        assert row["status"] in ("correct", "constraints")
        assert row["checked_by"] == ("interpreter" if row["status"] == "correct" else None)
    assert "Triton's interpreter" in result.err


def test_all_known_kernels_are_checked_in_one_command(tuner, folder, replay):
    replay(failures=0.4)
    (folder / "config.yaml").write_text(f"version: 1\nkernels: ['{RECORDED}']\n")
    result = tuner("verify", "--all", "--sample", 6, "--target", "simulated", "-f", "json")
    rows = json.loads(result.out)
    assert {row["kernel"] for row in rows} == {"synthetic"}
    assert len(rows) == 6
    wrong = [row for row in rows if row["status"] not in ("correct", "constraints")]
    assert result.code == bool(wrong)
    table = tuner("verify", "--all", "--sample", 6, "--target", "simulated")
    assert table.code == result.code
    assert ("correctness" in table.out) == any(row["status"] == "correctness" for row in wrong)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no kernel is named"),
        (["--sample", 3], "no kernel is named"),
        (["--all", "--config", "default"], "belong to one kernel"),
        (["--all", "--workload", "M=3"], "belong to one kernel"),
    ],
)
def test_options_without_a_kernel_are_refused_in_one_line(tuner, folder, arguments, complaint):
    result = tuner("verify", *arguments)
    assert result.code == 2
    assert complaint in result.err
