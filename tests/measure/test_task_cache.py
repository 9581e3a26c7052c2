"""Inputs and references of the tasks in flight are made once, within a limit of memory."""

from __future__ import annotations

import measure_kernels
import pytest

from search_spaces.records import Workload
from workers.job_records import KernelRef
from workers.measure.task_tensors import TaskCache, TaskTensors

REF = KernelRef("k")


@pytest.fixture
def made():
    """The sizes for which tasks were made."""
    return []


@pytest.fixture
def build(made):
    def make(ref, workload, seeds):
        made.append(workload["n"])
        return TaskTensors(measure_kernels.CpuAffine(), workload, seeds, "cpu")

    return make


def use(cache, *sizes):
    for n in sizes:
        task = cache.get(REF, Workload.of(n=n, dtype="float32"), (1, 2))
        assert task.workload["n"] == n


def test_a_task_is_made_once_and_the_least_recently_used_goes(build, made):
    cache = TaskCache(build, 3)
    use(cache, 1, 2, 3, 1, 2, 3, 1)
    assert made == [1, 2, 3]
    use(cache, 4, 1, 3, 2)
    assert made == [1, 2, 3, 4, 2]


def test_other_seeds_are_another_task(build, made):
    cache = TaskCache(build, 3)
    workload = Workload.of(n=5, dtype="float32")
    assert cache.get(REF, workload, (1, 2)) is cache.get(REF, workload, (1, 2))
    assert cache.get(REF, workload, (1,)).seeds == (1,)
    assert cache.get_kept(REF, workload, (7,)) is None
    assert made == [5, 5]


def test_tasks_stay_within_their_memory_and_a_larger_one_is_kept_alone(build, made):
    # Inputs of two seeds, their working copy, and two references with their bounds: float32 each.
    one = 4 * 1000 * (2 + 1 + 4)
    cache = TaskCache(build, 8, most_bytes=2.5 * one)
    use(cache, 1000, 999, 1000, 999)
    assert made == [1000, 999]
    use(cache, 998, 999, 998, 1000)
    assert made == [1000, 999, 998, 1000]
    use(cache, 5000, 5000, 1000, 5000)
    assert made[4:] == [5000, 1000, 5000]
