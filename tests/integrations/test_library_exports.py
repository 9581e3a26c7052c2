"""`tuner export --format vllm` and `sglang`: files that the libraries load, or one clear line."""

from __future__ import annotations

import json
import logging

import pytest
from tuned_runs import H200, add_layer, add_result, moe, tile

from results_db.range_outcomes import group_ranges
from search_spaces.errors import TunerError
from search_spaces.records import Workload
from search_spaces.size_range import Range, RangePlace
from tuner import tables
from tuner.integrations import TableKey, adapter

NAME = "E=128,N=768,device_name=NVIDIA_H200.json"
DEFAULT, WIDE, TALL = tile(16), tile(16, 128), tile(64)


def exported(store, tmp_path, library="vllm"):
    out = tmp_path / "out"
    paths = tables.export(store, 1, out, library)
    return {f"{path.relative_to(out)}": json.loads(path.read_text()) for path in paths}


def found_by(name, tmp_path, **marks):
    """The file that a library finds in the exported folder, and its key."""
    library, key = adapter(name), TableKey((("E", 128), ("N", 768)), **marks)
    variables = {library.environment: str(tmp_path / "out")}
    return library.find(tmp_path / "package", key, "NVIDIA H200", "3.6.0", variables), key


def timed(winner, us=10.0):
    """Times of the default and of a faster config."""
    return [(DEFAULT, 20.0), (winner, us)]


def test_all_sizes_of_a_problem_become_rows_of_one_file_that_the_library_finds(store, tmp_path):
    for tokens, winner in ((1, WIDE), (64, TALL), (4096, TALL)):
        add_layer(store, tokens, timed(winner))
    assert exported(store, tmp_path) == {
        NAME: {"triton_version": "3.6.0", "1": WIDE, "64": TALL, "4096": TALL}
    }
    library, (path, key) = adapter("vllm-moe"), found_by("vllm-moe", tmp_path)
    table = library.read(path.read_text(), path.name)
    assert library.choice(table, key, 30, H200) == {**WIDE, "SPLIT_K": 1}


def test_sglangs_second_product_gets_a_file_of_its_own_where_it_gains(store, tmp_path):
    folder, down = "configs/triton_3_6_0", NAME.replace(".json", "_down.json")
    add_layer(store, 1, timed(WIDE))
    assert exported(store, tmp_path, "sglang") == {f"{folder}/{NAME}": {"1": WIDE}}
    assert found_by("sglang-moe", tmp_path)[0].name == NAME
    add_layer(store, 64, timed(WIDE), [*timed(tile(16, 32), 9.0), (WIDE, 11.0)])
    assert exported(store, tmp_path, "sglang") == {
        f"{folder}/{NAME}": {"1": WIDE, "64": WIDE},
        f"{folder}/{down}": {"1": WIDE, "64": tile(16, 32)},
    }
    assert found_by("sglang-moe", tmp_path, marks=("down",))[0].name == down
    assert tables.check_export(store, 1, tmp_path / "out", "sglang") == []
    assert exported(store, tmp_path)[NAME]["64"] == WIDE


def test_both_products_of_sglang_take_tokens_in_blocks_of_equal_rows(store, tmp_path):
    """The library launches the second product with the first one's rows per block."""
    add_layer(store, 8, [*timed(WIDE), (TALL, 12.0)], [*timed(TALL), (tile(64, 128), 5.0)])
    rows = {path[-9:-5]: table["8"] for path, table in exported(store, tmp_path, "sglang").items()}
    # Separate winners would cost 15 us, but cannot be launched together.
    assert rows == {"H200": WIDE, "down": DEFAULT}


def test_what_is_adjusted_row_by_row_has_one_file_for_both_products(store, tmp_path):
    from tuner.tables.library_tables import Sglang
    from tuner.tables.results import Results

    add_layer(store, 8, timed(WIDE), timed(tile(16, 32), 9.0))
    found = Sglang()
    assert len(list(found.files(Results(store, 1)))) == 2
    found.adjust = lambda table: table
    assert len(list(found.files(Results(store, 1)))) == 1


def test_a_row_has_the_config_with_the_least_time_of_both_products(store, tmp_path):
    add_layer(store, 8, [*timed(WIDE), (TALL, 11.0)], [*timed(WIDE, 14.0), (TALL, 12.0)])
    assert exported(store, tmp_path)[NAME]["8"] == TALL


def test_problems_that_share_a_file_share_its_rows(store, tmp_path):
    for hidden, fast in ((2048, WIDE), (4096, TALL)):
        slow = [(config, 10.0 if config == fast else 30.0) for config in (WIDE, TALL)]
        add_layer(store, 8, [(DEFAULT, 12.0), *slow], hidden=hidden)
    # Each problem's winner is three times slower for the other one; the default is good for both.
    assert exported(store, tmp_path)[NAME]["8"] == DEFAULT


def test_a_product_that_was_not_tuned_is_named(store, tmp_path, caplog):
    add_result(store, 1, "moe_matmul", moe(8, "gate_up"), timed(WIDE))
    with caplog.at_level(logging.WARNING):
        assert exported(store, tmp_path)[NAME]["8"] == WIDE
    (line,) = [record.getMessage() for record in caplog.records]
    assert "size 8 configures gate_up and down, of which only gate_up was tuned" in line


def test_a_winner_that_may_be_slower_does_not_ship(store, tmp_path):
    times = [(DEFAULT, 9.9), (WIDE, 9.8)]
    add_result(store, 1, "moe_matmul", moe(8, "gate_up"), times, verdict="slower")
    assert exported(store, tmp_path)[NAME]["8"] == DEFAULT


def test_a_kernel_without_a_place_is_refused_in_one_line(store, tmp_path):
    add_result(store, 1, "softmax", Workload.of(rows=8, cols=8), [(DEFAULT, 2.0), (WIDE, 1.0)])
    with pytest.raises(TunerError, match="run 1 has nothing for vllm") as caught:
        exported(store, tmp_path)
    assert "no table of vllm has configs of softmax, only of fp8_matmul, moe_m" in f"{caught.value}"
    assert "\n" not in caught.value.message
    assert not (tmp_path / "out").exists()


def test_a_product_that_the_library_does_not_launch_is_left_out(store, tmp_path, caplog):
    add_result(store, 1, "moe_matmul", moe(8, "gate_up_silu"), timed(WIDE))
    with pytest.raises(TunerError, match=r"vllm-moe cannot express moe_matmul \[.*gate_up_silu"):
        exported(store, tmp_path)
    add_layer(store, 8, timed(WIDE))
    assert list(exported(store, tmp_path)) == [NAME]
    assert "cannot express" in caplog.text


def test_float8_experts_with_scales_by_blocks_get_their_own_file(store, tmp_path):
    sizes = {"experts": 256, "hidden": 7168, "intermediate": 256}
    for tokens in (8, 512):
        add_layer(store, tokens, timed(TALL), **sizes, quantized="fp8_block128")
        add_layer(store, tokens, timed(WIDE), **sizes)
    plain, scaled = "E=256,N=256,device_name=NVIDIA_H200", ",dtype=fp8_w8a8,block_shape="
    found = exported(store, tmp_path)
    assert found[f"{plain}{scaled}[128,128].json"]["8"] == TALL
    assert found[f"{plain}.json"]["8"] == WIDE
    sglang = exported(store, tmp_path, "sglang")
    assert sglang[f"configs/triton_3_6_0/{plain}{scaled}[128, 128].json"]["512"] == TALL


PRODUCT = Workload.of(M=16, N=4096, K=7168, scales="block128", dtype="float8_e4m3fn")
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}
PLAIN = {**TILE, "loads": "pointer", "SPLIT_K": 1, "swap": False, "dot": "float8"}


def test_a_block_scaled_product_has_the_fastest_config_that_the_library_can_launch(store, tmp_path):
    times = [(PLAIN, 20.0), ({**PLAIN, "BLOCK_N": 128}, 15.0), ({**PLAIN, "SPLIT_K": 4}, 10.0)]
    add_result(store, 1, "fp8_matmul", PRODUCT, times)
    name = "N=4096,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    folder = "package/vllm/model_executor/layers/quantization/utils/configs"
    row = exported(store, tmp_path)[f"{folder}/{name}"]["16"]
    assert (row["BLOCK_SIZE_N"], "SPLIT_K" in row) == (128, False)
    (rows,) = exported(store, tmp_path, "sglang").values()
    assert (rows["16"]["SPLIT_K"], rows["16"]["SWAP_AB"]) == (4, False)


def test_a_product_without_an_expressible_config_is_refused_with_the_parameter(store, tmp_path):
    split = {**TILE, "SPLIT_K": 4}
    add_result(store, 1, "fp8_matmul", PRODUCT, [(split, 20.0), ({**split, "BLOCK_N": 128}, 10.0)])
    with pytest.raises(TunerError, match="vllm-block-fp8 cannot express SPLIT_K=4") as caught:
        exported(store, tmp_path)
    assert "fix that parameter" in caught.value.hint


def places_of(dim, *sizes, held_out=()):
    """Sizes of a range of a dim with their places."""
    ranges = ((dim, Range(1, 4096)),)
    return {size: RangePlace(ranges, 0.02, 8, None, size in held_out) for size in sizes}


def test_the_lookup_gives_at_every_size_what_the_range_chose(store, tmp_path):
    """With as many rows as parts here: each switch lies midway between two keys."""
    places = places_of("M", 1, 24, 100, 700, 4096)
    kinds = [{**PLAIN, "BLOCK_N": 32 << at} for at in range(4)]
    for (size, place), fast in zip(places.items(), (1, 1, 2, 2, 3), strict=True):
        times = [(each, 10.0 + abs(at - fast)) for at, each in enumerate(kinds)]
        add_result(store, 1, "fp8_matmul", PRODUCT.with_dims(M=size), times, place=place)
    (rows,) = exported(store, tmp_path).values()
    parts = group_ranges(store.tasks(1))[0].list_parts()
    assert len(rows) == len(parts) == 3
    sides = {int(key): row["BLOCK_SIZE_N"] for key, row in rows.items()}
    nearest = adapter("vllm-block-fp8").nearest
    for part in parts:
        side = json.loads(part.segment.config)["BLOCK_N"]
        for size in range(part.segment.low, part.segment.high + 1):
            assert sides[nearest(sides, size)] == side
    assert tables.check_export(store, 1, tmp_path / "out", "vllm") == []


def test_both_products_of_a_range_share_rows_of_sizes_at_which_both_were_measured(store, tmp_path):
    places = places_of("tokens", 1, 64, 300, 1000, 4096, held_out=[1000])
    for size, place in places.items():
        fast = TALL if size == 1000 else WIDE if size < 100 else DEFAULT
        times = [(each, 10.0 if each == fast else 12.0) for each in (DEFAULT, WIDE, TALL)]
        add_result(store, 1, "moe_matmul", moe(size, "gate_up"), times, place=place)
        # `down` was left out at 300, and wins by little at 64 with a config of its own.
        if size != 300:
            near = [(config, us - 0.1 * (config == TALL)) for config, us in times]
            add_result(store, 1, "moe_matmul", moe(size, "down"), near, place=place)
    for library in ("vllm", "sglang"):
        (rows,) = exported(store, tmp_path / library, library).values()
        rows = {int(key): row for key, row in rows.items() if key != "triton_version"}
        nearest = adapter(f"{library}-moe").nearest
        assert [rows[nearest(rows, size)] for size in (1, 64, 4096)] == [WIDE, WIDE, DEFAULT]
        assert len(rows) == 2


def test_sizes_of_a_range_without_a_config_for_both_products_are_left_out(store, tmp_path):
    def add(sizes, fast, configs):
        for size, place in places_of("tokens", *sizes).items():
            times = [(each, 10.0 if each == fast else 12.0) for each in configs]
            add_result(store, 1, "moe_matmul", moe(size, "gate_up"), times, place=place)
            down = [(TALL, 9.0)] if len(configs) == 1 else times
            add_result(store, 1, "moe_matmul", moe(size, "down"), down, place=place)

    add([64], WIDE, [WIDE])
    with pytest.raises(TunerError, match="no config was timed for all of"):
        exported(store, tmp_path / "none")
    add([1, 4096], DEFAULT, [DEFAULT, WIDE])
    (rows,) = exported(store, tmp_path / "some").values()
    assert [row for key, row in rows.items() if key != "triton_version"] == [DEFAULT]
