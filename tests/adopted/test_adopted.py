"""Kernels of packages from PyPI, as they are there: adopted, built, interpreted, found in tables.

One campaign builds two configs of each for a GPU that is not there and verifies what Triton's
interpreter can run.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings

import pytest
from adopted_kernels import KERNELS, call, filled, launch_from_table, swapped

from results_db import Store
from results_db.stored_records import SelectionRecord
from search_spaces.adoption.adopt import adopt
from search_spaces.errors import KernelError
from search_spaces.records import Status, config_key
from tuner import tables
from tuner.base.log_ratio import LogRatio
from tuner.campaign import RunOptions, run_campaign
from tuner.settings import validate

pytestmark = pytest.mark.timeout(600)


def require(package):
    """Skip where a package is not installed; CI has them all."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{package} is not installed, and CI tests with it")
        pytest.skip(f"{package} is not installed; `make` installs it")


@pytest.fixture(scope="module")
def kernels():
    for adopted in KERNELS.values():
        require(adopted.package)
    return {name: adopted.load() for name, adopted in KERNELS.items()}


def campaign(kernels, folder, target, trials):
    """Run a campaign over the last workload of each kernel; its settings and the run."""
    tasks = [
        {"kernel": adopted.spec, "workloads": [kernels[name].workloads()[-1].as_dict()]}
        for name, adopted in KERNELS.items()
    ]
    settings = validate(
        {
            "version": 1,
            "database": {"url": f"sqlite:///{folder}/tuner.db"},
            "paths": {"tables": "tables"},
            "measure": {"baselines": []},
            "campaigns": {
                "adopted": {"targets": [target], "tasks": tasks, "budget": {"trials": trials}}
            },
        },
        str,
    )
    options = RunOptions(report=False, export=target == "cuda", base=folder)
    return settings, run_campaign(settings, "adopted", options=options)


@pytest.fixture(scope="module")
def farm(kernels, tmp_path_factory):
    """A compile-only campaign: its store, run and tasks by name."""
    settings, run = campaign(kernels, tmp_path_factory.mktemp("adopted"), "cuda:90", 2)
    with Store.open(settings.database.url) as store:
        tasks = {task.key.kernel: task for task in store.tasks(run.run_id)}
        yield store, run.run_id, {name: tasks[kernels[name].name] for name in KERNELS}


@pytest.mark.parametrize("name", KERNELS)
def test_two_configs_are_built_and_what_can_be_interpreted_is_right(farm, name):
    store, _, tasks = farm
    trials = store.trials(tasks[name].task_id)
    assert len(trials) == 2
    for trial in trials:
        assert trial.status is Status.CORRECT, trial.message
        assert trial.binary_hash
    verified = {trial.verified_by for trial in trials}
    assert verified == {""} if name in UNINTERPRETED else {"interpreter"}


#: These call functions of CUDA's device library.
UNINTERPRETED = {"liger_dyt_forward", "liger_dyt_backward", "xformers_rms_norm_add"}


@pytest.fixture(scope="module")
def library(farm, kernels, tmp_path_factory):
    """Tables in which each kernel's last workload has the config that was built last."""
    store, run_id, tasks = farm
    winners = {}
    for name, task in tasks.items():
        winners[name] = store.trials(task.task_id)[-1].config
        selection = SelectionRecord(
            winners[name], (winners[name],), "faster", median_us=10.0, default_us=20.0,
            default=store.trials(task.task_id)[0].config, log_ratio=LogRatio(0.69, 0.68, 0.70),
        )  # fmt: skip
        store.record_selection(task.task_id, selection, ())
    folder = tmp_path_factory.mktemp("tables")
    declared_kernels = {kernel.name: kernel for kernel in kernels.values()}
    written = tables.export(store, run_id, folder, "tuner", declared_kernels)
    assert len(written) == len(KERNELS)
    return folder, winners, {name: task.key.device for name, task in tasks.items()}


@pytest.mark.parametrize("name", KERNELS)
def test_the_runtimes_decorator_finds_the_table_of_a_package(library, kernels, name, monkeypatch):
    folder, winners, devices = library
    kernel, adopted, config = kernels[name], KERNELS[name], winners[name]
    monkeypatch.setenv("TUNER_DEVICE", devices[name].name)
    tuned, _ = swapped(adopted, kernel, folder)
    tabled = kernel.workloads()[-1]
    args, kwargs = call(kernel, tabled, filled(kernel, tabled, config, "meta"), config)
    hit = tuned.hit(*args, **kwargs)
    assert hit is not None
    assert hit.how == "exact"
    assert config_key(hit.config) == config_key(config)
    for other in kernel.workloads()[:-1]:
        args, kwargs = call(kernel, other, filled(kernel, other, config, "meta"), config)
        assert tuned.hit(*args, **kwargs) is None


def test_a_kernel_with_hooks_is_refused_in_one_line(kernels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from xformers.ops._triton.tiled_matmul_kernels import _xformers_tiled_matmul_kernel
    like = kernels["xformers_rms_norm_add"]._given
    parts = {
        name: getattr(like, name)
        for name in ("workloads", "outputs", "arguments", "grid", "reference", "cost", "inputs")
    }
    with pytest.raises(KernelError, match="pre_hook or post_hook") as refused:
        adopt(_xformers_tiled_matmul_kernel, name="tiled", **parts)
    assert "\n" not in refused.value.message
    assert "declare a Kernel" in refused.value.hint


@pytest.fixture(scope="module")
def tuned(kernels, tmp_path_factory):
    """Each kernel's last workload tuned on the GPU, briefly: winners by name, and the tables."""
    folder = tmp_path_factory.mktemp("tuned")
    settings, run = campaign(kernels, folder, "cuda", 4)
    with Store.open(settings.database.url) as store:
        tasks = {task.key.kernel: task for task in store.tasks(run.run_id)}
    return {name: tasks[kernels[name].name].selection for name in KERNELS}, folder / "tables"


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", KERNELS)
def test_on_a_gpu_each_is_tuned_and_launched_from_its_table(tuned, kernels, name):
    selections, folder = tuned
    kernel, selection = kernels[name], selections[name]
    assert selection is not None
    assert selection.median_us
    workload = kernel.workloads()[-1]
    hit, error = launch_from_table(KERNELS[name], kernel, workload, selection.winner, folder)
    assert hit is not None
    assert error <= kernel.tolerance(workload).relative
