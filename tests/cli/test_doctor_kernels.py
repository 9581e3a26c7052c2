"""`tuner doctor --library` for libraries whose kernels are tuned by captured calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.runtime import DeviceFacts, Entry, Table
from tuner.tables.text import text_of

LLAMA = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "vocab_size": 96,
         "num_key_value_heads": 2, "torch_dtype": "bfloat16"}  # fmt: skip
ROPE = {"n_qh": 4, "n_kh": 2, "hd": 16, "q_ptr": "bfloat16[1,24,4,16]", "grid": "24"}
KEYS = {
    "rope:_triton_rope": [{**ROPE, "BACKWARD_PASS": False}, {**ROPE, "BACKWARD_PASS": True}],
    "swiglu:_swiglu_forward_kernel": [{"n_cols": 192, "a_ptr": "bfloat16[24,192]"}],
}


@pytest.fixture
def own(folder):
    """A folder of tables for captured calls."""
    path = folder / "own"
    path.mkdir()
    return path


def write(own, name, triton="3.6.0"):
    place = f"liger_kernel.ops.{name}"
    entries = tuple(Entry(key, {"num_warps": 4}) for key in KEYS[name])
    table = Table(
        name.partition(":")[2], "0" * 16, DeviceFacts("NVIDIA H200", "cuda", "cuda:90"),
        {"triton": triton}, entries, provenance={"place": place}, launch_hash="1" * 16,
    )  # fmt: skip
    (own / f"{table.kernel}@NVIDIA_H200.json").write_text(text_of(table))


@pytest.fixture
def doctor(tuner, folder, own):
    (folder / "model.json").write_text(json.dumps(LLAMA))

    def call(*arguments, library="liger"):
        return tuner("doctor", "--library", library, "--device", "NVIDIA H200", "-f", "json",
                     "--triton", "3.6.0", "--tables", own, *arguments)  # fmt: skip

    return call


def test_what_a_model_lacks_is_listed_with_the_commands_that_tune_it(doctor, own, folder):
    write(own, "rope:_triton_rope")
    result = doctor("--model", folder / "model.json", "--sizes", "24")
    assert result.code == 1
    rows = json.loads(result.out)
    assert {row["layer"] for row in rows} == {"norm", "rotary", "mlp", "loss"}
    assert {row["state"] for row in rows if row["layer"] == "rotary"} == {"ok"}
    assert {row["state"] for row in rows if row["layer"] != "rotary"} == {"missing"}
    command = "tuner capture -o calls.json -- python -m tuner.integrations.library_launches liger"
    assert command in result.err
    assert "--tp 1 --tokens 24" in result.err
    # Kernels without configs have a space of one config unless it is opened.
    assert "tuner run --calls calls.json --widen" in result.err
    fixed = doctor("--model", folder / "model.json", "--fix")
    assert fixed.code == 2
    assert command in fixed.err


def test_all_tables_are_listed_without_a_model(doctor, own):
    assert doctor().code == 0
    write(own, "rope:_triton_rope")
    assert doctor().code == 0
    write(own, "swiglu:_swiglu_forward_kernel", triton="3.1.0")
    (own / "x@NVIDIA_H200.json").write_text("{")
    result = doctor()
    assert result.code == 1
    rows = {Path(row["path"]).name.partition("@")[0]: row for row in json.loads(result.out)}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {
        "_triton_rope": "ok",
        "_swiglu_forward_kernel": "other triton",
        "x": "malformed",
    }
    assert rows["_triton_rope"]["entries"] == 2
    assert json.loads(doctor(library="fla").out)[0]["state"] == "malformed"


def test_flas_own_config_files_are_listed_with_their_triton(doctor, folder, monkeypatch):
    configs = folder / "configs"
    configs.mkdir()
    text = '{"kernel_name": "l2norm_fwd_kernel", "triton_version": "3.5.0", "default_config": {}}'
    (configs / "l2norm_fwd_kernel.json").write_text(text)
    (configs / "other.json").write_text("[]")
    monkeypatch.setenv("FLA_CONFIG_DIR", f"{configs}")
    rows = json.loads(doctor(library="fla").out)
    assert {(row["kernel"], row["state"]) for row in rows} == {
        ("l2norm_fwd_kernel", "other triton"),
        ("", "malformed"),
    }


def test_an_unknown_library_is_refused_with_the_nearest_name(doctor):
    result = doctor(library="ligre")
    assert result.code == 2
    assert "liger" in result.err
