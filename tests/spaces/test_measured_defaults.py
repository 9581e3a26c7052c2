"""Defaults by measurements: feasible everywhere, untouched where nothing was measured, refitted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from spaces_devices import GPU_FAMILIES, H200, MI300X
from spaces_interpret import ROOT

import tuner
from search_spaces import measured_defaults
from search_spaces.declaration import guarded_calls
from search_spaces.errors import SpaceError
from search_spaces.kernels.matmul.kernel import Matmul
from search_spaces.records import Workload
from search_spaces.registry import load

#: A card of H200's target with the resources of a small one.
SMALL = replace(H200, name="small", sm_count=16, shared_bytes=100 << 10, memory_bytes=8 << 30)
SLENDER = Workload.of(M=32, N=8192, K=4096, dtype="bfloat16")


@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_the_default_is_feasible_and_another_target_keeps_the_familys_own(name):
    kernel = load(name)
    for workload in kernel.workloads():
        for device in (H200, SMALL):
            space = kernel.space(workload).bind(workload, device)
            if device is SMALL and next(space.enumerate(), None) is None:
                with pytest.raises(SpaceError, match="none of"):
                    guarded_calls.default_config(kernel, workload, device)
                continue
            assert space.why_not(guarded_calls.default_config(kernel, workload, device)) is None
        own = kernel.default_config(workload, MI300X)
        assert guarded_calls.default_config(kernel, workload, MI300X) == own


def test_a_measured_workload_has_its_winner_also_on_a_sibling():
    kernel = load("matmul")
    (winner, *_) = [
        item.config
        for item in measured_defaults.read(measured_defaults.FILE)["matmul"]
        if item.workload == SLENDER
    ]
    assert winner != kernel.default_config(SLENDER, H200)
    for device in (H200, replace(H200, name="NVIDIA H100 80GB HBM3", memory_bytes=80 << 30)):
        assert guarded_calls.default_config(kernel, SLENDER, device) == winner


def test_a_winner_that_is_the_own_default_stands_for_the_rule():
    """Far from all other measurements, the rule adapts to the size and the winner does not."""
    kernel, near = load("softmax"), Workload.of(rows=4096, cols=1024, dtype="bfloat16")
    far = near.with_dims(cols=64)
    winner = measured_defaults.Measured(
        "softmax", near, kernel.default_config(near, H200), H200.name, H200.target, "here"
    )
    space = kernel.space(far).bind(far, H200)
    own = kernel.default_config(far, H200)
    assert own != winner.config
    assert measured_defaults.choose_nearest(kernel, space, [winner]) == own


def test_numbers_move_to_the_nearest_value_and_other_kinds_of_launch_are_not_carried_over():
    kernel = load("matmul")
    tiny = SLENDER.with_dims(M=16, N=32, K=64)
    space = kernel.space(tiny).bind(tiny, H200)
    tile = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 2, "num_stages": 5}
    winner = measured_defaults.Measured(
        "matmul",
        SLENDER,
        {**tile, "GROUP_M": 1, "loads": "pointer", "SPLIT_K": 1},
        H200.name,
        H200.target,
        "here",
    )
    found = measured_defaults.choose_nearest(kernel, space, [winner])
    assert found is not None
    assert space.why_not(found) is None
    assert (found["BLOCK_M"], found["BLOCK_N"], found["BLOCK_K"]) == (16, 32, 64)
    other = {**winner.config, "loads": "gluon", "consumers": "share", "parts": 4}
    assert measured_defaults.choose_nearest(kernel, space, [replace(winner, config=other)]) is None


def test_a_kernel_of_a_user_keeps_its_default():
    class Own(Matmul):
        """Another kernel of the same name."""

    own = Own()
    assert guarded_calls.default_config(own, SLENDER, H200) == own.default_config(SLENDER, H200)


def fit(output: Path, *arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, ROOT / "scripts" / "fit_defaults.py", "-o", output, *arguments]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads(output.read_text())


@pytest.mark.full
def test_the_committed_winners_are_those_of_the_committed_results(tmp_path):
    fit(tmp_path / "fitted.json")
    assert (tmp_path / "fitted.json").read_bytes() == measured_defaults.FILE.read_bytes()


def test_winners_of_a_database_count_before_those_of_files(tmp_path):
    name = "spaces/h200/matmul_32x8192x4096_bf16.space.json"
    space = tmp_path / "measured" / name
    space.parent.mkdir(parents=True)
    shutil.copy(ROOT / "benchmarks" / name, space)
    url = f"sqlite:///{tmp_path}/results.db"
    found = tuner.tune(f"recorded:{space}", SLENDER, budget=4, pool="virtual", database=url)
    lines = [
        line
        for line in fit(
            tmp_path / "fitted.json", "--results", f"{tmp_path / 'measured'}", "--database", url
        )
        if line["kernel"] == "matmul" and Workload.from_mapping(line["workload"]) == SLENDER
    ]
    assert lines[0]["source"] == "database"
    assert lines[0]["config"] == dict(found.winner)


def test_the_committed_figures_are_those_of_the_winners():
    script = ROOT / "benchmarks" / "default_regret.py"
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    committed = ROOT / "benchmarks/results/cpu-sim/default_regret.json"
    means = json.loads(done.stdout)["geometric_mean"]
    assert means == json.loads(committed.read_text())["geometric_mean"]
    assert means["all"]["measured"] >= 0.95
    assert means["all"]["left_out"] >= 0.93
