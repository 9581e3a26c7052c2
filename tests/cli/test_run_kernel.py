"""`tuner run FILE:object`: one kernel as a campaign, with and without config.yaml."""

from __future__ import annotations

import inspect
import json

import pytest
from cpu_samples import KERNEL

import tuner as library
from results_db import Store
from tuner.cli.campaign_sources import with_kernel
from tuner.settings import load

SPEC = "double.py:Double"
QUICK = "version: 1\npool: {kind: local, builders: 1}\nmeasure: {final_pairs: 8, warm_ms: 1}\n"


@pytest.fixture
def file(folder):
    path = folder / "double.py"
    path.write_text(KERNEL.replace("[Workload.of(n=1000)]", "[Workload.of(n=n) for n in (7, 9)]"))
    return path


def planned(tuner, *words: str) -> list[str]:
    result = tuner("run", SPEC, "--dry-run", "--format", "json", *words)
    assert result.code == 0, result.err
    return [row["workload"] for row in json.loads(result.out)]


def test_the_plan_has_the_workloads_of_the_kernel_or_those_named(tuner, file, folder):
    assert planned(tuner) == ["n=7", "n=9"]
    assert planned(tuner, "--workload", "n=9") == ["n=9"]
    assert planned(tuner, "--workload", "n=50", "--workload", "n=7") == ["n=50", "n=7"]
    assert not (folder / "results").exists()


def test_the_limits_and_the_strategy_are_those_of_tune(folder, file):
    settings, name = with_kernel(*load(), SPEC)
    campaign = settings.campaigns[name]
    defaults = inspect.signature(library.tune).parameters
    assert campaign.budget.trials == defaults["budget"].default
    assert campaign.strategy.name == defaults["strategy"].default
    assert campaign.strategy.seed == defaults["seed"].default
    assert campaign.targets == ["cpu"]


def test_a_kernel_beside_a_campaign_is_run_with_the_settings_of_the_file(tuner, file, folder, url):
    (folder / "config.yaml").write_text(
        f"{QUICK}campaigns:\n  c: {{tasks: [{{kernel: softmax}}], targets: [cuda]}}\n"
    )
    result = tuner("run", SPEC, "--workload", "n=9", "--quiet")
    assert result.code == 0, result.err
    assert f"report: {folder / 'results' / 'report.html'}" in result.out
    with Store.open(url) as store:
        (run,) = store.runs()
        (task,) = store.tasks(run.run_id)
    assert (run.campaign, task.key.kernel, task.key.workload.key) == (SPEC, "double", "n=9")
    again = tuner("run", SPEC, "--workload", "n=9", "--quiet")
    assert "nothing measured" in again.out


def test_a_file_without_an_object_suggests_each_of_its_kernels(tuner, file, folder):
    more = "\n".join(["", "class Base(Kernel): pass", "double = Double()", "from os import path"])
    file.write_text(f"{file.read_text()}{more}\n")
    for command in ("run", "bench", "verify"):
        assert (
            "did you mean double.py:Double or double.py:double?" in tuner(command, file.name).error
        )
    (folder / "helpers.py").write_text("from tuner import Kernel\nhelper = len\n")
    assert "helpers.py has no kernel" in tuner("run", "helpers.py").error


def test_best_finds_the_file_of_the_run_and_prints_the_command_that_measures_again(
    tuner, file, folder
):
    (folder / "config.yaml").write_text(QUICK)
    words = ["run", SPEC, "--workload", "n=9", "--quiet", "--no-report"]
    assert tuner(*words).code == 0
    assert [row["state"] for row in json.loads(tuner("best", "-f", "json").out)] == ["current"]
    file.write_text(file.read_text().replace("range(300)", "range(301)"))
    outdated = tuner("best", "--workload", "n=9")
    command = outdated.err.strip().partition("measured again by ")[2].strip("`").split()
    assert command == ["tuner", "run", SPEC]
    assert tuner(*command[1:], "--workload", "n=9", "--quiet", "--no-report").code == 0
    assert [row["state"] for row in json.loads(tuner("best", "-f", "json").out)] == ["current"]
    file.unlink()
    assert "outdated" in tuner("best").out
    assert "left out" not in tuner("best").err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["double.py:"], "double.py is a file; did you mean double.py:Double?"),
        (["other.py"], "there is no file other.py"),
        (["other.py:Double"], "there is no file other.py"),
        ([SPEC, "--workload", "m=3"], "also needs n"),
        ([SPEC, "--target", "cuda"], "runs on cpu, not on cuda"),
        ([SPEC, "--calls", "calls.json"], "a campaign and --calls are given"),
        (["double", "--target", "cpu"], "--target belongs to --calls and to kernels"),
        ([SPEC, "--widen"], "--widen belongs to --calls"),
    ],
)
def test_a_mistake_is_one_line(tuner, file, folder, words, message):
    result = tuner("run", *words)
    assert result.code == 2
    assert message in result.error
    assert not (folder / "results").exists()
