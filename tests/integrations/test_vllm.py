"""vLLM's tables, against files and answers of vLLM 0.33.0."""

from __future__ import annotations

import json

import pytest
from adapter_contract import DATA, H200, AdapterContract, named
from model_configs import DEEPSEEK_V3, FP8_BLOCKS, LLAMA3_8B, MIXTRAL, QWEN3_30B

from search_spaces.errors import TunerError
from search_spaces.registry import load as load_kernel
from tuner.integrations import SizeTable, TableKey, adapter, load_model

MOE = adapter("vllm-moe")
PRODUCT = adapter("vllm-block-fp8")


class TestMoe(AdapterContract):
    name = "vllm-moe"
    model = QWEN3_30B
    unread = (("", None), ""), (("int8_w8a8", None), "int8_w8a8"), (("", None, ("down",)), "down")


class TestBlockFp8(AdapterContract):
    name = "vllm-block-fp8"
    letters = ("N", "K")
    model = DEEPSEEK_V3


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


def test_slashes_and_spaces_of_a_device_name_become_underscores():
    (shape,) = MOE.shapes(QWEN3_30B)
    name = MOE.file_name(shape.key, "AMD Instinct  MI300X/OAM")
    assert name == "E=128,N=768,device_name=AMD_Instinct_MI300X_OAM.json"


def quantized(model=QWEN3_30B, **quantization):
    return {**model, "quantization_config": quantization}


def test_quantizations_have_the_librarys_words():
    def name(**quantization):
        return names(quantized(**quantization))

    int8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
    group = {"weights": int8, "input_activations": {"num_bits": 8, "type": "int"}}
    assert name(quant_method="experts_int8")[0].endswith("H200,dtype=int8_w8a16.json")
    # vLLM gives products of int8 codes no dtype in the name.
    assert name(quant_method="compressed-tensors", config_groups={"group_0": group}) == [
        "E=128,N=768,device_name=NVIDIA_H200.json"
    ]
    assert name(quant_method="awq", bits=4) == []


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
    default = MOE.translate_back("moe_matmul", MOE.default(shape.key, 64, H200))
    for _, workload in pairs:
        kernel.check_workload(workload)
        assert kernel.space(workload).bind(workload, H200).why_not(default) is None


@pytest.mark.parametrize(
    ("library", "quantization", "codes"),
    [
        ("vllm-moe", DEEPSEEK_V3["quantization_config"], "fp8_block128"),
        ("sglang-moe", DEEPSEEK_V3["quantization_config"], "fp8_block128"),
        ("vllm-moe", {"quant_method": "fp8"}, "fp8_tensor"),
        ("vllm-moe", {"quant_method": "experts_int8"}, "int8_channel"),
    ],
)
def test_quantized_experts_have_workloads_that_lead_back_to_their_row(library, quantization, codes):
    kernel, own = load_kernel("moe_matmul"), adapter(library)
    for shape in own.shapes(quantized(DEEPSEEK_V3, **quantization), tensor_parallel=8):
        pairs = own.workloads(shape, 64)
        assert [workload["quantized"] for _, workload in pairs] == [codes, codes]
        default = own.translate_back("moe_matmul", own.default(shape.key, 64, H200))
        for name, workload in pairs:
            kernel.check_workload(workload)
            place = own.place(name, workload)
            assert (place.key, place.size, place.part) == (shape.key, 64, workload["gemm"])
            space = kernel.space(workload).bind(workload, H200)
            assert "BLOCK" not in (space.why_not(default) or "")


def test_experts_that_our_kernel_does_not_take_have_no_workloads():
    for sides in ([64, 64], [128, 64]):
        model = quantized(DEEPSEEK_V3, quant_method="fp8", weight_block_size=sides)
        assert MOE.workloads(MOE.shapes(model)[0], 64) == []


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
        (quantized(quant_method="fp8", weight_block_size=128), "block shape 128"),
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


def test_products_of_a_model_are_those_of_the_shipped_tables():
    found = {(s.key.size("N"), s.key.size("K")) for s in PRODUCT.shapes(DEEPSEEK_V3, 8)}
    # All products of DeepSeek-V3 on eight H200 for which vLLM ships a table.
    assert found == {
        (2112, 7168),  # fused_qkv_a_proj
        (3072, 1536),  # q_b_proj
        (4096, 512),  # kv_b_proj
        (7168, 2048),  # o_proj
        (512, 7168),  # shared experts, gate and up
        (7168, 256),  # shared experts, down
    }
    dense = {**DEEPSEEK_V3, "first_k_dense_replace": 3}
    more = {(s.key.size("N"), s.key.size("K")) for s in PRODUCT.shapes(dense, 8)} - found
    assert more == {(4608, 7168), (7168, 2304)}
    llama = {**LLAMA3_8B, "quantization_config": FP8_BLOCKS}
    assert [(s.layer, s.dims["N"], s.dims["K"]) for s in PRODUCT.shapes(llama, 16)] == [
        ("qkv_proj", (2 + 2) * 128, 4096),
        ("o_proj", 4096, 256),
        ("mlp.gate_up_proj", 2 * 896, 4096),
        ("mlp.down_proj", 4096, 896),
    ]
    assert PRODUCT.shapes(LLAMA3_8B) == []


def test_configs_of_our_product_are_expressed_or_refused():
    ours = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}
    row = PRODUCT.translate("fp8_matmul", {**ours, "loads": "pointer", "SPLIT_K": 1})
    assert row == named((64, 128, 128, 1, 4, 3))
    for name, value in {"loads": "descriptor", "SPLIT_K": 4, "swap": True}.items():
        with pytest.raises(TunerError, match=f"vllm-block-fp8 cannot express {name}={value}"):
            PRODUCT.translate("fp8_matmul", {**ours, name: value})
    swapped = adapter("sglang-block-fp8").translate("fp8_matmul", {**ours, "swap": True})
    assert swapped == {**row, "SWAP_AB": True, "SPLIT_K": 1}


def test_shipped_rows_come_back_from_our_parameters():
    key = TableKey((("N", 4096), ("K", 7168)), "fp8_w8a8", (128, 128))
    path = PRODUCT.find(DATA / "vllm", key, "NVIDIA H200")
    table = PRODUCT.read(path.read_text(), path.name)
    for config in table.rows.values():
        ours = PRODUCT.translate_back("fp8_matmul", config)
        assert ours["BLOCK_M"] == config["BLOCK_SIZE_M"]
        assert PRODUCT.translate("fp8_matmul", ours) == config


def test_an_unknown_library_is_refused_with_the_known_ones():
    from tuner.integrations import adapters

    with pytest.raises(TunerError, match="'vlm'; did you mean 'vllm'"):
        adapters("vlm")
