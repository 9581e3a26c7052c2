"""Rankings and regrets on samples with known truth, and the whole script on a small CPU space."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.recorded.recorded_kernel import RecordedSpace

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def rankings():
    yield from _imported("rankings")


@pytest.fixture(scope="module")
def script():
    yield from _imported("selection_regret")


@pytest.fixture(scope="module")
def regret_figures():
    yield from _imported("regret_figures")


def _imported(name: str):
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield __import__(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


def stages(rankings, truth: dict, seed: int, level: float = 1.0) -> list:
    """Twelve passes over all configs and 60 over the fastest 20 %, under a clock that drifts by 5
    %.
    """
    rng = random.Random(seed)

    def passes(names, count, slower):
        samples = {name: [] for name in names}
        for turn in range(count):
            common = level * slower * (1 + 0.05 * math.sin(turn / 3 + seed))
            for name in names:
                samples[name].append(truth[name] * common * rng.lognormvariate(0, 0.004))
        return rankings.Stage(samples)

    all_configs = passes(truth, 12, 1.0)
    few = rankings.fastest(all_configs.samples, 0.2, 16)
    # The fast configs alone keep the device busier and its clock lower.
    return [all_configs, passes(few, 60, 1.03)]


@pytest.fixture(scope="module")
def two(rankings):
    truth = {f"v{i:03}": 50 * math.exp(0.004 * i) for i in range(100)}
    a, b = (rankings.ranked(stages(rankings, truth, seed, 1 + 0.02 * seed)) for seed in (1, 2))
    return truth, a, b


@settings(max_examples=30)
@given(count=st.integers(1, 30), passes=st.integers(1, 9), first=st.integers(0, 20))
def test_each_order_is_a_permutation_and_every_second_one_reverses_the_previous(
    rankings, count, passes, first
):
    result = rankings.orders(count, passes, "seed", first)
    assert len(result) == passes
    assert all(sorted(order) == list(range(count)) for order in result)
    whole = rankings.orders(count, first + passes, "seed")
    assert whole[first:] == result
    for even, odd in zip(whole[::2], whole[1::2], strict=False):
        assert odd == even[::-1]


def test_times_are_recovered_under_drift_and_across_stages_at_different_clocks(two):
    truth, a, b = two
    for ranked in (a, b):
        level = ranked.times_us["v000"] / truth["v000"]
        for name, true_us in truth.items():
            tolerance = 0.004 if len(ranked.residuals[name]) == 12 else 0.002
            assert ranked.times_us[name] / level == pytest.approx(true_us, rel=tolerance)


def test_samples_are_kept_without_the_common_mode_of_their_pass(two):
    _, a, _ = two
    for name, values in a.samples_us.items():
        logs = [math.log(value / a.times_us[name]) for value in values]
        assert math.sqrt(sum(x * x for x in logs) / len(logs)) < 0.008  # 0.4 % of noise, not 5 %


def test_merging_keeps_every_sample_and_removes_the_level_of_each_ranking(rankings, two):
    truth, a, b = two
    both = rankings.merged(a, b)
    level = both.times_us["v000"] / truth["v000"]
    for name, true_us in truth.items():
        assert both.times_us[name] / level == pytest.approx(true_us, rel=0.004)
        assert len(both.samples_us[name]) == len(a.samples_us[name]) + len(b.samples_us[name])
        middle = sorted(both.samples_us[name])[len(both.samples_us[name]) // 2]
        assert middle == pytest.approx(both.times_us[name], rel=0.005)


def test_rankings_of_the_same_truth_agree_and_others_do_not(rankings, two):
    _, a, b = two
    result = rankings.agreement(a, b)
    assert result["tau"] > 0.9
    assert result["tau_top"] > 0.8
    assert result["top_10"] >= 8
    assert result["floor"] < 0.01
    itself = rankings.agreement(a, a)
    assert (itself["top_10"], itself["floor"]) == (10, 0)
    assert itself["tau"] == pytest.approx(1) == itself["tau_top"]
    times = a.times_us.values()
    turned = rankings.Ranked({n: 1 / us for n, us in a.times_us.items()}, {}, {}, [])
    against = rankings.agreement(a, turned)
    assert against["tau"] == pytest.approx(-1)
    assert against["floor"] == pytest.approx(max(times) / min(times) - 1)


@given(
    times=st.lists(st.floats(1, 1000), min_size=2, max_size=20),
    data=st.data(),
    floor=st.floats(0, 0.1),
)
def test_total_regret_combines_exploration_and_selection(rankings, times, data, floor):
    named = {f"c{i}": value for i, value in enumerate(times)}
    tried = data.draw(st.sets(st.sampled_from(sorted(named)), min_size=1))
    chosen = data.draw(st.sampled_from(sorted(tried)))
    result = rankings.regret(named, tried, chosen, floor)
    product = (1 + result["exploration"]) * (1 + result["selection"]) - 1
    assert result["total"] == pytest.approx(product)
    for part in ("exploration", "selection", "total"):
        assert result[part] >= -1e-12
        assert result[f"{part}_counted"] == pytest.approx(max(0, result[part] - floor))


def test_the_fitted_noise_matches_the_samples(rankings, two):
    _, a, b = two
    noise = rankings.noise_of(rankings.merged(a, b), 47.0)
    assert noise.sigma == pytest.approx(0.004, rel=0.25)
    assert noise.drift_sd == pytest.approx(0.035, rel=0.25)  # of a sine of 5 %
    assert noise.outlier_share < 0.01
    assert noise.overhead_us == 47


def test_figures_count_searches_within_each_bound_and_problems(regret_figures):
    parts = ("selection", "exploration", "total")
    runs = [
        {p + c: share for p in parts for c in ("", "_counted")} | dict.fromkeys(COSTS, 1.0)
        for share in [0.0] * 18 + [0.015, 0.03]
    ]
    result = regret_figures.figures([*runs, {"seed": 9, "problem": "lost"}])
    assert (result["seeds"], result["problems"]) == (21, 1)
    assert result["total"] == {
        "mean": 0.00225,
        "p95": 0.015,
        "worst": 0.03,
        "within_1_percent": 0.9,
        "within_2_percent": 0.95,
    }
    assert regret_figures.figures([{"seed": 1, "problem": "lost"}]) == {"seeds": 1, "problems": 1}


COSTS = (
    *("measured", "trials", "gpu_s", "timing_s", "known_s"),
    *("timing_ms_per_config", "screening_ms_per_config", "gpu_ms_per_config"),
)


def test_h200_spaces_have_unique_names_that_are_valid_file_names(script):
    loaded, _ = script.settings.load(BENCHMARKS / "h200_spaces.yaml", {})
    names = script.spaces_of(loaded.campaigns["spaces"])
    assert len(names) == sum(len(t.workloads) for t in loaded.campaigns["spaces"].tasks)
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)
    assert "attention_4x16x4096x128_causal_bf16" in names


TINY = {
    "version": 1,
    "pool": {"kind": "local", "build_timeout": "240s", "measure_timeout": "120s"},
    "campaigns": {
        "spaces": {
            "targets": ["cpu"],
            "tasks": [
                {
                    "kernel": "cpu_pointwise",
                    "workloads": [
                        {"rows": 64, "cols": 1024, "dtype": "float32", "tolerance": 0.01}
                    ],
                    "space": {
                        "threads": [1],
                        "precision": ["float32"],
                        "simdlen": [None],
                        "store_gelu": [True],
                        "decompose_tanh": [False],
                    },
                }
            ],
        }
    },
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cpu_space_is_measured_searched_and_recorded(tmp_path):
    config, name = tmp_path / "config.yaml", "cpu_pointwise_64x1024_fp32"
    config.write_text(json.dumps(TINY))
    arguments = ["--config", f"{config}", "--out", f"{tmp_path / 'out'}", "--seeds", "1"]
    arguments += ["--builders", "1", "--passes", "4", "--top-passes", "8"]
    _run([*arguments, "--strategy", "exhaustive", "--trials", "10"], tmp_path)
    document = json.loads((tmp_path / "out/selection_regret.json").read_text())
    entry = document["spaces"][name]
    assert (entry["configs"], entry["failures"], entry["disagreed"]) == (2, {}, [])
    (search,) = entry["searches"]
    assert (search["tried"], search["measured"], search["exploration"]) == (2, 2, 0)
    assert search["selection"] == search["total"] >= 0
    assert search["timing_s"] > 0
    assert document["summary"]["spaces"] == 1
    with tarfile.open(tmp_path / "out/spaces.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    space = RecordedSpace.load(tmp_path / f"{name}.space.json")
    assert all(len(c.samples_us) == 2 * 12 and c.build_s > 0 for c in space.configs)
    assert space.best.config == entry["best"]
    assert space[search["chosen"]].median_us / space.best.median_us - 1 == pytest.approx(
        search["total"], abs=1e-4
    )
    assert set(space.baselines) == {"eager"}
    assert space.noise.overhead_us >= 0


def _run(arguments: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}"}
    command = [sys.executable, f"{BENCHMARKS / 'selection_regret.py'}", *arguments]
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
