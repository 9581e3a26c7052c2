"""The reason of a lost worker is what Ray reports, and not always a dead process."""

from __future__ import annotations

import errno

import pytest
from ray import exceptions
from ray.core.generated.common_pb2 import ActorDiedErrorContext

from workers.pools.ray_errors import ray_reason, ray_remedy
from workers.processes.worker_lost import WorkerLost


def died(message: str) -> exceptions.ActorDiedError:
    context = ActorDiedErrorContext(
        error_message=message,
        actor_id=b"0" * 16,
        class_name="RunnerActor",
        node_ip_address="10.0.0.7",
        pid=4242,
    )
    return exceptions.ActorDiedError(context)


def raised(cause: Exception) -> exceptions.RayTaskError:
    return exceptions.RayTaskError("measure", "Traceback ...", cause)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (died("its node has died."), "the worker died: its node has died."),
        (died("its process\nended (SIGKILL)"), "the worker died: its process ended (SIGKILL)"),
        (exceptions.ActorDiedError(), "the worker died: Ray names no cause"),
        (raised(WorkerLost("no device")), "no device"),
        (raised(RuntimeError("no\ndriver")), "RuntimeError: no driver"),
        (WorkerLost("it stopped answering"), "it stopped answering"),
        (
            exceptions.ActorUnschedulableError("the node is dead"),
            "The actor is not schedulable: the node is dead",
        ),
    ],
)
def test_the_reason_names_the_cause_in_one_line(error, reason):
    assert ray_reason(error) == reason


def test_an_actor_that_cannot_be_reached_is_not_called_dead():
    reason = ray_reason(exceptions.ActorUnavailableError("rpc failed", b"0" * 16))
    assert reason.startswith("the worker cannot be reached: ")
    assert "rpc failed" in reason
    assert "died" not in reason


def test_the_remedy_is_that_of_the_machines_fault():
    full = OSError(errno.ENOSPC, "No space left on device")
    assert "TMPDIR" in ray_remedy(raised(full))
    assert ray_remedy(raised(WorkerLost("killed", "more memory"))) == "more memory"
    assert ray_remedy(died("its node has died.")) == ""
