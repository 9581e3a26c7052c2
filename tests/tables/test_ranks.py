"""Ranks of a process group choose alike, and none hangs, whatever happens to one of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from spaces_forks import Forks

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

_ROOT = Path(__file__).resolve().parents[2]
_FORKS = Forks(
    f"{Path(__file__).with_name('rank_program.py')}",
    TRITON_INTERPRET="1",
    PYTHONPATH=f"{_ROOT}:{_ROOT / 'tests' / 'spaces'}",
)
#: The block of the default config.
_DEFAULT = 16
_RANKS = 4


@pytest.fixture
def follow(tmp_path):
    """Runs a scenario of `rank_program`: what each rank found, by round, and what they logged."""

    def run(
        scenario: str, *, ranks: int = _RANKS, rounds: int = 1, **variables: str
    ) -> tuple[list[list[Any]], str]:
        request = json.dumps([f"{tmp_path}", scenario, ranks, rounds])
        found, log = json.loads(_FORKS.run(request, **{"TUNER_DEVICE": "Card", **variables}))
        return found, log

    return run


@pytest.mark.parametrize("mode", ["broadcast", "share"])
@pytest.mark.parametrize("scenario", ["decorated", "applied"])
def test_a_miss_is_launched_alike(follow, scenario, mode):
    """Their own times would choose differently: with one seed for each rank they do."""
    rounds, _ = follow(scenario, rounds=3, TUNER_RANKS=mode)
    assert len(rounds) == 3
    for ranks in rounds:
        for size in ("99", "300"):
            first = ranks[0][size]
            assert first["right"]
            assert [each[size] for each in ranks] == [first] * _RANKS
        sizes = 1 if scenario == "applied" else 2  # the table has the other
        alone = 4 if scenario == "applied" else 0  # timed by each before there was a group
        timed = sum(each["timings"] - alone for each in ranks)
        assert timed == 4 * sizes
        if mode == "broadcast":
            assert all((each["timings"] - alone) % 4 == 0 for each in ranks)
    if scenario == "applied":
        before = {each["before"]["block"] for ranks in rounds for each in ranks}
        assert len(before) > 1


def test_many_groups_agree(follow):
    rounds, _ = follow("decorated", ranks=8, rounds=12)
    for ranks in rounds:
        assert len({(each["99"]["block"], each["300"]["block"]) for each in ranks}) == 1
    assert len({ranks[0]["99"]["block"] for ranks in rounds}) > 1


def test_one_process_joins_groups_one_after_the_other(follow):
    rounds, _ = follow("joining_again", rounds=3)
    for ranks in rounds:
        assert [each["blocks"] for each in ranks] == [ranks[0]["blocks"]] * _RANKS
    assert any(len(set(ranks[0]["blocks"])) > 1 for ranks in rounds)


@pytest.mark.parametrize("fault", ["killed", "stopped", "slow"])
@pytest.mark.parametrize("mode", ["broadcast", "share"])
def test_without_the_one_that_tunes_all_launch_the_default(follow, fault, mode):
    [ranks], _ = follow(fault, TUNER_RANKS=mode, TUNER_RANKS_TIMEOUT_S="3")
    assert (ranks[0] is None) == (fault == "killed")
    launched = [each[when] for each in ranks if each for when in ("99", "again")]
    assert launched == [{"block": _DEFAULT, "right": True}] * len(launched)


def test_what_tuning_raises_is_raised_by_one(follow):
    [ranks], _ = follow("raising")
    assert ranks[0]["99"] == {"error": "planted"}
    launched = [each["99"] for each in ranks[1:]] + [each["again"] for each in ranks]
    assert launched == [{"block": _DEFAULT, "right": True}] * len(launched)


def test_a_store_that_does_not_answer_stops_no_launch(follow):
    [ranks], log = follow("silent", TUNER_RANKS_TIMEOUT_S="3")
    assert {each[size]["block"] for each in ranks for size in ("99", "300")} == {_DEFAULT}
    assert "the store of the process group fails: it does not answer" in log


def test_with_tables_only_nothing_is_tuned(follow):
    [ranks], _ = follow("applied", TUNER_RANKS="table-only")
    assert {each["99"]["block"] for each in ranks} == {_DEFAULT}
    assert {each["300"]["block"] for each in ranks} == {64}
    assert {each["timings"] for each in ranks} == {4}  # before there was a group


def test_the_rank_with_another_table_is_named(follow):
    _, log = follow("differing")
    pairs = re.findall(r"kernel double: rank (\d) has another table than rank (\d)", log)
    assert len(pairs) == 2  # of four, two have the table of the first
    assert all(int(one) % 2 != int(other) % 2 for one, other in pairs)


def test_tune_gives_all_ranks_the_result_of_one(follow):
    [ranks], _ = follow("tune", ranks=2)
    assert ranks[0] == ranks[1]
    assert ranks[0]["us"] > 0


def test_a_step_of_several_ranks_is_not_optimized(follow):
    [ranks], _ = follow("optimize", ranks=2)
    assert ranks == ["optimize runs a step in one process, and this is a rank of several"] * 2


@pytest.mark.parametrize(
    ("variable", "word"), [("TUNER_RANKS", "brodcast"), ("TUNER_RANKS_TIMEOUT_S", "soon")]
)
def test_a_wrong_word_is_logged_and_not_used(follow, variable, word):
    [ranks], log = follow("decorated", ranks=2, **{variable: word})
    assert f"{variable} is '{word}'" in log
    assert ranks[0]["99"] == ranks[1]["99"]
