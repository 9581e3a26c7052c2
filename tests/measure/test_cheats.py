"""Every planted cheat is refused with its reason, and no honest variant is."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from cheats import CHEATS, HONEST, Cheat, Cheated
from measure_child import Child

from search_spaces.records import Status, Workload
from workers.job_records import Check, Failure, Mode, Timing
from workers.measure.gate.checks import check_variant
from workers.measure.gate.run_observer import HarnessSnapshot, RunObserver
from workers.measure.gate.timed_run_check import TimedRunCheck
from workers.measure.task_tensors import Checked, TaskTensors
from workers.measure.triton_launch import bind

N = 320
#: Size at which reusing a product saves milliseconds per run, more than a busy machine delays a
#: process.
_LARGE = 3 * N
WORKLOAD = Workload.of(n=N, dtype="float32")

writing = [cheat for cheat in CHEATS if cheat.writes and not cheat.cuda and not cheat.timed]
returning = [cheat for cheat in CHEATS if cheat.returns and not cheat.cuda]


def _named(cheats):
    return pytest.mark.parametrize("cheat", cheats, ids=lambda cheat: cheat.name)


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    child = Child("cpu", "Cheated", tmp_path_factory.mktemp("cache"), "cheats")
    yield child
    child.close()


@pytest.fixture
def observer():
    """An observer whose fixture restores the process and waits for the cheats' threads."""
    observer = RunObserver()
    # With two threads on a busy machine, times would depend on their synchronisation.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield observer
    torch.set_num_threads(threads)
    observer.harness_change()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(5)


def _checked(task: TaskTensors, config, observer: RunObserver | None):
    variant = bind(task, config)
    return check_variant(
        task, variant.run, outputs=variant.outputs, scratch=variant.scratch, observer=observer
    )


def _size(cheat: Cheat) -> int:
    return _LARGE if "content" in cheat.name else N


def _is_refused(outcome, cheat: Cheat) -> bool:
    assert isinstance(outcome, Failure), f"{cheat.name} passed: {outcome}"
    assert outcome.status is Status.CORRECTNESS
    assert re.search(cheat.reason, outcome.message), outcome.message
    return True


def test_the_list_contains_the_acceptance_cheats():
    names = [cheat.name for cheat in CHEATS]
    assert len(names) == len(set(names)) >= 14
    assert sum(not cheat.cuda for cheat in CHEATS[:14]) == 12


@_named(writing)
def test_a_writing_cheat_is_refused_with_its_reason(cheat, observer):
    task = TaskTensors(Cheated(), cheat.workload(_size(cheat)), (1, 2), "cpu")
    assert _is_refused(_checked(task, cheat.config, observer), cheat)
    # Its changes are not attributed to the next variant.
    if not cheat.dims and not task.suspect and cheat.name != "thread":
        assert isinstance(_checked(task, HONEST, observer), Checked)


@_named(returning)
def test_a_returning_cheat_is_refused_with_its_reason(child, cheat):
    found = child.measure(cheat.workload(_size(cheat)), cheat.config, HONEST)
    assert _is_refused(found.outcomes[0], cheat)
    if not cheat.dims:
        assert isinstance(found.outcomes[1], Timing), found.outcomes[1]


def test_an_honest_variant_passes_and_is_deterministic(child):
    (timing,) = child.measure(WORKLOAD, HONEST).outcomes
    assert isinstance(timing, Timing)
    assert timing.deterministic is True
    assert 0 < timing.error < 1e-6


def test_a_snapshot_names_and_restores_replaced_functions():
    import time

    before = time.perf_counter, torch.cuda.Event.elapsed_time
    snapshot = HarnessSnapshot()
    assert snapshot.restore() == ""
    time.perf_counter = lambda: 0.0
    torch.cuda.Event.elapsed_time = lambda self, other: 0.0
    TimedRunCheck.problem, kept = (lambda self: ""), TimedRunCheck.problem
    assert snapshot.restore() == "time.perf_counter"
    assert snapshot.restore() == ""
    assert (time.perf_counter, torch.cuda.Event.elapsed_time) == before
    assert TimedRunCheck.problem is kept


# -- differences between runs ---------------------------------------------------------------------
def _noisy(task: TaskTensors, errors):
    """Check a variant that adds the next error to the right product in each run."""
    left = iter(errors)
    buffers = task.outputs()

    def run():
        torch.mm(task.inputs["x"], task.inputs["w"], out=buffers["y"].tensor)
        buffers["y"].tensor[0, 0] += next(left)

    return check_variant(task, run, outputs=buffers)


def test_runs_may_differ_within_the_tolerance_only():
    task = TaskTensors(Cheated(), WORKLOAD, (1, 2), "cpu")
    assert _noisy(task, [0.0, 0.0, 0.0]).deterministic
    assert not _noisy(task, [0.0, 0.0, 1e-5]).deterministic
    racy = _noisy(task, [0.0, 0.0, 0.1, 0.0, 0.0])
    assert racy.message.startswith("two runs on the same inputs differ: ")
    assert "repeated" in racy.message


# -- the check of a timed run
# -------------------------------------------------------------------------
def test_a_check_examines_the_run_it_was_prepared_for():
    task = TaskTensors(Cheated(), WORKLOAD, (1, 2), "cpu")
    variant = bind(task, HONEST)
    idle, right, never = (TimedRunCheck(task, variant.outputs) for _ in range(3))
    for check, run in ((right, variant.run), (idle, lambda: None)):
        variant.run()
        check.before()
        run()
        check.after()
    variant.run()
    assert right.problem() == ""
    assert idle.problem().startswith(f"output `y` not written: {N * N} of")
    assert never.problem() == idle.problem() == "", "a problem is reported once"


def test_returned_outputs_are_copied_at_once():
    task = TaskTensors(Cheated(), WORKLOAD, (1, 2), "cpu")
    result = {"y": task.inputs["x"] @ task.inputs["w"]}
    right, wrong, invalid = (TimedRunCheck(task) for _ in range(3))
    right.after(result)
    result["y"].add_(1)
    wrong.after(result)
    invalid.after({"y": result["y"].double()})
    assert right.problem() == ""
    assert "relative error" in wrong.problem()
    assert "is float64" in invalid.problem()


def test_memory_of_the_harness_is_not_an_output():
    task = TaskTensors(Cheated(), WORKLOAD, (1, 2), "cpu")
    failure = check_variant(task, lambda: {"y": task.expected[0]["y"].values})
    assert "lies in memory of the harness" in failure.message


def test_a_change_of_the_harness_in_the_timed_loop_voids_the_pass(observer):
    task = TaskTensors(Cheated(), WORKLOAD, (1, 2), "cpu")
    variant = bind(task, HONEST)
    responsible, bystander = (TimedRunCheck(task, variant.outputs, observer) for _ in range(2))
    torch.cuda.Event.elapsed_time = None
    bystander.before()
    variant.run()
    bystander.after()
    assert "the pass is void: another variant changed" in bystander.problem()
    observer.begin_job()
    responsible.before()
    torch.cuda.Event.elapsed_time = None
    variant.run()
    responsible.after()
    assert responsible.problem().startswith("changed torch.cuda")


# -- honest kernels --------------------------------------------------------------------------------
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.full)])
def test_no_compiled_variant_of_a_family_is_refused(tmp_path, count):
    from search_spaces.registry import load

    kernel = load("cpu_pointwise")
    workload = Workload.of(rows=32, cols=512, dtype="float32", tolerance=1e-2)
    child = Child("cpu", "cpu_pointwise", tmp_path, module="")
    try:
        space = kernel.space(workload).bind(workload, child.device)
        plain = {"threads": [1], "simdlen": [None], "store_gelu": [False]}
        configs = list(space.restrict({**plain, "decompose_tanh": [False]}).enumerate())
        assert len(configs) == 4
        found = child.measure(workload, *configs[:count], mode=Mode.VERIFY)
        refused = [outcome for outcome in found.outcomes if isinstance(outcome, Failure)]
        assert len(found.outcomes) == count
        assert not refused
    finally:
        child.close()


def test_another_workload_is_checked_as_well(tmp_path):
    """Runs in this process, because `check` is not part of the backend role."""
    from measure_child import _HERE

    from workers import backend_kinds
    from workers.job_records import Artifact, KernelRef

    backend = backend_kinds.create("cpu", cache_dir=str(tmp_path))
    ref = KernelRef(f"{_HERE / 'cheats.py'}:Cheated")
    device, toolchain = backend.info()
    size = Workload.of(n=N // 2 - 1, dtype="float32")

    def check(config):
        artifact = Artifact(config, device.target, toolchain, f"{config}")
        return backend.check(ref, Check(size, artifact))

    assert check(HONEST).error < 1e-5
    assert "do not follow the inputs" in check({"cheat": "constant output"}).message
    assert check({"cheat": "no such"}).status is Status.RUNTIME


def test_a_rotated_run_is_checked_where_it_wrote():
    from workers.measure.triton_launch import bind_copies

    task = TaskTensors(Cheated(), WORKLOAD, (1, 2), "cpu")
    variant, copies = bind(task, HONEST), bind_copies(task, HONEST, 3)
    idle = bind_copies(task, {"cheat": "stale output"}, 3)
    for copy in copies:
        copy()
    for run, problem in ((copies[1], ""), (idle[1], f"output `y` not written: {N * N} of")):
        check = TimedRunCheck(task, variant.outputs)
        check.before()
        check.after(run())
        found = check.problem()
        assert found.startswith(problem)
        assert bool(found) == bool(problem)
