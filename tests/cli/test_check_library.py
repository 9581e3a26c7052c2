"""`tuner check --library`: real table files of vLLM and SGLang, and faults in copies of them."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from search_spaces.recorded.recorded_kernel import (
    Noise,
    RecordedConfig,
    RecordedParameter,
    RecordedSpace,
)
from search_spaces.records import Device, Toolchain, Workload

DATA = Path(__file__).parents[1] / "integrations" / "data"
MOE = "model_executor/layers/fused_moe/configs"
H200 = Device("cuda", "NVIDIA H200", "cuda:90", 132, 150_000_000_000, 232_448, 65_536)
MODEL = {
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
NAME = "E=128,N=768,device_name=NVIDIA_H200.json"
#: What vLLM launches for 8 tokens without a table, and a faster config.
DEFAULT = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
           "num_warps": 4, "num_stages": 4}  # fmt: skip
FASTER = {**DEFAULT, "BLOCK_SIZE_N": 128}


@pytest.fixture
def wheel(folder) -> Path:
    """An unpacked wheel with some of the real files."""
    shutil.copytree(DATA / "vllm", folder / "wheel" / "vllm")
    shutil.copytree(DATA / "sglang", folder / "wheel" / "sglang")
    return folder / "wheel"


@pytest.fixture
def model(folder) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps(MODEL))
    return path


@pytest.fixture
def doctor(tuner, folder, wheel):
    def call(*arguments, tables=wheel, device="NVIDIA H200", library="vllm"):
        return tuner(
            "check", tables, "--library", library, "--device", device,
            "-f", "json", *arguments,
        )  # fmt: skip

    return call


def rows_of(result):
    return json.loads(result.out)


def by_problem(result):
    return {(row["adapter"], row["problem"]): row for row in rows_of(result)}


def test_the_tables_of_a_device_are_listed(doctor, wheel):
    result = doctor("--triton", "3.4.0")
    rows = by_problem(result)
    assert set(rows) == {
        ("vllm-moe", "E=128 N=512"),
        ("vllm-moe", "E=128 N=768"),
        ("vllm-moe", "E=256 N=512 dtype=fp8_w8a8 block_shape=[128, 128]"),
        ("vllm-block-fp8", "N=4096 K=7168 dtype=fp8_w8a8 block_shape=[128, 128]"),
    }
    made = json.loads(
        (wheel / "vllm" / MOE / "E=128,N=512,device_name=NVIDIA_H200.json").read_text()
    )
    row = rows["vllm-moe", "E=128 N=512"]
    assert row["triton"] == made["triton_version"]
    assert row["rows"] == len(made) - 1
    # Nothing is stored, so nothing is said of gain and cost.
    assert all(row["gain"] is row["gpu_minutes"] is None for row in rows.values())
    assert "1 tables for other devices; 1 problems have tables for those only" in result.err


@pytest.mark.parametrize(
    "place", ["", "vllm", f"vllm/{MOE}"], ids=["unpacked wheel", "package", "folder of tables"]
)
def test_a_folder_may_be_a_wheel_a_package_or_tables(doctor, wheel, model, place):
    result = doctor("--model", model, tables=wheel / place)
    (row,) = rows_of(result)
    assert (result.code, row["state"], row["layer"]) == (0, "ok", "experts")
    assert Path(row["path"]) == wheel / "vllm" / MOE / NAME
    assert "does not say which Triton" in row["note"]


def test_a_table_of_another_triton_is_a_finding(doctor, model):
    assert doctor("--model", model, "--triton", "3.6.0", library="sglang").code == 0
    result = doctor("--model", model, "--triton", "3.7.1", library="sglang")
    (row,) = rows_of(result)
    assert (result.code, row["state"], row["triton"]) == (1, "other triton", "3.6.0")
    assert "made with 3.6.0, this is 3.7.1" in row["note"]


def test_what_a_model_lacks_at_a_parallel_size_is_missing(doctor, model):
    result = doctor("--model", model, "--tp", 2)
    (row,) = rows_of(result)
    assert (result.code, row["state"], row["path"]) == (1, "missing", None)
    assert (row["problem"], row["gain"], row["gpu_minutes"]) == ("E=128 N=384", None, None)
    assert "E=128,N=384,device_name=NVIDIA_H200.json" in row["note"]
    uneven = doctor("--model", model, "--tp", 7)
    assert (uneven.code, "768" in uneven.error) == (2, True)


FAULTS = {
    "truncated": (lambda text: text[:100], "not JSON"),
    "wrong key": (lambda text: text.replace('"num_warps"', '"num_wraps"'), "num_wraps"),
    "missing key": (lambda text: text.replace('"BLOCK_SIZE_N"', '"num_ctas"'), "BLOCK_SIZE_N"),
    "no size": (lambda text: text.replace('"64": {', '"many": {'), "many"),
    "no power of two": (
        lambda text: text.replace('"BLOCK_SIZE_M": 16', '"BLOCK_SIZE_M": 24'),
        "24",
    ),
    "text": (lambda text: text.replace('"num_stages": 3', '"num_stages": "3"'), "num_stages"),
    "empty": (lambda text: "{}", "no rows"),
    "no text": (lambda text: "\ud800", "UTF-8"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_table_has_one_line_and_the_others_go_on(doctor, wheel, fault):
    change, word = FAULTS[fault]
    path = wheel / "vllm" / MOE / "E=128,N=512,device_name=NVIDIA_H200.json"
    before = path.read_text()
    changed = change(before)
    assert changed != before
    path.write_bytes(changed.encode(errors="surrogatepass"))
    result = doctor()
    rows = by_problem(result)
    row = rows.pop(("vllm-moe", "E=128 N=512"))
    assert (result.code, row["state"]) == (1, "malformed")
    assert word in row["note"]
    assert "\n" not in row["note"]
    assert len(rows) == 3
    assert "malformed" not in {each["state"] for each in rows.values()}


def test_bad_input_has_one_clear_line(tuner, doctor, folder, wheel, model):
    assert "there is no GPU here" in tuner("check", "--library", "vllm").error
    assert "did you mean 'vllm'" in doctor(library="vlm").error
    assert (
        "vllm is not installed here" in tuner("check", "--library", "vllm", "--device", "x").error
    )
    assert "cannot be read" in doctor(tables=folder / "none").error
    assert "cannot be read" in doctor(tables=model).error
    (folder / "empty").mkdir()
    assert "there are no tables of vllm" in doctor(tables=folder / "empty").error
    assert "none.json: No such file" in doctor("--model", "none.json").error
    (folder / "cut.json").write_text('{"hidden_size": ')
    assert "it is not JSON" in doctor("--model", "cut.json").error
    (folder / "dense.json").write_text('{"hidden_size": 4096, "num_attention_heads": 32}')
    assert "needs no table of vllm" in doctor("--model", "dense.json").error
    (folder / "half.json").write_text('{"num_experts": 8}')
    assert "the model's config has no num_experts_per_tok" in doctor("--model", "half.json").error
    assert "--retune needs --model" in doctor("--retune").error
    assert "--trials belongs to --retune" in doctor("--trials", 3).error
    assert "no list of sizes" in doctor("--sizes", "1,x").error
    assert "belong to --library" in tuner("check", "--tp", 2).error


def test_a_table_is_not_tuned_without_its_device(doctor, folder, model):
    result = doctor("--model", model, "--tp", 2, "--retune", "-o", "out")
    assert (result.code, result.error) == (2, "there is no NVIDIA H200 here to tune on")
    assert not (folder / "out").exists()


def record(folder: Path, gemm: str, tokens: int = 8) -> str:
    """A recording of one product on an H200; `FASTER` is the fastest config."""
    values = {
        "BLOCK_SIZE_M": (16, 32), "BLOCK_SIZE_N": (64, 128), "BLOCK_SIZE_K": (64, 128),
        "GROUP_SIZE_M": (1,), "num_warps": (4,), "num_stages": (3, 4),
    }  # fmt: skip
    configs = [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]
    times = {json.dumps(DEFAULT): 30.0, json.dumps(FASTER): 20.0}
    dims = {"experts": 128, "top_k": 8, "hidden": 2048, "intermediate": 384, "dtype": "bfloat16"}
    space = RecordedSpace(
        "moe_matmul",
        Workload.of(tokens=tokens, gemm=gemm, **dims),
        H200,
        Toolchain(torch="2.11.0", triton="3.6.0"),
        tuple(RecordedParameter(name, "integer", found) for name, found in values.items()),
        DEFAULT,
        tuple(RecordedConfig(c, median_us=times.get(json.dumps(c), 40.0)) for c in configs),
        noise=Noise(sigma=0.001),
    )
    space.save(folder / f"{gemm}.json")
    return f"recorded:{gemm}.json"


def test_missing_tables_are_tuned_and_written_where_the_library_reads(doctor, folder, model):
    kernels = [record(folder, gemm) for gemm in ("gate_up", "down")]
    (folder / "config.yaml").write_text(
        f"version: 1\npool: {{kind: virtual}}\nmeasure: {{final_pairs: 8}}\nkernels: {kernels}\n"
    )
    arguments = ("--model", model, "--tp", 2, "--triton", "3.6.0", "--sizes", 8)
    result = doctor(*arguments, "--retune", "--trials", 16, "-o", "out")
    assert result.code == 0, result.err
    (row,) = rows_of(result)
    written = folder / "out" / "E=128,N=384,device_name=NVIDIA_H200.json"
    assert (row["state"], row["triton"], Path(row["path"])) == ("ok", "3.6.0", written)
    assert json.loads(written.read_text())["8"] == FASTER
    assert f"VLLM_TUNED_CONFIG_FOLDER={written.parent}" in result.err
    assert row["gain"] == pytest.approx(1.0, rel=0.02)

    # Without that folder the table is missing, and the results say what it gains and costs.
    (row,) = rows_of(doctor(*arguments))
    assert (row["state"], row["gain_sizes"]) == ("missing", 1)
    assert row["gain"] == pytest.approx(1.5, rel=0.02)
    assert 0 < row["gpu_minutes"] < 1

    # A table that makes the library slower than no table at all.
    slow = {**DEFAULT, "BLOCK_SIZE_M": 32}
    written.write_text(json.dumps({"8": slow}))
    (row,) = rows_of(doctor(*arguments, tables=written.parent))
    assert row["slower_sizes"] == [8]
    assert "slower than the default at 8" in row["note"]
    assert row["gain"] == pytest.approx(2.0, rel=0.02)


def test_sglangs_separate_files_are_examined_with_the_first_products(doctor, model, folder):
    configs = folder / "sglang-tables" / "configs" / "triton_3_5_1"
    configs.mkdir(parents=True)
    first = {"8": {**DEFAULT}, "64": {**DEFAULT, "BLOCK_SIZE_M": 64}}
    (configs / NAME).write_text(json.dumps(first))
    call = ("--model", model, "--triton", "3.5.1")
    (row,) = rows_of(doctor(*call, tables=configs.parents[1], library="sglang"))
    assert row["note"] == "down has no file of its own and takes this one's rows"
    second = {"8": DEFAULT, "60": DEFAULT, "64": {**DEFAULT, "USE_TMA": True}}
    down = configs / NAME.replace(".json", "_down.json")
    down.write_text(json.dumps(second))
    rows = rows_of(doctor(*call, tables=configs.parents[1], library="sglang"))
    assert [row["layer"] for row in rows] == ["experts", "experts.down"]
    note = "BLOCK_SIZE_M of rows 60, 64 becomes that of the first product's file"
    assert rows[1]["note"] == note
    assert {row["state"] for row in rows} == {"ok"}
    down.write_text('{"8": {}}')
    result = doctor(*call, tables=configs.parents[1], library="sglang")
    assert [row["state"] for row in rows_of(result)] == ["ok", "malformed"]
    assert result.code == 1
