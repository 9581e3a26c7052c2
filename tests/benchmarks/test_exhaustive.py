"""The exhaustive ranking on variants that are correct, wrong, late, or kill the process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from search_spaces.records import Status, Workload, config_key
from workers.job_records import Artifact, KernelRef, MeasurementProtocol

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS, KERNELS = ROOT / "benchmarks", ROOT / "tests/measure"
WORKLOAD = Workload.of(n=4096, dtype="float32")
CRASHING = """
import os, signal
from measure_kernels import CpuAffine

class Crashing(CpuAffine):
    name = "crashing"

    def cpu_callable(self, workload, config):
        if config.get("fault") == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().cpu_callable(workload, config)
"""


@pytest.fixture(scope="module")
def module():
    sys.path.insert(0, f"{BENCHMARKS}")
    try:
        import exhaustive

        yield exhaustive
    finally:
        sys.path.remove(f"{BENCHMARKS}")


@pytest.fixture(scope="module")
def ranking(module, tmp_path_factory):
    """The ranking of three correct and four faulty variants on the CPU."""
    file = tmp_path_factory.mktemp("kernels") / "crashing.py"
    file.write_text(CRASHING)
    runner = module.ExhaustiveRanking("cpu", "A")
    try:
        device, toolchain, calibration = runner.info()
        assert calibration is not None
        configs = [
            *({"work": work} for work in (1, 16, 64)),
            *({"work": 1, "fault": fault} for fault in ("raise", "mutate", "crash", "late")),
        ]
        artifacts = tuple(
            Artifact(config, device.target, toolchain, config_key(config)) for config in configs
        )
        return runner.measure(
            module.RankingJob(
                KernelRef(f"{file}:Crashing", (f"{KERNELS}",)),
                WORKLOAD,
                artifacts,
                MeasurementProtocol(warm_ms=1.0, min_batch_us=50.0),
                passes=6,
                top_passes=8,
                least=2,
                baselines=("eager", "wrong"),
            )
        )
    finally:
        runner.close()


def good(work: int) -> str:
    return config_key({"work": work})


def test_correct_configs_are_timed_and_the_fastest_get_more_passes(ranking):
    all_configs, few = ranking.stages
    assert {good(1), good(16), good(64)} <= set(all_configs.samples)
    assert all(len(samples) == 6 for samples in all_configs.samples.values())
    assert len(few.samples) == 2
    assert good(1) in few.samples
    assert good(64) not in few.samples
    assert all(len(samples) == 8 for samples in few.samples.values())
    assert (ranking.method, ranking.cache) == ("perf_counter", "warm")


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("raise", Status.RUNTIME),
        ("mutate", Status.CORRECTNESS),
        ("crash", Status.RUNTIME),
        ("late", Status.CORRECTNESS),
    ],
)
def test_each_bad_config_fails_alone_with_its_status(ranking, fault, status):
    assert ranking.failures[config_key({"work": 1, "fault": fault})].status is status
    assert len(ranking.failures) == 4


def test_baselines_are_compared_with_the_fastest_config(ranking):
    against, ratios = ranking.baselines["eager"]
    assert against in ranking.stages[1].samples
    assert len(ratios) == 24
    assert all(ratio > 0 for ratio in ratios)
    assert "wrong" in ranking.baseline_problems
