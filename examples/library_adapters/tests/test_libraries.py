"""The adapters, against the real packages, and what they say of tables."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tuner import TunerError
from tuner.integrations import kernel_library
from written_tables import write_table

from library_adapters import LIBRARIES
from library_adapters.__main__ import main
from library_adapters.captured_library import entries_of, examine_launches
from library_adapters.flag_gems import database_keys

SCRIPT = Path(__file__).with_name("launches.py")
LLAMA = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "vocab_size": 96,
         "num_key_value_heads": 2, "torch_dtype": "bfloat16"}  # fmt: skip
GEMMA = {**LLAMA, "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh", "head_dim": 32}
NEXT = {"hidden_size": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 32}  # fmt: skip
DELTA = {"model_type": "gated_deltanet", "hidden_size": 64, "num_heads": 2, "head_dim": 16,
         "num_v_heads": 4}  # fmt: skip
LLAMA3_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
             "num_key_value_heads": 8}  # fmt: skip
FP8 = {**LLAMA3_8B, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
GLA = {"model_type": "gla", "hidden_size": 128, "num_heads": 2, "torch_dtype": "float32"}
#: Library, model, tensor-parallel size, number of tokens.
CASES = (
    ("liger", LLAMA, 1, 24),
    ("liger", LLAMA, 2, 8),
    ("liger", GEMMA, 1, 8),
    ("fla", NEXT, 2, 128),
    ("fla", DELTA, 1, 64),
    ("fla", GLA, 1, 128),
)
H200 = "NVIDIA H200"


def require(module):
    if find_spec(module) is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{module} is not installed, and CI tests with it")
        pytest.skip(f"{module} is not installed; `make` installs it")


@pytest.fixture(scope="module")
def launches():
    """The launches of each case, by library's own code."""
    for module in ("liger_kernel", "fla"):
        require(module)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT, json.dumps(CASES)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_layers_make_the_launches_that_adapters_declare(launches):
    met = set()
    for name, model, parallel, tokens in CASES:
        for layer in kernel_library(name).layers(model, parallel):
            for launch in layer.launches:
                same = [
                    key
                    for library, of, place, key, problem in launches
                    if (library, of, place) == (name, layer.name, launch.kernel)
                    if launch.tokens(key) == tokens
                ]
                assert same, (name, layer.name, launch)
                met.update(json.dumps([launch.kernel, key]) for key in same)
    undeclared = {place for _, _, place, key, _ in launches if json.dumps([place, key]) not in met}
    assert undeclared == set()
    assert {problem for *_, problem in launches} == {""}


def test_a_launch_of_another_layer_is_none_of_a_declared_launch(launches):
    for name, model, parallel, _ in CASES:
        for layer in kernel_library(name).layers(model, parallel):
            for launch in layer.launches:
                key = next(key for _, _, place, key, _ in launches if place == launch.kernel)
                exact = {**key, **launch.key}
                for changed in launch.key:
                    assert launch.tokens({**exact, changed: "other"}) is None
                    del exact[changed]
                    assert launch.tokens(exact) is None
                    exact[changed] = launch.key[changed]


def write_tables(launches, folder, *, triton="3.6.0", device=H200, only=""):
    """Tables of captured calls for all launches of Liger's first case."""
    places = {}
    for library, _, place, key, _ in launches:
        if library == "liger" and only in place:
            places.setdefault(place, []).append(key)
    for place, keys in places.items():
        unique = {json.dumps(key): key for key in keys}
        write_table(folder, place, list(unique.values()), triton=triton, device=device)


def states(folder, *, triton="3.6.0", sizes=None, model=LLAMA):
    library = kernel_library("liger")
    entries = entries_of(library, [folder], None, H200, {})
    found = examine_launches(library, model, 1, entries, triton, sizes)
    return {(one.layer, one.kernel.partition(":")[2], f"{one.state}", one.note) for one in found}


def test_tables_of_captured_calls_are_found_by_shape_device_and_triton(launches, tmp_path):
    assert {state for _, _, state, _ in states(tmp_path)} == {"missing"}
    write_tables(launches, tmp_path, device="NVIDIA H100")
    assert {state for _, _, state, _ in states(tmp_path)} == {"missing"}
    write_tables(launches, tmp_path, triton="3.4.0")
    assert {(state, note) for _, _, state, note in states(tmp_path)} == {
        ("other triton", "made with 3.4.0, this is 3.6.0")
    }
    write_tables(launches, tmp_path, only="rms_norm")
    assert {layer for layer, _, state, _ in states(tmp_path) if state == "ok"} == {"norm"}
    other = {**LLAMA, "hidden_size": 80, "head_dim": 16}
    norms = {state for layer, _, state, _ in states(tmp_path, model=other) if layer == "norm"}
    assert norms == {"missing"}


def test_numbers_of_tokens_that_are_asked_for_must_have_entries(launches, tmp_path):
    write_tables(launches, tmp_path)
    assert {state for _, _, state, _ in states(tmp_path, sizes=(24,))} == {"ok"}
    assert {(state, note) for _, _, state, note in states(tmp_path, sizes=(24, 25, 26))} == {
        ("missing", "no entry for 25, 26 tokens")
    }


@pytest.fixture(scope="module")
def flag_gems_models():
    """FlagGems's own classes for its database; the package itself needs a GPU to be imported."""
    require("flag_gems")
    folder = Path(find_spec("flag_gems").submodule_search_locations[0]) / "utils" / "models"
    places = [f"{folder}"]
    spec = importlib.util.spec_from_file_location(
        "flag_gems_models", folder / "__init__.py", submodule_search_locations=places
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    for name in [name for name in sys.modules if name.startswith("flag_gems_models")]:
        del sys.modules[name]


def test_the_database_that_flag_gems_writes_is_read(flag_gems_models, tmp_path, monkeypatch):
    import triton

    path = tmp_path / "config_cache" / "TunedConfig_NVIDIA_H200_triton_3_6.db"
    path.parent.mkdir()
    written = flag_gems_models.SQLPersistantModel(f"sqlite:///{path}")
    config = triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, num_warps=4)
    keys = {(rows, 6144, 4096, 4096, 32) for rows in (32, 64)}
    for key in keys:
        written.put_config(f"mm_kernel_general_{'a' * 32}", (*key, *["torch.bfloat16"] * 3), config)
    bench = f"mm_kernel_general_{'b' * 64}_benchmark"
    written.put_benchmark(bench, (1, 2), config, (1.0, 1.0, 1.0))
    written.engine.dispose()
    read = list(database_keys(path))
    assert {name for name, _ in read} == {"mm_kernel_general"}
    names = ("M", "N", "K", "stride_am", "stride_bk")
    assert {tuple(key[name] for name in names) for _, key in read} == keys
    library = kernel_library("flag_gems")
    environment = {"FLAGGEMS_CACHE_DIR": f"{tmp_path}"}
    entries = entries_of(library, [], None, H200, environment)
    found = examine_launches(library, LLAMA3_8B, 1, entries, "3.6.1", (33, 20))
    by_layer = {one.layer: f"{one.state}" for one in found}
    assert by_layer["qkv_proj"] == "ok"
    assert by_layer["o_proj"] == "missing"
    newer = examine_launches(library, LLAMA3_8B, 1, entries, "3.7.0", None)
    assert {one.layer: f"{one.state}" for one in newer}["qkv_proj"] == "other triton"
    assert entries_of(library, [], None, "NVIDIA H100", environment) == []


def test_a_file_that_is_no_database_of_flag_gems_is_refused(tmp_path):
    path = tmp_path / "TunedConfig_NVIDIA_H200_triton_3_6.db"
    path.write_text("no database" * 100)
    with pytest.raises(TunerError, match="no database of FlagGems"):
        list(database_keys(path))


def test_models_without_layers_and_wrong_configs_are_refused_in_one_line(tmp_path):
    assert {type(kernel_library(name)) for name in LIBRARIES} == {*LIBRARIES.values()}
    assert kernel_library("fla").layers(LLAMA3_8B) == []
    assert kernel_library("flag_gems").layers(FP8) == []
    with pytest.raises(TunerError, match="no kernel that is known here"):
        examine_launches(kernel_library("fla"), LLAMA3_8B, 1, [], "3.6.0", None)
    with pytest.raises(TunerError, match="cannot be divided by 3"):
        kernel_library("liger").layers(LLAMA, 3)
    with pytest.raises(TunerError, match="dtype 'int8' is none of"):
        kernel_library("liger").layers({**LLAMA, "torch_dtype": "int8"})
    with pytest.raises(TunerError, match="no such file"):
        entries_of(kernel_library("liger"), [tmp_path / "none"], None, H200, {})


def test_the_program_to_capture_says_what_did_not_run(tmp_path, capsys):
    model = tmp_path / "config.json"
    model.write_text(json.dumps(GEMMA))
    assert main(["fla", "--model", f"{model}", "--device", "cpu"]) == 2
    assert "no kernel that is known here" in capsys.readouterr().err
    require("liger_kernel")
    # Without Triton's interpreter no kernel runs on a CPU.
    assert main(["liger", "--model", f"{model}", "--tokens", "8", "--device", "cpu"]) == 1
    failed = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in failed] == ["norm", "rotary", "mlp", "loss"]
