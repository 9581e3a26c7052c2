"""Triton variants through the interpreter backend: right ones pass, each fault is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from measure_child import Child

from search_spaces.records import Status, Workload, config_key
from workers.job_records import Failure, Measurement, Mode, Timing

WORKLOAD = Workload.of(n=1 << 20, dtype="float32")


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    child = Child("interpreter", "TritonAffine", tmp_path_factory.mktemp("cache"))
    yield child
    child.close()


def _outcome(child, config, workload=WORKLOAD):
    found = child.measure(workload, config)
    assert isinstance(found, Measurement), found
    return found.outcomes[0]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_right_variant_is_verified_and_never_timed(child, mode):
    configs = [{"block": 64}, {"block": 128, "via": "scratch"}]
    found = child.measure(WORKLOAD, *configs, mode=mode, baselines=("eager",))
    assert found.method == "interpreter"
    assert found.compiled == 0
    assert not found.baselines
    assert found.device.kind == "interpreter"
    for config, outcome in zip(configs, found.outcomes, strict=True):
        assert isinstance(outcome, Timing)
        assert outcome.name == config_key(config)
        assert (outcome.median_us, outcome.samples_us) == (0.0, ())
        assert 0 <= outcome.error < 1e-6


def test_an_artifact_for_any_gpu_will_do(child):
    artifact = child.artifact({"block": 64}, target="hip:gfx942")
    assert isinstance(child.measure(WORKLOAD, artifact).outcomes[0], Timing)


def test_half_precision_inputs(child):
    assert 0 < _outcome(child, {"block": 64}, WORKLOAD.with_dims(dtype="bfloat16")).error < 1e-2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("partial", "output `y` not written: 5 of 613 elements still hold the poison"),
        ("after", "wrote outside `y`: guard band after it changed"),
        ("before", "wrote outside `y`: guard band before it changed"),
        ("mutate", "input `x` was modified"),
        ("constant", "relative error 0."),
        ("nan", "1 of 613 elements of `y` cannot match: 1 NaN, 0 infinite"),
        ("infinite", "1 of 613 elements of `y` cannot match: 0 NaN, 1 infinite"),
        ("precision", "of `y` over 1e-05"),
        ("one_element", "relative error"),
    ],
)
def test_a_fault_is_refused_with_its_name(child, fault, reason):
    failure = _outcome(child, {"block": 64, "fault": fault})
    assert isinstance(failure, Failure)
    assert failure.status is Status.CORRECTNESS
    assert reason in failure.message
    assert "(seed 1)" in failure.message
    assert failure.facts.registers == 24
    assert failure.binary_hash


def test_one_wrong_element_of_many_is_found_though_the_norm_is_small(child):
    failure = _outcome(
        child, {"block": 64, "fault": "one_element"}, WORKLOAD.with_dims(dtype="bfloat16")
    )
    assert failure.status is Status.CORRECTNESS
    assert "1 of 613 elements of `y` are off by more than 0.02" in failure.message


def test_writing_beyond_the_scratch_is_refused(child):
    failure = _outcome(child, {"block": 64, "via": "scratch", "fault": "scratch"})
    assert failure.message.startswith("wrote outside `scratch s`: guard band after it changed")


def test_a_raising_variant_is_a_failure_of_one_line(child):
    failure = _outcome(child, {"block": 64, "fault": "raise"})
    assert failure.status is Status.RUNTIME
    assert re.fullmatch(
        r"ValueError: no such tile <b> \(measure_kernels\.py:\d+\)", failure.message
    )
    assert failure.detail.startswith("Traceback")
    assert 'measure_kernels.py", line ' in failure.detail
    assert 'raise ValueError("no such tile <b>")' in failure.detail
    assert "workers/" not in failure.detail


def test_what_raises_inside_a_kernel_is_told_with_its_line(child):
    failure = _outcome(child, {"block": 64, "via": "scratch", "fault": "inside"})
    assert failure.status is Status.RUNTIME
    assert re.search(r"\(measure_kernels\.py:\d+\)$", failure.message)
    assert "tl.static_assert" in failure.detail


def test_faults_do_not_outlive_their_variant(child):
    """A damaged input or guard band is not blamed on the next variant, whatever the order."""
    faults = ["mutate", "after", "partial", "nan"]
    candidates = [{"block": 64, "fault": fault} for fault in faults] + [{"block": 64}]
    for order in (candidates, candidates[::-1]):
        found = child.measure(WORKLOAD, *order, mode=Mode.RACE)
        for config, outcome in zip(order, found.outcomes, strict=True):
            assert isinstance(outcome, Failure if "fault" in config else Timing)


def test_a_kernel_at_fault_fails_the_job(child):
    found = child.measure(WORKLOAD.with_dims(broken_reference=True), {"block": 64})
    assert isinstance(found, Failure)
    assert "returns nothing for output `y`" in found.message


def test_products_use_one_thread(tmp_path):
    """Builders occupy the other processors, for which further threads would wait."""
    code = (
        "import sys, threadpoolctl\n"
        "from workers.backends.interpreter.backend import InterpreterBackend\n"
        "InterpreterBackend(cache_dir=sys.argv[1])\n"
        "print([one['num_threads'] for one in threadpoolctl.threadpool_info() "
        "if one['user_api'] == 'blas'])"
    )
    several = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    environment = {**os.environ, **several, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", code, f"{tmp_path}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == {1}
