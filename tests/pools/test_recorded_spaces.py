from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_spaces import SCENARIOS, synthesize

from search_spaces.errors import SpaceError, TunerError, WorkloadError
from search_spaces.recorded.entries import Noise
from search_spaces.recorded.recorded_kernel import (
    RecordedKernel,
    RecordedParameter,
    RecordedSpace,
    load_kernel,
)
from search_spaces.records import Status, Toolchain, config_key
from search_spaces.registry import load

H200 = Path(__file__).parents[2] / "benchmarks/spaces/h200"

FAILED = [status for status in Status if status is not Status.CORRECT]


@settings(max_examples=25)
@given(
    configs=st.integers(1, 60),
    seed=st.integers(0, 99),
    scenario=st.sampled_from(sorted(SCENARIOS)),
    failures=st.floats(0, 0.6),
    columns=st.booleans(),
    suffix=st.sampled_from([".json", ".json.gz"]),
)
def test_a_saved_space_is_loaded_as_it_was(
    tmp_path_factory, configs, seed, scenario, failures, columns, suffix
):
    space = synthesize(configs, seed=seed, scenario=scenario, failures=failures, twins=0.2)
    first = tmp_path_factory.getbasetemp() / f"first{suffix}"
    second = tmp_path_factory.getbasetemp() / f"second{suffix}"
    space.save(first, columns=columns)
    loaded = RecordedSpace.load(first)
    assert loaded == space
    loaded.save(second, columns=columns)
    assert first.read_bytes() == second.read_bytes()


def test_columns_are_smaller_and_raw_samples_survive(tmp_path):
    space = synthesize(300)
    entry = replace(space.configs[0], samples_us=(1.5, 2.25, 1.0))
    space = replace(space, configs=(entry, *space.configs[1:]))
    space.save(tmp_path / "rows.json")
    space.save(tmp_path / "columns.json", columns=True)
    assert RecordedSpace.load(tmp_path / "columns.json") == space
    sizes = [(tmp_path / name).stat().st_size for name in ("columns.json", "rows.json")]
    assert sizes[0] < sizes[1] / 2


def test_the_best_of_a_world_is_as_fast_as_the_world_says():
    for name, scenario in SCENARIOS.items():
        space = synthesize(100, scenario=name, failures=0.3)
        assert space.best.median_us is not None
        fastest = synthesize(100, scenario=name).best.median_us
        assert fastest == pytest.approx(scenario.best_us, rel=1e-3)
        assert space[space.default].status is Status.CORRECT
    assert synthesize(50, seed=1) == synthesize(50, seed=1) != synthesize(50, seed=2)
    with pytest.raises(SpaceError, match="no scenario"):
        synthesize(10, scenario="W9")
    with pytest.raises(SpaceError, match="more than"):
        synthesize(10**6)


def test_a_recorded_kernel_is_searched_like_any_other(tmp_path):
    space = synthesize(150, failures=0.2)
    space.save(tmp_path / "space.json")
    kernel = load(f"recorded:{tmp_path}/space.json")
    workload = kernel.workloads()[0]
    bound = kernel.space(workload).bind(workload, kernel.device)
    recorded = {config_key(entry.config) for entry in space.configs}
    assert {config_key(config) for config in bound.enumerate()} == recorded
    assert bound.feasible(kernel.default_config(workload, kernel.device))
    assert kernel.kinds == ("simulated",)
    assert kernel.device.kind == "simulated"
    assert list(kernel.baselines(workload)) == ["eager", "vendor"]
    with pytest.raises(WorkloadError, match="not recorded"):
        kernel.check_workload(workload.with_dims(N=7))


def test_the_hash_is_that_of_the_recording(tmp_path):
    space = synthesize(40)
    for name, columns in (("a.json", False), ("b.json.gz", True)):
        space.save(tmp_path / name, columns=columns)
    slower = replace(space.configs[0], median_us=1e6)
    replace(space, configs=(slower, *space.configs[1:])).save(tmp_path / "c.json")
    first, same, other = (
        load_kernel(tmp_path / f).launch_hash() for f in ("a.json", "b.json.gz", "c.json")
    )
    assert first == same != other


def test_conditional_and_narrowed_parameters(tmp_path):
    space = synthesize(30)
    parameters = (
        RecordedParameter("mode", "choice", ("plain", "split")),
        RecordedParameter("split", "power_of_two", (2, 8), {"mode": ("split",)}),
        RecordedParameter("stages", "integer", (1, 2, 5)),
    )
    configs = [{"mode": "plain", "stages": s} for s in (1, 2, 5)]
    configs += [{"mode": "split", "split": k, "stages": 5} for k in (2, 8)]
    entries = tuple(
        replace(entry, config=config) for entry, config in zip(space.configs, configs, strict=False)
    )
    space = replace(space, parameters=parameters, configs=entries, default=configs[0])
    space.save(tmp_path / "space.json", columns=True)
    kernel = load_kernel(tmp_path / "space.json")
    assert kernel.recorded == space
    workload = kernel.workloads()[0]
    bound = kernel.space(workload).bind(workload, kernel.device)
    assert sorted(map(config_key, bound.enumerate())) == sorted(map(config_key, configs))


def _document(tmp_path):
    synthesize(20).save(tmp_path / "space.json")
    return json.loads((tmp_path / "space.json").read_text())


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d["configs"][3].update(status="fine"), r"configs\[3\]\.status"),
        (lambda d: d["configs"][3].update(median_us=-1), r"configs\[3\]\.median_us"),
        (lambda d: d["configs"][3].update(median_us="fast"), r"configs\[3\]\.median_us"),
        (lambda d: d["configs"][3].update(status="compile"), r"configs\[3\]\.median_us"),
        (lambda d: d["configs"][3].update(speed=1), r"configs\[3\].*'speed'"),
        (lambda d: d["configs"].append(d["configs"][0]), r"configs\[20\]\.config.*twice"),
        (lambda d: d["configs"][2]["config"].update(BLOCK_M=3), r"configs\[2\]\.config\.BLOCK_M"),
        (lambda d: d["configs"][2]["config"].update(other=3), r"configs\[2\]\.config.*'other'"),
        (lambda d: d.update(configs=[]), "configs: there are none"),
        (lambda d: d.update(configs={"config": {"a": [1]}, "status": []}), "different lengths"),
        (lambda d: d.update(default={"BLOCK_M": 16}), "default"),
        (lambda d: d.pop("device"), "device: missing"),
        (lambda d: d["device"].update(sm_count="many"), r"device\.sm_count"),
        (lambda d: d["device"].pop("name"), "device"),
        (lambda d: d["noise"].update(sigma=-0.1), r"noise\.sigma"),
        (lambda d: d["parameters"][0].update(kind="float"), r"parameters\[0\]\.kind"),
        (lambda d: d["parameters"][0].update(values=[]), r"parameters\[0\]\.values"),
        (lambda d: d.update(flops="1e9"), "flops"),
        (lambda d: d.update(extra=1), "'extra'"),
        (lambda d: d.update(schema="tuner-space/2"), "tuner-space/2"),
        (lambda d: d.update(schema="tuner-table/1"), "not a recorded space"),
    ],
)
def test_a_malformed_file_is_refused_at_its_place(tmp_path, change, place):
    document = _document(tmp_path)
    change(document)
    path = tmp_path / "space.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TunerError, match=place) as caught:
        RecordedSpace.load(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[1, 2]",
        b"{",
        b"\xff\xfe\x00",
        b"\x1f\x8b broken",
        gzip.compress(b"{}", mtime=0)[:-6],
        b'{"a": NaN}',
    ],
)
def test_a_foreign_file_is_refused(tmp_path, raw):
    path = tmp_path / "foreign.json"
    path.write_bytes(raw)
    with pytest.raises(TunerError) as caught:
        RecordedSpace.load(path)
    assert f"{path}" in caught.value.message


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(TunerError, match="cannot be read"):
        RecordedSpace.load(tmp_path / "nothing.json")
    with pytest.raises(TunerError, match="cannot be written"):
        synthesize(5).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_has_the_features_of_its_family_where_they_fit():
    def bound(space: RecordedSpace):
        kernel = RecordedKernel(space)
        return kernel.space(space.workload).bind(space.workload, kernel.device)

    matmul = RecordedSpace.load(H200 / "matmul_512x512x8192_bf16.space.json")
    assert len(bound(matmul).features(matmul.default)) == 5
    # Another kernel that happens to have the name.
    other = replace(synthesize(20, seed=1, scenario="W1"), kernel="matmul")
    assert bound(other).features(other.default) == ()
    assert bound(replace(other, kernel="no/such kernel")).features(other.default) == ()


def test_the_message_names_the_value_and_what_is_expected(tmp_path):
    document = _document(tmp_path)
    document["configs"][3]["status"] = "fine"
    path = tmp_path / "space.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TunerError) as caught:
        RecordedSpace.load(path)
    assert caught.value.message.startswith(
        f"{path}: configs[3].status: 'fine': input should be 'correct', 'constraints', "
    )


def test_optional_parts_take_their_defaults(tmp_path):
    document = _document(tmp_path)
    for part in ("toolchain", "noise", "baselines", "flops"):
        del document[part]
    path = tmp_path / "space.json"
    path.write_text(json.dumps(document))
    space = RecordedSpace.load(path)
    assert (space.toolchain, space.noise) == (Toolchain(), Noise())
    assert (dict(space.baselines), space.flops) == ({}, 0.0)


def test_only_reading_a_file_imports_pydantic():
    code = "import search_spaces.recorded.recorded_kernel, sys; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
