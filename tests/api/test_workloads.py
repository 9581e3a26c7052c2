"""Several workloads in one call of `tune`."""

from __future__ import annotations

import os

import pytest
from api_kernels import KERNEL, SETTINGS
from processes import forked, wait_until

import tuner
from search_spaces.records import Workload

PLAIN = {"way": "plain"}


@pytest.fixture
def kernel(folder) -> str:
    (folder / "scale.py").write_text(KERNEL)
    return f"{folder / 'scale.py'}:Scale"


@pytest.mark.slow
def test_a_list_gives_a_result_for_each_workload_in_order(kernel, folder):
    url = f"sqlite:///{folder / 'mine.db'}"
    workloads = [{"n": 3000}, {"n": -1}, {"n": 13}, {"n": 17}, Workload.of(n=1000)]
    found = tuner.tune(kernel, workloads, strategy="grid", settings=SETTINGS, database=url)
    assert [each.workload.as_dict() for each in found] == [
        {"n": 3000},
        {"n": -1},
        {"n": 13},
        {"n": 17},
        {"n": 1000},
    ]
    assert [each.ships for each in found] == [PLAIN, None, None, None, PLAIN]
    assert {each.kernel for each in found} == {"scale"}
    assert "n must be positive" in found[1].note
    assert "n must be positive" in repr(found[1])
    assert "n must be positive" in found[1]._repr_html_()
    assert "none of 2 variants is correct" in found[2].note
    assert "seventeen is not supported" in found[3].note
    assert len(found[2].trials) == 2
    assert [len(found[place].trials) for place in (0, 4)] == [2, 2]
    with tuner.Store.open(url) as store:
        assert len(store.runs()) == 1, "one campaign"


def test_a_list_without_a_valid_workload_raises_as_one_workload_does(kernel):
    with pytest.raises(tuner.WorkloadError, match="n must be positive"):
        tuner.tune(kernel, {"n": -1}, settings=SETTINGS)
    with pytest.raises(tuner.WorkloadError, match="n must be positive"):
        tuner.tune(kernel, [{"n": -1}, {"n": -2}], settings=SETTINGS)
    with pytest.raises(tuner.TunerError, match="there is no workload"):
        tuner.tune(kernel, [])
    with pytest.raises(tuner.WorkloadError, match="expected a number"):
        tuner.tune(kernel, [{"n": [1]}, {"n": 1}])
    for workload in ("n=1", ["n=1"], [1]):
        with pytest.raises(tuner.TunerError, match="is no workload"):
            tuner.tune(kernel, workload)


def test_a_list_of_one_gives_a_list_of_one(recorded):
    (found,) = tuner.tune(**{**recorded, "workload": [recorded["workload"]]}, budget=10)
    assert len(found.trials) == 10


def test_a_workload_listed_twice_is_tuned_once(recorded):
    first, second = tuner.tune(**{**recorded, "workload": [recorded["workload"]] * 2}, budget=10)
    assert first == second


def test_a_call_whose_argument_is_refused_leaves_no_process(kernel):
    """The libraries of its workers are being loaded when the mistake is found."""
    before = set(forked(os.getpid()))
    with pytest.raises(tuner.TunerError, match="unknown strategy 'tep'"):
        tuner.tune(kernel, {"n": 1000}, strategy="tep", settings=SETTINGS)
    wait_until(lambda: set(forked(os.getpid())) <= before)
