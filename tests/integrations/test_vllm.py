"""vLLM's tables, against files and answers of vLLM 0.33.0."""

from __future__ import annotations

import json

import pytest
from adapter_contract import H200, AdapterContract
from model_configs import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL, QWEN3_30B

from search_spaces.errors import TunerError
from search_spaces.registry import load as load_kernel
from tuner.integrations import SizeTable, TableKey, adapter, load_model

MOE = adapter("vllm-moe")


class TestMoe(AdapterContract):
    name = "vllm-moe"
    model = QWEN3_30B


def names(model, **parallel):
    return [MOE.file_name(shape.key, "NVIDIA H200") for shape in MOE.shapes(model, **parallel)]


def test_shapes_of_models():
    assert names(QWEN3_30B) == ["E=128,N=768,device_name=NVIDIA_H200.json"]
    assert names(MIXTRAL, tensor_parallel=2) == ["E=8,N=7168,device_name=NVIDIA_H200.json"]
    blocks = "device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    assert names(DEEPSEEK_V3, tensor_parallel=8) == [f"E=256,N=256,{blocks}"]
    assert names(DEEPSEEK_V3, tensor_parallel=8, expert_parallel=8) == [f"E=32,N=2048,{blocks}"]
    assert names(LLAMA3_8B) == []
    nested = {"text_config": QWEN3_30B, "model_type": "vl"}
    assert names(nested) == names(QWEN3_30B)


def test_quantisations_have_the_librarys_words():
    def name(**quantisation):
        return names({**QWEN3_30B, "quantization_config": quantisation})

    int8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
    group = {"weights": int8, "input_activations": {"num_bits": 8, "type": "int"}}
    assert name(quant_method="experts_int8")[0].endswith("H200,dtype=int8_w8a16.json")
    # vLLM gives products of int8 codes no dtype in the name.
    assert name(quant_method="compressed-tensors", config_groups={"group_0": group}) == [
        "E=128,N=768,device_name=NVIDIA_H200.json"
    ]
    assert name(quant_method="awq", bits=4) == []


def test_files_that_the_library_never_reads_are_named():
    sizes = (("E", 128), ("N", 768))
    assert MOE.unread(TableKey(sizes)) == ""
    assert "int8_w8a8" in MOE.unread(TableKey(sizes, "int8_w8a8"))
    assert "down" in MOE.unread(TableKey(sizes, "", None, ("down",)))


def test_a_users_folder_comes_first_and_replaces_the_whole_file(tmp_path):
    (shape,) = MOE.shapes(QWEN3_30B)
    name = MOE.file_name(shape.key, "NVIDIA H200")
    package, mine = tmp_path / "vllm", tmp_path / "mine"
    assert MOE.find(package, shape.key, "NVIDIA H200") is None
    (package / MOE.folder).mkdir(parents=True)
    (package / MOE.folder / name).write_text("{}")
    mine.mkdir()
    variables = {"VLLM_TUNED_CONFIG_FOLDER": str(mine)}
    found = MOE.find(package, shape.key, "NVIDIA H200", environment=variables)
    assert found == package / MOE.folder / name
    (mine / name).write_text("{}")
    assert MOE.find(package, shape.key, "NVIDIA H200", environment=variables) == mine / name


def test_workloads_are_those_of_our_kernel_and_defaults_are_feasible_there():
    kernel = load_kernel("moe_matmul")
    (shape,) = MOE.shapes(MIXTRAL, tensor_parallel=2)
    pairs = MOE.workloads(shape, 64)
    assert [workload["gemm"] for _, workload in pairs] == ["gate_up", "down"]
    default = MOE.returned("moe_matmul", MOE.default(shape.key, 64, H200))
    for _, workload in pairs:
        kernel.check_workload(workload)
        assert kernel.space(workload).bind(workload, H200).why_not(default) is None
    assert MOE.workloads(MOE.shapes(DEEPSEEK_V3)[0], 64) == []


def test_a_row_is_launched_with_the_librarys_changes():
    key = TableKey((("E", 256), ("N", 512)), "fp8_w8a8", (128, 128))
    row = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 256, "GROUP_SIZE_M": 1}
    table = SizeTable({1: {**row, "SPLIT_K": 4}})
    assert MOE.choice(table, key, 7, H200) == {**row, "BLOCK_SIZE_K": 128, "SPLIT_K": 1}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({**QWEN3_30B, "num_experts_per_tok": None}, "no num_experts_per_tok"),
        ({**QWEN3_30B, "moe_intermediate_size": 769}, "769 cannot be divided by 2"),
        ({**QWEN3_30B, "quantization_config": "fp8"}, "no object"),
        (
            {
                **QWEN3_30B,
                "quantization_config": {"quant_method": "fp8", "weight_block_size": 128},
            },
            "block shape 128",
        ),
    ],
)
def test_a_model_that_cannot_be_read_is_refused(model, message):
    with pytest.raises(TunerError, match=message) as caught:
        MOE.shapes(model, tensor_parallel=2)
    assert caught.value.hint


def test_config_files_are_read_or_refused_in_one_line(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(TunerError, match="No such file"):
        load_model(path)
    path.write_text("model")
    with pytest.raises(TunerError, match="not JSON"):
        load_model(path)
    path.write_text(json.dumps(QWEN3_30B))
    assert load_model(path) == QWEN3_30B


def test_an_unknown_library_is_refused_with_the_known_ones():
    from tuner.integrations import adapters, libraries

    assert "vllm" in libraries()
    with pytest.raises(TunerError, match="'vlm'; did you mean 'vllm'"):
        adapters("vlm")
