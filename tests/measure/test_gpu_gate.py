"""The gate on a real GPU: every cheat is refused with its reason, and no honest variant is."""

from __future__ import annotations

import re
import time

import pytest
from cheats import CHEATS, HONEST
from honest import jobs
from measure_child import Child

from search_spaces.records import Status
from workers.job_records import Failure, Measurement, MeasurementProtocol, Mode, Timing

pytestmark = [
    pytest.mark.gpu,
]

#: Side of the matrices; their product takes much longer than a copy of the result.
N = 2048
PROTOCOL = MeasurementProtocol(warm_ms=20.0)


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    child = Child("cuda", "Cheated", tmp_path_factory.mktemp("cache"), "cheats")
    yield child
    child.close()


@pytest.mark.parametrize(
    "cheat", [cheat for cheat in CHEATS if cheat.writes], ids=lambda cheat: cheat.name
)
def test_a_cheat_is_refused_with_its_reason(child, cheat):
    found = child.measure(cheat.workload(N), cheat.config, HONEST, protocol=PROTOCOL)
    assert isinstance(found, Measurement), found
    refused, honest = found.outcomes
    assert isinstance(refused, Failure), refused
    assert refused.status is Status.CORRECTNESS
    assert re.search(cheat.reason, refused.message), refused.message
    if cheat.name == "thread":
        # Its thread writes to the shared outputs later.
        time.sleep(0.5)
    elif not cheat.dims:
        assert isinstance(honest, Timing), honest


def test_no_honest_variant_is_refused(child, tmp_path):
    passed = 0
    for job in jobs(child.device, tmp_path, {"mode": Mode.RACE, "protocol": PROTOCOL}):
        found, poisoned = child.run(job)
        assert not poisoned
        assert isinstance(found, Measurement), (job.job_id, found)
        wrong = [
            outcome
            for outcome in found.outcomes
            if isinstance(outcome, Failure) and outcome.status is Status.CORRECTNESS
        ]
        assert not wrong, job.job_id
        passed += sum(isinstance(outcome, Timing) for outcome in found.outcomes)
    assert passed >= 200
