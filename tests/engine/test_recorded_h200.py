"""Searches of spaces recorded on an H200, through the real engine, pool and store."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuner
from search_spaces.recorded.recorded_kernel import RecordedSpace

FOLDER = Path(__file__).parents[2] / "benchmarks/spaces/h200"
#: One of every regime, because these searches are slow, of which each change runs the first;
#: test_virtual_farm.py searches all of them in virtual time.
SPACES = [
    FOLDER / f"{name}.space.json"
    for name in (
        "softmax_8192_bf16",
        "softmax_1024x32768_bf16",
        "matmul_4096_bf16",
        "matmul_128x8192x8192_fp16",
        "layer_norm_8192x1024_bf16",
        "attention_4x32x2048x64_causal_bf16",
    )
]


def test_spaces_of_every_family_are_recorded_and_small():
    kernels = {RecordedSpace.load(path).kernel for path in FOLDER.glob("*.space.json")}
    assert kernels >= {"softmax", "matmul", "layer_norm", "attention"}
    assert len(list(FOLDER.glob("*.space.json"))) >= 6
    assert all(path.stat().st_size < 2 << 20 for path in FOLDER.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [SPACES[0], *(pytest.param(path, marks=pytest.mark.full) for path in SPACES[1:])],
    ids=lambda path: path.stem,
)
def test_the_best_tried_config_is_chosen(path):
    space = RecordedSpace.load(path)
    found = tuner.tune(f"recorded:{path}", space.workload, budget=120, seed=3)
    assert found.device == space.device.name
    assert set(found.baselines) == set(space.baselines)
    tried = found.trials
    assert len(tried) == min(120, len(space.configs))
    fastest_us = tried.loc[tried["status"] == "correct", "median_us"].min()
    assert found.winner is not None
    chosen = space[found.winner].median_us
    # The trials' times have the recorded noise of some percent, and the choice follows from them.
    assert chosen <= 1.05 * fastest_us
    # 120 of up to 968 configs; their order depends on the order of the results.
    assert chosen <= 1.03 * space.best.median_us
