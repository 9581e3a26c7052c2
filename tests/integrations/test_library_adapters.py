"""The package of `examples/library_adapters`, installed as users do, and commands without it."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from model_configs import DEEPSEEK_V3, LLAMA3_8B, check_hostile

from tuner.cli import invoke
from tuner.integrations import kernel_libraries, kernel_library

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "library_adapters"
#: The modules whose names are public.
PUBLIC = ("tuner", "tuner.integrations", "tuner.runtime")
MODELS = {
    "latent": DEEPSEEK_V3,
    "dense": {**LLAMA3_8B, "vocab_size": 128},
    "gla": {"model_type": "gla", "hidden_size": 2048, "num_heads": 4, "expand_k": 0.5},
    "gated": {"model_type": "gated_deltanet", "num_heads": 4, "head_dim": 64, "expand_v": 2.0},
    "linear": {
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which pip has installed the package."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, source / "package")
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--target", target]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, source / "package"], check=True
    )
    return target


def test_its_own_tests_pass_with_the_installed_package(installed):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=EXAMPLE,
        env={**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("name", MODELS)
def test_each_library_has_layers_or_refuses_in_one_line(installed, tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(installed)
    layers = [kernel_library(one).layers for one in kernel_libraries()]
    check_hostile(MODELS[name], tmp_path / "config.json", layers)


def test_it_imports_only_public_names():
    seen = set()
    for path in (EXAMPLE / "library_adapters").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
                assert not any(name.startswith(("tuner.", "search_spaces")) for name in names)
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                top = module.partition(".")[0]
                assert top not in ("search_spaces", "workers", "results_db", "reports"), path
                if top == "tuner":
                    assert module in PUBLIC, f"{path}: {module}"
                    own = importlib.import_module(module)
                    for alias in node.names:
                        full = f"{module}.{alias.name}"
                        assert alias.name in own.__all__ or full in PUBLIC, f"{path}: {full}"
                        seen.add(full)
    assert {"tuner.TunerError", "tuner.integrations.DoctorQuestion"} <= seen


@pytest.mark.parametrize("name", ["fla", "flag_gems", "liger"])
def test_without_the_package_the_command_names_it(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(LLAMA3_8B))
    for options in ([], ["--model", "model.json", "--retune"]):
        assert invoke(["check", "--library", name, *options]) == 2
        error, hint = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: the adapter of {name} is in a package")
        assert "pip install ./examples/library_adapters" in hint


def test_an_unknown_library_is_refused_with_the_nearest_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert invoke(["check", "--library", "ligre", "--device", "NVIDIA H200"]) == 2
    assert "did you mean 'liger'" in capsys.readouterr().err
