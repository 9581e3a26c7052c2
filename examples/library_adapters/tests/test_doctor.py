"""`tuner check --library` with the installed adapters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from written_tables import write_table

LLAMA = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "vocab_size": 96,
         "num_key_value_heads": 2, "torch_dtype": "bfloat16"}  # fmt: skip
ROPE = {"n_qh": 4, "n_kh": 2, "hd": 16, "q_ptr": "bfloat16[1,24,4,16]", "grid": "24"}
KEYS = {
    "rope:_triton_rope": [{**ROPE, "BACKWARD_PASS": False}, {**ROPE, "BACKWARD_PASS": True}],
    "swiglu:_swiglu_forward_kernel": [{"n_cols": 192, "a_ptr": "bfloat16[24,192]"}],
}


@pytest.fixture
def own(tmp_path):
    """A folder of tables for captured calls."""
    path = tmp_path / "own"
    path.mkdir()
    return path


def write(own, name, triton="3.6.0"):
    write_table(own, f"liger_kernel.ops.{name}", KEYS[name], triton=triton)


@pytest.fixture
def doctor(tmp_path, own, monkeypatch):
    (tmp_path / "model.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNER_CONFIG", raising=False)
    # Warnings of other packages at their import are none of the command's.
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")

    def call(*words, library="liger"):
        given = ["--device", "NVIDIA H200", "-f", "json", "--triton", "3.6.0", own]
        command = [sys.executable, "-P", "-m", "tuner", "check", "--library", library]
        return subprocess.run(
            [*command, *given, *words], capture_output=True, text=True, check=False
        )

    return call


def test_what_a_model_lacks_is_listed_with_the_commands_that_tune_it(doctor, own):
    write(own, "rope:_triton_rope")
    result = doctor("--model", "model.json", "--sizes", "24")
    assert result.returncode == 1
    rows = json.loads(result.stdout)
    assert {row["layer"] for row in rows} == {"norm", "rotary", "mlp", "loss"}
    assert {row["state"] for row in rows if row["layer"] == "rotary"} == {"ok"}
    assert {row["state"] for row in rows if row["layer"] != "rotary"} == {"missing"}
    command = "tuner capture -o calls.json -- python -m library_adapters liger"
    assert command in result.stderr
    assert "--tp 1 --tokens 24" in result.stderr
    # Kernels without configs have a space of one config unless it is opened.
    assert "tuner run --calls calls.json --widen" in result.stderr
    fixed = doctor("--model", "model.json", "--retune")
    assert fixed.returncode == 2
    assert command in fixed.stderr


def test_a_sentence_takes_the_place_of_commands_that_would_not_help(doctor):
    result = doctor("--model", "model.json", library="flag_gems")
    assert result.returncode == 1
    assert "flag_gems.enable()" in result.stderr
    assert "tuner capture" not in result.stderr


def test_all_tables_are_listed_without_a_model(doctor, own):
    assert doctor().returncode == 0
    write(own, "rope:_triton_rope")
    assert doctor().returncode == 0
    write(own, "swiglu:_swiglu_forward_kernel", triton="3.1.0")
    (own / "x@NVIDIA_H200.json").write_text("{")
    result = doctor()
    assert result.returncode == 1
    rows = {Path(row["path"]).name.partition("@")[0]: row for row in json.loads(result.stdout)}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {
        "_triton_rope": "ok",
        "_swiglu_forward_kernel": "other triton",
        "x": "malformed",
    }
    assert rows["_triton_rope"]["entries"] == 2
    assert json.loads(doctor(library="fla").stdout)[0]["state"] == "malformed"


def test_flas_own_config_files_are_listed_with_their_triton(doctor, tmp_path, monkeypatch):
    configs = tmp_path / "configs"
    configs.mkdir()
    text = '{"kernel_name": "l2norm_fwd_kernel", "triton_version": "3.5.0", "default_config": {}}'
    (configs / "l2norm_fwd_kernel.json").write_text(text)
    (configs / "other.json").write_text("[]")
    (configs / "deep.json").write_text("[" * 100_000)
    monkeypatch.setenv("FLA_CONFIG_DIR", f"{configs}")
    rows = json.loads(doctor(library="fla").stdout)
    assert [(row["kernel"], row["state"]) for row in rows] == [
        ("", "malformed"),
        ("", "malformed"),
        ("l2norm_fwd_kernel", "other triton"),
    ]
