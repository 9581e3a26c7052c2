"""`tuner import`: configs of other tools are tried first, and library tables are to be beaten."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
from adapter_contract import DATA
from hostile_json import hostile_texts
from tuned_runs import H200, add_result, moe, tile
from ways_library import install

from results_db import Store
from search_spaces.errors import TunerError
from search_spaces.kernels.moe_matmul.space import QUANTIZED
from search_spaces.records import Workload
from search_spaces.registry import load as load_kernel
from tuner import tables
from tuner.cli import invoke
from tuner.integrations import adapter
from tuner.integrations.importers import import_priors
from tuner.integrations.priors import MOST, Prior, Priors, fit_config, read_folder, write
from workers.device import find_devices

MOE = adapter("vllm-moe")
NAME = "E=128,N=768,device_name=NVIDIA_H200.json"
SOFTMAX = "rows=8 cols=1024 dtype=float16"
ROWS = {0: [{"BLOCK": 1024, "num_warps": 4}, {"BLOCK": 512, "num_warps": 4}]}


@pytest.fixture
def shipped():
    return DATA / "vllm" / MOE.folder / NAME


def bound(kernel, workload):
    return load_kernel(kernel).space(workload).bind(workload, H200)


def test_a_librarys_table_is_the_default_of_its_device_and_a_start_elsewhere(shipped):
    (prior,) = import_priors(shipped)
    dims = {"experts": 128, "intermediate": 768, "quantized": None}
    assert (prior.kernel, prior.dims) == ("moe_matmul", dims)
    rows = json.loads(shipped.read_text())
    priors, hits = Priors([prior]), 0
    for tokens in (1, 20, 48, 1000, 4096, 100_000):
        # The row that the library would take.
        nearest = rows[f"{MOE.nearest(map(int, rows), tokens)}"]
        workload = moe(tokens, "gate_up")
        space = bound("moe_matmul", workload)
        default = priors.default("moe_matmul", workload, space, "NVIDIA H200")
        assert (default == nearest) == space.feasible(nearest)
        hits += default is not None
        assert priors.default("moe_matmul", workload, space, "NVIDIA B200") is None
        starts = priors.starts("moe_matmul", workload, space)
        assert len(starts) == 1
        assert space.feasible(starts[0])
    assert hits >= 3
    for quantized in QUANTIZED:
        assert prior.configs(moe(48, "gate_up", quantized=quantized)) == ()
    other = moe(48, "gate_up", intermediate=512)
    assert priors.starts("moe_matmul", other, bound("moe_matmul", other)) == []
    product = Workload.of(M=48, N=768, K=128, scales="row", dtype="float8_e4m3fn")
    assert priors.starts("fp8_matmul", product, bound("fp8_matmul", product)) == []


def test_a_table_of_the_second_product_goes_before_that_of_both(tmp_path):
    rows = {"": tile(16, 64), "_down": tile(16, 128, USE_TMA=True)}
    for mark, row in rows.items():
        path = tmp_path / f"E=128,N=768,device_name=NVIDIA_H200{mark}.json"
        path.write_text(json.dumps({"1": row}))
    found = Priors([import_priors(path)[0] for path in sorted(tmp_path.iterdir())])
    for gemm, width in (("gate_up", 64), ("down", 128)):
        workload = moe(16, gemm)
        space = bound("moe_matmul", workload)
        starts = found.starts("moe_matmul", workload, space)
        assert starts[0]["BLOCK_SIZE_N"] == width
        default = found.default("moe_matmul", workload, space, "NVIDIA H200")
        assert default == tile(16, width)


def test_all_committed_tables_are_imported_or_refused_with_a_reason():
    kernels, refused = [], []
    for path in sorted(DATA.rglob("*device_name=*.json")):
        try:
            kernels += [prior.kernel for prior in import_priors(path)]
        except TunerError as error:
            refused.append(error.message)
    assert refused
    assert all("no kernel of tuner computes" in message for message in refused)
    assert kernels.count("moe_matmul") >= 4
    assert kernels.count("fp8_matmul") == 2


def test_values_outside_a_space_become_the_nearest_ones():
    workload = moe(4096, "gate_up")
    space = bound("moe_matmul", workload)
    near = fit_config(space, tile(64, GROUP_SIZE_M=10, num_stages=9))
    assert space.feasible(near)
    assert (near["BLOCK_SIZE_M"], near["GROUP_SIZE_M"]) == (64, 8)


def test_a_table_of_quantized_experts_is_for_these_alone(tmp_path):
    name = "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    (tmp_path / name).write_text(json.dumps({"64": tile(64, 128, BLOCK_SIZE_K=128)}))
    (prior,) = import_priors(tmp_path / name)
    sizes = {"experts": 256, "hidden": 7168, "intermediate": 256}
    some = moe(64, "gate_up", **sizes, quantized="fp8_block128")
    priors = Priors([prior])
    space = bound("moe_matmul", some)
    default = priors.default("moe_matmul", some, space, "NVIDIA H200")
    assert default == tile(64, 128, BLOCK_SIZE_K=128)
    assert prior.configs(moe(64, "gate_up", **sizes)) == ()
    assert prior.configs(moe(64, "gate_up", **sizes, quantized="fp8_tensor")) == ()


@pytest.mark.parametrize(
    ("more", "row", "library"),
    [
        ({"triton_version": "3.4.0"}, tile(16), "vllm-moe"),
        ({}, tile(16, USE_TMA=True), "sglang-moe"),
    ],
)
def test_a_table_outside_its_library_is_of_the_one_that_reads_it(tmp_path, more, row, library):
    path = tmp_path / "E=8,N=305,device_name=NVIDIA_H200.json"
    path.write_text(json.dumps({**more, "1": row}))
    (prior,) = import_priors(path)
    assert (prior.format, list(prior.rows)) == (library, [1])


def test_results_of_tuner_as_t4_come_back_with_their_best_configs(store, tmp_path):
    times = [
        (tile(16 << at, cols), 100.0 - at - cols / 64) for at in range(4) for cols in (64, 128)
    ]
    add_result(store, 1, "moe_matmul", moe(256, "down"), times)
    paths = tables.export(store, 1, tmp_path, "t4")
    (prior,) = import_priors(next(path for path in paths if "metadata" not in path.name))
    assert (prior.kernel, prior.dims) == ("moe_matmul", moe(256, "down").as_dict())
    fastest = [config for config, _ in sorted(times, key=lambda pair: pair[1])]
    assert prior.rows[0] == fastest[:MOST]
    assert (prior.device, prior.shipped) == ("NVIDIA H200", False)
    workload = moe(256, "down")
    assert Priors([prior]).starts("moe_matmul", workload, bound("moe_matmul", workload))


CACHE = {
    "device_name": "NVIDIA H200",
    "kernel_name": "softmax",
    "problem_size": [8, 1024],
    "tune_params_keys": ["BLOCK", "num_warps"],
    "tune_params": {"BLOCK": [512, 1024], "num_warps": [4, 8]},
    "objective": "time",
    "cache": {
        "512,4": {"BLOCK": 512, "num_warps": 4, "time": 0.5, "times": [0.5]},
        "512,8": {"BLOCK": 512, "num_warps": 8, "time": "CompilationFailedConfig"},
        "1024,4": {"BLOCK": 1024, "num_warps": 4, "time": 0.25},
    },
}


@pytest.mark.parametrize("cut", [0, 3])
def test_a_kernel_tuner_cache_is_read_also_while_it_is_written(tmp_path, cut):
    path = tmp_path / "cache.json"
    text = json.dumps(CACHE)
    assert text.endswith("}}}")
    # A run in progress has a comma in place of the braces that close the file.
    path.write_text(f"{text[:-2]}," if cut else text)
    (prior,) = import_priors(path, "softmax", Workload.of(rows=8, cols=1024))
    assert prior.rows[0] == [{"BLOCK": 1024, "num_warps": 4}, {"BLOCK": 512, "num_warps": 4}]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", None, "No such file"),
        ("a.json", "{", "no JSON object"),
        ("a.json", "{}", "no format that can be imported"),
        ("a.json", json.dumps(CACHE), "does not name the kernel"),
        ("a.json", '{"schema_version": "1.0.0", "results": {}}', "no list of objects"),
        ("a.json", b"\xff\xfe", "not text"),
        ("E=1,device_name=x.json", "{}", "no table of a known library has this name"),
        (NAME, '{"1": {}}', "size 1 has no BLOCK_SIZE_M"),
        ("E=8,N=64,device_name=x,dtype=int4_w4a16.json", "{}", "no kernel of tuner computes"),
        ("E=8,N=64,device_name=x,dtype=float8.json", "{}", "looks for no file of dtype float8"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TunerError, match=message) as caught:
        import_priors(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_no_file_with_other_values_is_an_unexpected_error(tmp_path, shipped):
    """Each value of a good file in turn is replaced: the file is imported, or refused in a line."""
    t4 = {
        "schema_version": "1.0.0",
        "metadata": {"kernel": "softmax", "workload": {"rows": 8, "cols": 1024}, "device": "x"},
        "results": [
            {
                "configuration": {"BLOCK": 1024, "num_warps": 4},
                "invalidity": "correct",
                "measurements": [{"name": "time", "value": 0.5}],
                "objectives": ["time"],
            }
        ],
    }
    small = dict(list(json.loads(shipped.read_text()).items())[:2])
    workload = Workload.of(rows=8, cols=1024)
    space = bound("softmax", Workload.of(rows=8, cols=1024, dtype="float16"))
    accepted = []
    for name, document in (("t4.json", t4), ("cache.json", CACHE), (NAME, small)):
        path = tmp_path / name
        for text in hostile_texts(document):
            path.write_text(text)
            for given in ((), ("softmax", workload)):
                with one_line_at_most(path):
                    (prior,) = import_priors(path, *given)
                    accepted.append(prior)
    assert len({prior.format for prior in accepted}) == 3
    for prior in accepted:
        stored = write(tmp_path / "priors", prior)
        read = read_folder(tmp_path / "priors")
        read.starts("softmax", workload, space)
        read.default("softmax", workload, space, "NVIDIA H200")
        stored.unlink()
    stored = write(tmp_path / "priors", Prior("softmax", "t4.json", "t4", workload.as_dict(), ROWS))
    for text in hostile_texts(json.loads(stored.read_text())):
        stored.write_text(text)
        with one_line_at_most(stored):
            read_folder(stored.parent).starts("softmax", workload, space)


@contextmanager
def one_line_at_most(path):
    """A context in which nothing is raised, or a TunerError whose one line begins with the path."""
    try:
        yield
    except TunerError as error:
        lines = f"{error.message}".splitlines()
        if len(lines) != 1 or not lines[0].startswith(f"{path}: "):
            raise


def test_a_damaged_prior_is_refused_with_its_path(tmp_path, shipped):
    (prior,) = import_priors(shipped)
    path = write(tmp_path, prior)
    assert read_folder(tmp_path) == Priors([prior])
    assert write(tmp_path, prior) == path
    path.write_text('{"schema": "tuner-priors/2"}')
    with pytest.raises(TunerError, match="no tuner-priors/1") as caught:
        read_folder(tmp_path)
    assert f"{path}" in caught.value.message


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(
        "version: 1\ncampaigns: {c: {tasks: [{kernel: softmax}]}}\n"
    )

    def run(*arguments):
        capsys.readouterr()
        code = invoke(["import", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def test_the_command_stores_all_files_or_none(call, shipped, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    code, _, err = call(shipped, bad)
    assert (code, (tmp_path / "results").exists()) == (2, False)
    assert "no format that can be imported" in err
    code, out, err = call(shipped)
    assert code == 0
    (path,) = out.split("\n")[:-1]
    assert path.endswith(".priors.json")
    assert "moe_matmul [experts=128 intermediate=768]: 18 configs by tokens, the default on" in err
    assert len(read_folder(tmp_path / "results" / "priors").found) == 1


def test_a_run_compares_with_the_librarys_row(tmp_path, monkeypatch, capsys):
    install(tmp_path, monkeypatch)
    device = find_devices("cpu")[0].name
    name = f"A=1,B=1,device_name={'_'.join(device.replace('/', ' ').split())}.json"
    (tmp_path / name).write_text('{"1": {"way": "steady"}, "800": {"way": "small"}}')
    assert invoke(["import", name]) == 0
    assert invoke(["run", "c", "--no-report"]) == 0, capsys.readouterr().err
    with Store.open("sqlite:///tuner.db") as store:
        (task,) = store.tasks(1)
        first = store.trials(task.task_id)[0]
    # The kernel's own default is `steady`; the library launches its row of 800 at 1000 elements.
    assert task.selection.default == {"way": "small"}
    assert (first.number, first.config) == (0, {"way": "small"})


def test_foreign_parameters_and_workloads_are_refused(call, tmp_path):
    path = tmp_path / "cache.json"
    renamed = {**CACHE, "tune_params_keys": ["block_size_x"]}
    renamed["cache"] = {"512": {"block_size_x": 512, "time": 1.0}}
    path.write_text(json.dumps(renamed))
    for kernel, workload, message in (
        ("softmax", SOFTMAX, "kernel softmax has no parameter block_size_x"),
        ("softmax", "8 x 1024", "is not a list of dims"),
        ("softmx", SOFTMAX, "softmx"),
    ):
        code, _, err = call(path, "--kernel", kernel, "--workload", workload)
        assert code == 2
        assert message in err
