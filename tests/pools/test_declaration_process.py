"""Checks of declarations in a process of a local pool."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from processes import LIMIT_S, forked

from search_spaces.errors import KernelError
from search_spaces.records import Workload
from workers.device import offline
from workers.job_records import DeclarationJob, KernelRef
from workers.pools.declaration_process import DeclarationProcess
from workers.processes.fork_server import ForkServer
from workers.processes.preload import Preload

DEVICE = offline("cuda:90")
WORKLOAD = Workload.of(rows=8, cols=64, dtype="float32")
SOURCE = """
import os, time
from search_spaces.kernels.softmax.kernel import Softmax

class Right(Softmax):
    name = "right"

class Wrong(Softmax):
    name = "wrong"
    def reference(self, workload, inputs):
        return {name: found[1:] for name, found in super().reference(workload, inputs).items()}

class Dead(Softmax):
    name = "dead"
    def reference(self, workload, inputs):
        os.abort()

class Slow(Softmax):
    name = "slow"
    def reference(self, workload, inputs):
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer("declared", preload=Preload.of("torch", "triton"))
    yield made
    made.close()
    assert not forked(os.getpid())


@pytest.fixture
def check(server, tmp_path) -> Callable[..., DeclarationProcess]:
    file = tmp_path / "declared.py"
    file.write_text(SOURCE)

    def begin(*names: str) -> DeclarationProcess:
        kernels = [KernelRef(f"{file}:{name}") for name in names]
        jobs = [DeclarationJob(kernel, WORKLOAD, config(), DEVICE) for kernel in kernels]
        return DeclarationProcess(jobs, (), server)

    return begin


def config() -> dict[str, object]:
    from search_spaces.registry import load

    return dict(load("softmax").default_config(WORKLOAD, DEVICE))


def test_right_declarations_pass(check):
    assert check("Right", "Right").passed(LIMIT_S)


def test_the_first_mistake_is_raised_with_the_traceback_of_the_process(check):
    with pytest.raises(KernelError) as caught:
        check("Right", "Wrong", "Dead").passed(LIMIT_S)
    assert caught.value.message.startswith("kernel wrong: reference() for ")
    assert "outputs() declares" in caught.value.message
    assert "`Checked before a run`" in caught.value.hint
    assert "search_spaces/declaration/check.py" in f"{caught.value.__cause__}"


def test_a_check_that_ends_its_process_names_kernel_and_signal(check):
    process = check("Dead")
    with pytest.raises(KernelError, match=r"declared.py:Dead: .* ends with SIGABRT") as caught:
        process.passed(LIMIT_S)
    assert "\n" not in caught.value.message
    assert not process.running


def test_a_kernel_that_cannot_be_imported_is_reported_in_one_line(check):
    with pytest.raises(KernelError, match="has no Absent"):
        check("Absent").passed(LIMIT_S)


def test_an_answer_that_is_not_needed_is_not_waited_for(check):
    process = check("Slow")
    assert not process.passed(0.5)
    process.begin_kill()
    process.kill()
    assert not process.running
