"""SGLang's tables, against files and answers of SGLang 0.5.23."""

from __future__ import annotations

from adapter_contract import AdapterContract
from model_configs import DEEPSEEK_V3, QWEN3_30B

from search_spaces.records import Device
from tuner.integrations import TableKey, adapter

MOE = adapter("sglang-moe")
SIZES = (("E", 128), ("N", 704))


class TestMoe(AdapterContract):
    name = "sglang-moe"
    model = QWEN3_30B
    triton = "3.5.1"
    usual = {"num_warps": 4, "num_stages": 3}
    unread = ((("float8", None), "float8"),)


class TestBlockFp8(AdapterContract):
    name = "sglang-block-fp8"
    letters = ("N", "K")
    model = DEEPSEEK_V3
    unread = (("int8_w8a8", (128, 128)), ""), (("fp8_w8a8", None), "fp8_w8a8")


def folders(tmp_path, *versions):
    for version in versions:
        (tmp_path / MOE.folder / f"triton_{version}").mkdir(parents=True)
    return tmp_path / MOE.folder


def test_the_installed_triton_comes_first_and_then_the_newest(tmp_path):
    root = folders(tmp_path, "3_9_0", "3_10_0", "3_2_0")
    names = [path.name for path in MOE.folders(tmp_path, "3.2.0")]
    assert names == ["triton_3_2_0", "triton_3_10_0", "triton_3_9_0"]
    key = TableKey(SIZES)
    for version in ("3_9_0", "3_10_0"):
        (root / f"triton_{version}" / MOE.file_name(key, "NVIDIA H200")).touch()
    assert MOE.find(tmp_path, key, "NVIDIA H200", "3.2.0").parent.name == "triton_3_10_0"
    assert MOE.find(tmp_path, key, "NVIDIA H200", "3.9.0").parent.name == "triton_3_9_0"
    assert MOE.find(tmp_path, key, "NVIDIA H100") is None


def test_the_variable_replaces_the_packages_folder(tmp_path):
    folders(tmp_path, "3_9_0")
    mine = tmp_path / "mine"
    (mine / "configs" / "triton_3_1_0").mkdir(parents=True)
    found = MOE.folders(tmp_path, "3.1.0", {"SGLANG_MOE_CONFIG_DIR": str(mine)})
    assert found == [mine / "configs" / "triton_3_1_0"]


def test_the_second_product_falls_back_to_the_firsts_file(tmp_path):
    root = folders(tmp_path, "3_9_0")
    down = TableKey(SIZES, marks=("down",))
    assert MOE.find(tmp_path, down, "NVIDIA H200", "3.9.0") is None
    first = root / "triton_3_9_0" / MOE.file_name(TableKey(SIZES), "NVIDIA H200")
    first.touch()
    assert MOE.find(tmp_path, down, "NVIDIA H200", "3.9.0") == first
    own = root / "triton_3_9_0" / MOE.file_name(down, "NVIDIA H200")
    own.touch()
    assert MOE.find(tmp_path, down, "NVIDIA H200", "3.9.0") == own


def test_shared_experts_are_experts_of_the_layer_unless_experts_are_divided():
    def counts(**parallel):
        found = MOE.shapes(DEEPSEEK_V3, **parallel)
        return [(shape.key.size("E"), shape.dims["top_k"]) for shape in found]

    assert counts(tensor_parallel=8) == [(257, 9), (256, 8)]
    assert counts(tensor_parallel=8, expert_parallel=8) == [(32, 8)]


def test_defaults_depend_on_the_shared_memory_of_the_card():
    key = TableKey(SIZES, "fp8_w8a8")
    small = Device("cuda", "NVIDIA L40S", "cuda:89", 142, shared_bytes=101_376)
    assert MOE.default(key, 4096, small)["num_stages"] == 2
    assert MOE.default(key, 4, small)["BLOCK_SIZE_K"] == 256


def test_a_step_that_does_not_divide_a_block_of_scales_becomes_one():
    product = adapter("sglang-block-fp8")
    key = TableKey((("N", 4096), ("K", 7168)), "fp8_w8a8", (128, 128))
    assert product.predict_launch(key, {"BLOCK_SIZE_K": 64})["BLOCK_SIZE_K"] == 64
    assert product.predict_launch(key, {"BLOCK_SIZE_K": 96})["BLOCK_SIZE_K"] == 128


def test_tables_of_scales_by_channel_are_of_another_kind():
    name = "N=512,K=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8_channelwise.json"
    assert adapter("sglang-block-fp8").parsed_name(name) is None
