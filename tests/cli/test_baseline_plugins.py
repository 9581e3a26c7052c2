"""Baselines of installed packages: measured and verified as a kernel's own."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch
from bench_samples import RECORDED, scale_kernel
from installed_plugins import install_plugins

from search_spaces import registry
from search_spaces.baselines import find_baseline
from search_spaces.errors import KernelError

PLUGIN = """
def right(kernel, workload):
    return (lambda inputs: {"out": inputs["x"].mul(2)}) if kernel == "scale" else None


def wrong(kernel, workload):
    return lambda inputs: {"out": inputs["x"] * 3}


def fails(kernel, workload):
    raise KeyError("no card")


def text(kernel, workload):
    return "mul"


number = 3
"""


@pytest.fixture
def install(tmp_path_factory, monkeypatch):
    """Installs baselines, also for processes that this one starts."""

    def install(places: dict[str, str]) -> None:
        packages = tmp_path_factory.mktemp("site")
        install_plugins(packages, "fast-scales", "tuner.baselines", places)
        (packages / "fast_scales.py").write_text(PLUGIN)
        monkeypatch.syspath_prepend(packages)
        monkeypatch.setenv(
            "PYTHONPATH", f"{packages}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        )
        monkeypatch.delitem(sys.modules, "fast_scales", raising=False)

    return install


def test_a_baseline_of_a_package_is_measured_and_verified(tuner, folder, install):
    install({"fast": "fast_scales:right", "false": "fast_scales:wrong", "eager": "none:none"})
    result = tuner("bench", scale_kernel(folder), "--workload", "n=1000", "-f", "json")
    assert result.code == 0, result.err
    status = {row["variant"]: row["status"] for row in json.loads(result.out)}
    assert status == {
        "default": "correct", "eager": "correct", "fast": "correct", "false": "correctness"
    }  # fmt: skip


def test_a_campaign_confirms_against_it(tuner, folder, install):
    install({"fast": "fast_scales:right"})
    result = tuner("run", scale_kernel(folder), "--workload", "n=1000")
    assert result.code == 0, result.err
    shown = tuner("show", "1/1")
    assert "fast" in shown.out


def test_recorded_kernels_have_the_baselines_of_their_recording(tuner, replay, install):
    install({"false": "fast_scales:wrong"})
    space = replay()
    result = tuner("bench", RECORDED, "-f", "json")
    found = {row["variant"] for row in json.loads(result.out) if row["kind"] == "baseline"}
    assert found == set(space.baselines)


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("fails", "fails for scale (KeyError: 'no card')"),
        ("text", "returns a str for scale, not a function or None"),
        ("number", "is a int, not a function"),
        ("absent", "cannot be loaded from fast_scales:absent"),
    ],
)
def test_an_unusable_baseline_is_refused_in_one_line(tuner, folder, install, place, problem):
    install({"odd": f"fast_scales:{place}"})
    for command in ("bench", "run"):
        result = tuner(command, scale_kernel(folder))
        assert result.code == 2, result.err
        assert f"baseline 'odd' {problem}" in result.error
        assert "fast-scales" in result.hint


def test_one_baseline_is_found_whatever_the_others_are(install):
    places = {"mine": "wrong", "fast": "right", "odd": "absent"}
    install({name: f"fast_scales:{place}" for name, place in places.items()} | {"gone": "no:no"})
    kernel = registry.load("softmax")
    workload = kernel.workloads()[0]
    x = torch.ones(3)
    assert torch.equal(find_baseline(kernel, workload, "mine")({"x": x})["out"], 3 * x)
    assert callable(find_baseline(kernel, workload, "eager"))
    for name in ("fast", "absent"):  # one of another kernel, and one of no package
        with pytest.raises(KernelError, match=f"softmax has no baseline '{name}'") as caught:
            find_baseline(kernel, workload, name)
        assert "tuner.baselines" in caught.value.hint
    with pytest.raises(KernelError, match="baseline 'odd' cannot be loaded"):
        find_baseline(kernel, workload, "odd")
