"""Preparing a confirmation: baselines are compiled without a launch, and once."""

from __future__ import annotations

import pytest
from measure_child import Child

from search_spaces.records import Status, Workload
from workers.job_records import Mode, PartKind, PartResult, PreparationPart, Timing

WORKLOAD = Workload.of(n=20_000, dtype="float32")
TASK = PreparationPart(PartKind.TASK)
DONE, LEFT = PartResult(done=True), PartResult(done=False)


#: A variant of the kernels of each kind.
VARIANT = {"work": 1, "block": 1024}


@pytest.fixture(
    scope="module",
    params=[
        ("cpu", "CpuCompiledBaselines"),
        pytest.param(
            ("cuda", "TritonCompiledBaselines"),
            marks=[
                pytest.mark.gpu,
            ],
        ),
    ],
    ids=["cpu", "cuda"],
)
def child(tmp_path_factory, request):
    child = Child(*request.param, tmp_path_factory.mktemp("cache"))
    yield child
    child.close()


def compiling(name):
    return PreparationPart(PartKind.COMPILE, name)


def launching(name):
    return PreparationPart(PartKind.LAUNCH, name)


def test_an_unmarked_compilation_is_noticed_and_done_without_a_launch(child):
    assert child.prepare_part(WORKLOAD, PreparationPart(PartKind.IMPORT)) == DONE
    prepared = child.prepare_part(WORKLOAD, TASK, upcoming_baselines=("compile", "own", "eager"))
    assert prepared == PartResult(done=True, compile_first=("compile",))
    assert child.prepare_part(WORKLOAD, launching("own")) == PartResult(False, ("own",))
    assert child.prepare_part(WORKLOAD, compiling("own")) == DONE
    assert child.compiled_graphs() == 1
    assert child.prepare_part(WORKLOAD, launching("unlaunched")) == DONE
    assert child.prepare_part(WORKLOAD, launching("own")) == DONE
    for name in ("eager", "wrong", "raises", "no such baseline"):
        child.prepare_part(WORKLOAD, launching(name))
    names = ("own", "eager", "wrong", "raises")
    found = child.measure(WORKLOAD, VARIANT, mode=Mode.CONFIRM, baselines=names)
    assert child.compiled_graphs() == 1
    assert isinstance(found.outcomes[0], Timing)
    assert isinstance(found.baselines["own"], Timing)
    assert 0 <= found.baselines["own"].error < 1e-6
    assert found.baselines["wrong"].status is Status.CORRECTNESS
    assert "this library has no such kernel" in found.baselines["raises"].message


def test_what_cannot_be_prepared_is_left_to_the_confirmation(child):
    unprepared = WORKLOAD.with_dims(n=3)
    assert child.prepare_part(unprepared, launching("eager")) == LEFT
    assert child.prepare_part(unprepared, TASK, upcoming_baselines=("eager",)) == DONE
    assert child.prepare_part(unprepared, launching("raises")) == LEFT
    # Nothing is compiled by a baseline without torch.compile.
    assert child.prepare_part(unprepared, compiling("eager")) == LEFT
    broken = WORKLOAD.with_dims(n=5, broken_reference=True)
    assert child.prepare_part(broken, TASK) == LEFT


def test_a_function_that_compiles_in_parts_is_left_to_the_confirmation(child):
    child.prepare_part(WORKLOAD, TASK, upcoming_baselines=("parts",))
    assert child.prepare_part(WORKLOAD, compiling("parts")) == DONE
    assert child.prepare_part(WORKLOAD, launching("parts")) == PartResult(False, ("parts",))
    found = child.measure(WORKLOAD, VARIANT, mode=Mode.CONFIRM, baselines=("parts",))
    assert isinstance(found.baselines["parts"], Timing)


def test_a_marked_compilation_is_compiled_once(child):
    child.prepare_part(WORKLOAD, TASK, upcoming_baselines=("compile",))
    before = child.compiled_graphs()
    assert child.prepare_part(WORKLOAD, compiling("compile")) == DONE
    assert child.prepare_part(WORKLOAD, launching("compile")) == DONE
    found = child.measure(WORKLOAD, VARIANT, mode=Mode.CONFIRM, baselines=("compile",))
    assert isinstance(found.baselines["compile"], Timing)
    assert child.compiled_graphs() == before + 1
