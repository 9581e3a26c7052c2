"""`tuner restamp`: results and tables of other code, carried over where its launches are equal."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from results_db import Store, TrialRecord
from results_db.stored_records import BaselineRecord, SelectionRecord, TaskKey
from search_spaces import registry
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Device, Status, Toolchain, Workload
from tuner import tables
from workers.compiling.job import build_kernel
from workers.device import offline
from workers.job_records import Artifact, BuildJob, KernelRef

H200 = Device(
    "cuda", "NVIDIA H200", "cuda:90", 132, 2**37, 232_448, 65536, power_limit_w=700.0, uuid="G"
)
WORKLOAD = Workload.of(rows=64, cols=1000, dtype="float16")
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Kernel, list[Artifact]]:
    """Three configs of a kernel, the default first, as a builder has built them."""
    kernel, folder = registry.load("softmax"), tmp_path_factory.mktemp("cache")
    default = kernel.default_config(WORKLOAD, H200)
    space = kernel.space(WORKLOAD).bind(WORKLOAD, H200)
    others = [config for config in space.enumerate() if config != default][:2]
    found = [
        build_kernel(
            kernel,
            BuildJob("a", KernelRef("softmax"), WORKLOAD, config, offline("cuda:90")),
            folder,
        )
        for config in (default, *others)
    ]
    assert all(isinstance(each, Artifact) for each in found)
    return kernel, [each for each in found if isinstance(each, Artifact)]


def fill(
    url: str, built: tuple[Kernel, list[Artifact]], *, triton: str = "", other: str = ""
) -> int:
    """A stored result of earlier code; its task. other: the binary of the slowest config."""
    kernel, artifacts = built
    tools = artifacts[0].toolchain
    tools = replace(tools, triton=triton) if triton else tools
    key = TaskKey("softmax", "earlier", kernel.space_hash(WORKLOAD), WORKLOAD, H200, tools, "p")
    configs = [dict(each.config) for each in artifacts]
    with Store.open(url, create=True) as store:
        run = store.begin_run("nightly", "spec", 8, {}, {})
        task = store.ensure_task(run.run_id, key, flops=1.0, bytes=1.0, tolerance=1e-3)
        for number, each in enumerate(artifacts):
            last = number == len(artifacts) - 1
            store.record_trial(task.task_id, trial(number, each, other if last else ""))
        chosen = SelectionRecord(
            winner=configs[1],
            tie_set=(configs[1],),
            runner_up=None,
            default=configs[0],
            verdict="faster",
            reason="",
            median_us=8.0,
            confirmed_at=NOON,
        )
        store.record_selection(task.task_id, chosen, [BaselineRecord("eager", Status.CORRECT)])
        return task.task_id


def trial(number: int, built: Artifact, other: str) -> TrialRecord:
    return TrialRecord(
        attempt_id=f"a{number}",
        number=number,
        config=dict(built.config),
        status=Status.CORRECT,
        binary_hash=other or built.binary_hash,
        median_us=10.0 + number,
        samples_us=(10.0 + number,),
        finished_at=NOON,
    )


def known(url: str, task_id: int) -> tuple[str, list[Config]]:
    """The identity of a task, and the configs that a run of the present code would reuse."""
    with Store.open(url) as store:
        key = store.task(task_id).key
        present = replace(key, launch_hash=registry.load("softmax").launch_hash())
        return key.launch_hash, [each.config for each in store.known_trials(present)]


def test_results_that_launch_the_same_get_the_present_identity(tuner, url, built):
    task = fill(url, built)
    dry = tuner("restamp", "--dry-run", "--format", "json")
    assert dry.code == 0
    assert known(url, task) == ("earlier", [])
    found = tuner("restamp", "--format", "json")
    assert found.code == 0, found.err
    (row,) = json.loads(found.out)
    assert (row["of"], row["result"], row["reason"]) == (f"task {task}", "carried over", "")
    assert "1 carried over, 0 to be measured again" in found.err
    identity, reused = known(url, task)
    assert identity == built[0].launch_hash()
    assert len(reused) == 3
    assert json.loads(tuner("restamp", "--format", "json").out) == []


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"other": "feed"}, "1 configs launch something else, e.g. {"),
        ({"triton": "2.0.0"}, "it was built by Triton 2.0.0, not "),
    ],
)
def test_results_without_proof_are_measured_again(tuner, url, built, facts, reason):
    task = fill(url, built, **facts)
    found = tuner("restamp", "--format", "json")
    assert found.code == 1
    (row,) = json.loads(found.out)
    assert row["result"] == "measure again"
    assert reason in row["reason"]
    assert known(url, task) == ("earlier", [])


@pytest.fixture
def table(url, built, tmp_path):
    """The table of a result of earlier code."""
    fill(url, built)
    with Store.open(url) as store:
        (path,) = tables.export(store, store.last_run().run_id, tmp_path / "exported")
    assert json.loads(path.read_text())["kernel"]["launch_hash"] == "earlier"
    return path


def test_a_table_that_launches_the_same_gets_the_present_identity(tuner, built, table):
    entries = json.loads(table.read_text())["entries"]
    found = tuner("restamp", table)
    assert found.code == 0, found.err
    stamped = json.loads(table.read_text())
    assert stamped["kernel"]["launch_hash"] == built[0].launch_hash()
    assert tuple(stamped["kernel"]["kernel_hashes"]) == built[0].kernel_hashes()
    assert stamped["entries"] == entries
    assert tables.check([table]) == []


@pytest.mark.parametrize("binaries", ["feed", None])
def test_a_table_without_proof_stays_as_it_is_or_loses_the_entry(tuner, table, binaries):
    document = json.loads(table.read_text())
    other = json.loads(json.dumps(document["entries"][0]))
    other["key"]["rows"] = 128
    other["provenance"]["binaries"] = binaries
    document["entries"].append(other)
    table.write_text(before := json.dumps(document))
    found = tuner("restamp", table)
    assert found.code == 1
    assert "1 carried over, 1 to be measured again" in found.err
    assert table.read_text() == before
    assert tuner("restamp", "--drop", table).code == 1
    (entry,) = json.loads(table.read_text())["entries"]
    assert entry["key"]["rows"] == 64


def test_variants_for_processors_are_measured_again(tuner, url, built):
    kernel = registry.load("cpu_softmax")
    workload = kernel.workloads()[0]
    device = Device("cpu", "a processor", "cpu:x86_64")
    key = TaskKey("cpu_softmax", "earlier", "s", workload, device, Toolchain(), "p")
    with Store.open(url, create=True) as store:
        run = store.begin_run("nightly", "spec", 8, {}, {})
        task = store.ensure_task(run.run_id, key, flops=1.0, bytes=1.0, tolerance=1e-3)
        config = {"a": 1}
        chosen = SelectionRecord(
            winner=config,
            tie_set=(config,),
            runner_up=None,
            default=config,
            verdict="same",
            reason="",
            median_us=8.0,
            confirmed_at=NOON,
        )
        store.record_selection(task.task_id, chosen, [])
    (row,) = json.loads(tuner("restamp", "--format", "json").out)
    assert "processors are measured again" in row["reason"]
