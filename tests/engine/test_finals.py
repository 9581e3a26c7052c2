"""Finals, confirmation and the choice among ties, from constructed races."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from scenario import DEVICE, TOOLS, samples, spec

from results_db.stored_records import TrialRecord
from search_spaces.records import Status, config_key
from tuner.base.log_ratio import EQUAL, LogRatio
from tuner.base.statistics import compare_pairs
from tuner.engine.finals import Finals
from tuner.engine.search import Search
from workers.job_records import Artifact, Failure, Measurement, Mode, Timing

CONFIGS = [
    {"block": 1024, "stages": 1, "order": "row"},  # the default of `spec`
    {"block": 128, "stages": 3, "order": "column"},
    {"block": 128, "stages": 2, "order": "column"},
    {"block": 64, "stages": 3, "order": "column"},
]


def searched(times, registers=(32, 32, 32, 32), beside=((),) * 4, **more):
    """A search that is over, with these times in us for the configs above.

    beside: times of the first config, the incumbent, beside each of them.
    """
    records = tuple(
        TrialRecord(
            attempt_id=f"1:{n}:0",
            number=n,
            config=config,
            status=Status.CORRECT,
            binary_hash=f"b{n}",
            registers=registers[n],
            median_us=us,
            incumbent=config_key(CONFIGS[0]),
            incumbent_samples_us=beside[n],
        )
        for n, (config, us) in enumerate(zip(CONFIGS, times, strict=True))
        if us is not None
    )
    search = Search(spec(finished=records, **more))
    for trial in search.trials.values():
        trial.artifact = Artifact(trial.config, "simulated", TOOLS, f"b{trial.number}")
    finals = Finals(search)
    finals.nominate()
    return finals


def race(finals, times, noise=0.001):
    """The measurement of `finals.candidates()`; a Failure in `times` stays one."""
    rng = random.Random(1)
    drift = [rng.gauss(0, 0.01) for _ in range(60)]
    outcomes = []
    first = next(t for t in times if not isinstance(t, Failure))
    for trial, us in zip(finals.candidates(), times, strict=True):
        if isinstance(us, Failure):
            outcomes.append(us)
            continue
        values = samples(us, drift, rng) if noise else (us,) * 60
        log = math.log(us / first)
        name = config_key(trial.config)
        median = sorted(values)[30]
        ratio = LogRatio(log, log - 0.002, log + 0.002)
        outcomes.append(Timing(name, median, values, ratio, 1e-7))
    finals.in_flight = True
    return Measurement(DEVICE, TOOLS, tuple(outcomes))


def test_the_race_overrules_the_search():
    finals = searched([100, 52, 50, 51])
    assert finals.mode is Mode.RACE
    candidates = [t.number for t in finals.candidates()]
    assert candidates[:3] == [2, 3, 1]
    assert candidates[-1] == 0  # the default takes part, however slow
    finals.handle_race(race(finals, [50, 48, 51, 100]))
    assert finals.mode is Mode.CONFIRM
    assert [t.number for t in finals.candidates()] == [3, 2, 0]
    assert finals.reason == "clearly the fastest"
    selection, *_ = finals.handle_confirmation(race(finals, [48, 50, 100]))
    assert selection.winner == CONFIGS[3]
    assert selection.runner_up == CONFIGS[2]
    assert selection.verdict == "faster"
    assert selection.default_us / selection.median_us == pytest.approx(100 / 48, rel=0.02)


def test_among_ties_the_default_wins():
    finals = searched([50, 50, 50, 50])
    finals.handle_race(race(finals, [50, 50, 50, 50]))
    assert finals.tie[0].config == CONFIGS[0]
    selection, *_ = finals.handle_confirmation(race(finals, [50, 50]))
    assert (selection.verdict, selection.log_ratio) == ("same", EQUAL)
    assert len(selection.tie_set) == 4


def test_then_winners_of_neighbours_win_then_fewer_registers_then_the_first_asked():
    shared = searched([100, 50, 50, 50], neighbours=[CONFIGS[3]])
    shared.handle_race(race(shared, [50, 50, 50, 100]))
    assert shared.tie[0].config == CONFIGS[3]
    frugal = searched([100, 50, 50, 50], registers=(32, 64, 40, 48))
    frugal.handle_race(race(frugal, [50, 50, 50, 100]))
    assert frugal.tie[0].config == CONFIGS[2]
    plain = searched([100, 50, 50, 50])
    plain.handle_race(race(plain, [50, 50, 50, 100]))
    assert plain.tie[0].config == CONFIGS[1]


def test_a_variant_that_may_be_half_a_percent_slower_is_not_chosen_for_being_simpler():
    # The default's times scatter: it may be as fast as the fastest, or a percent slower.
    finals = searched([50, 50, 50.1, 60])
    steady = (50.0,) * 60
    scattered = tuple(50.15 + 1.5 * (-1) ** n for n in range(60))
    by_number = {0: scattered, 1: steady, 2: steady}
    found = race(finals, [50.0] * len(finals.candidates()), noise=0)
    outcomes = [
        replace(outcome, samples_us=by_number[trial.number])
        for trial, outcome in zip(finals.candidates(), found.outcomes, strict=True)
    ]
    finals.handle_race(replace(found, outcomes=tuple(outcomes)))
    assert CONFIGS[0] in [trial.config for trial in finals.tie]
    assert finals.tie[0].config == CONFIGS[1]
    assert finals.reason == "fewest registers, then first asked, of 2 that tie"
    finals = searched([50, 50, 60, 60])
    outcomes = [
        replace(outcome, samples_us=by_number[trial.number])
        for trial, outcome in zip(finals.candidates(), found.outcomes[:2], strict=True)
    ]
    finals.handle_race(replace(found, outcomes=tuple(outcomes)))
    assert finals.tie[0].config == CONFIGS[1]
    assert finals.reason == "fastest by estimate, of 2 that cannot be distinguished"


def test_a_winner_that_fails_to_confirm_is_replaced():
    finals = searched([100, 50, 60, 60])
    finals.handle_race(race(finals, [50, 100]))
    broken = Failure(Status.CORRECTNESS, "wrong in the timed loop")
    assert finals.handle_confirmation(race(finals, [broken, 100])) is None
    assert finals.mode is Mode.CONFIRM
    assert "wrong in the timed loop" in finals.problem
    selection, *_ = finals.handle_confirmation(race(finals, [100]))
    assert selection.winner == CONFIGS[0]
    assert selection.verdict == "same"


# -- on noisy devices ------------------------------------------------------------------------------
def noisy_search(times, deviation):
    """A search whose incumbent, the first config, scatters beside each other config."""
    rng = random.Random(3)
    beside = tuple(
        tuple(times[0] * math.exp(rng.gauss(0, deviation)) for _ in range(4)) for _ in times
    )
    return Finals(searched(times, beside=beside).search)


@pytest.mark.parametrize(("deviation", "count"), [(0.002, 2), (0.3, 4)])
def test_the_noisier_the_search_the_more_of_it_is_raced(deviation, count):
    """At least four where times of one config differ by a tenth; never the default alone."""
    finals = noisy_search([50, 70, 90, 200], deviation)
    finals.nominate()
    assert len(finals.finalists) == count
    assert finals.mode is Mode.RACE
    assert (finals.search.noise() > 0.1) == (count == 4)


def test_what_wins_two_confirmations_on_a_noisy_device_is_confirmed_instead():
    finals = noisy_search([50, 52, 54, 56], 0.3)
    finals.nominate()
    for _ in range(2):
        finals.handle_race(race(finals, [50, 56, 58, 60]))
        assert finals.tie[0].config == CONFIGS[0]
        finals.finalists.sort(key=lambda trial: trial.number)
        assert finals.handle_confirmation(race(finals, [50, 44])) is None
    assert finals.mode is Mode.CONFIRM
    assert [trial.config for trial in finals.candidates()] == [CONFIGS[1], CONFIGS[0]]
    selection, *_ = finals.handle_confirmation(race(finals, [44, 50]))
    assert (selection.winner, selection.verdict) == (CONFIGS[1], "faster")
    assert "two confirmations" in selection.reason


# -- contradictions between race and confirmation --------------------------------------------------
def test_a_runner_up_that_becomes_slower_ties_and_nothing_is_repeated():
    finals = searched([110, 50, 50.2, 60])
    finals.handle_race(race(finals, [50, 50.1, 110]))
    selection, *_ = finals.handle_confirmation(race(finals, [50, 51.5, 110]))
    assert (selection.verdict, selection.winner) == ("faster", CONFIGS[1])
    assert selection.runner_up in selection.tie_set
    note = "the runner-up cannot be distinguished from the winner: between race and confirmation"
    assert note in selection.reason
    assert "its time moved by +2." in selection.reason


def test_a_runner_up_that_becomes_faster_is_raced_again_once_and_then_ties():
    finals = searched([110, 50, 52, 60])
    for repetition in range(2):
        finals.handle_race(race(finals, [50, 50.3, 110]))
        outcome = finals.handle_confirmation(race(finals, [50, 48.4, 110]))
        assert (outcome is None) == (repetition == 0)
        assert finals.mode is (Mode.RACE if repetition == 0 else None)
    selection, *_ = outcome
    assert (selection.verdict, selection.winner) == ("faster", CONFIGS[1])
    assert selection.tie_set == (CONFIGS[1], CONFIGS[2])
    assert "the runner-up cannot be distinguished" in selection.reason


def test_a_runner_up_that_is_faster_by_less_than_the_threshold_is_not_raced_again():
    finals = searched([110, 50, 52, 60])
    finals.handle_race(race(finals, [50, 50.5, 110]))
    assert finals.handle_confirmation(race(finals, [50, 49.6, 110])) is not None


@pytest.mark.parametrize(("again", "verdict"), [(50.1, "undecided"), (54.0, "faster")])
def test_only_a_contradiction_about_the_default_leaves_the_verdict_undecided(again, verdict):
    finals = searched([54, 50, 60, 60])
    finals.handle_race(race(finals, [50, 54]))
    assert finals.handle_confirmation(race(finals, [50, 50.1])) is None
    finals.handle_race(race(finals, [50, 54]))
    selection, *_ = finals.handle_confirmation(race(finals, [50, again]))
    assert selection.verdict == verdict
    told = "not settled: between race and confirmation the default config's time moved by -7."
    assert selection.reason.startswith(told) == (verdict == "undecided")
    assert ("twice" in selection.reason) == (verdict == "undecided")


def test_a_default_that_a_faster_runner_up_contradicts_twice_is_undecided():
    finals = searched([50, 51, 60, 60])
    for _ in range(2):
        finals.handle_race(race(finals, [50, 50.3]))
        outcome = finals.handle_confirmation(race(finals, [50, 48.4]))
    selection, *_ = outcome
    assert (selection.verdict, selection.winner) == ("undecided", CONFIGS[0])
    assert "the runner-up's time moved by" in selection.reason


def test_imprecise_races_and_confirmations_contradict_each_other_rarely():
    """Each mean is off by 2 %, as of slow kernels under a power limit, and both know it."""
    repeated = 0
    for seed in range(60):
        finals = searched([50.2, 50, 60, 60])
        outcome = None
        for step in (finals.handle_race, finals.handle_confirmation):
            outcome = step(imprecise(finals, [50, 50.2], f"{seed}/{step.__name__}"))
        repeated += outcome is None
    assert repeated <= 3


def test_an_undecided_verdict_says_how_far_it_goes_and_what_ended_it():
    finals = searched([50.2, 50, 60, 60])
    finals.handle_race(race(finals, [50, 50.2]))
    selection, *_ = finals.handle_confirmation(imprecise(finals, [50, 50.2], "2"))
    assert selection.verdict == "undecided"
    most = max(map(abs, selection.log_ratio.ends))
    within = f"undecided: equal to the default config within {math.expm1(most):.1%} after 12 passes"
    assert selection.reason.endswith(f"{within}, which its time budget ended")


def imprecise(finals, times, seed):
    """A measurement of 12 passes whose samples vary by 5 %."""
    rng = random.Random(seed)
    rows = [[us * math.exp(rng.gauss(0, 0.05)) for _ in range(12)] for us in times]
    outcomes = []
    for trial, row in zip(finals.candidates(), rows, strict=True):
        ratio = compare_pairs(row, rows[0])
        outcomes.append(Timing(config_key(trial.config), sorted(row)[6], tuple(row), ratio))
    return Measurement(DEVICE, TOOLS, tuple(outcomes))


def test_the_verdict_does_not_depend_on_the_process_that_measures():
    """Each process shifts each config's time by 1 % or so, as a power limit and addresses do."""
    rng = random.Random(7)
    verdicts, races = [], 0
    for _ in range(200):
        finals = searched([54.85, 50, 50.1, 50.3])
        true = dict(enumerate([54.85, 50.0, 50.1, 50.3]))
        outcome = None
        while outcome is None:
            for step in (finals.handle_race, finals.handle_confirmation):
                times = [true[t.number] * math.exp(rng.gauss(0, 0.01)) for t in finals.candidates()]
                outcome = step(race(finals, times))
            races += 1
        verdicts.append(outcome[0].verdict)
    assert set(verdicts) == {"faster"}
    assert races <= 1.15 * len(verdicts)


def test_finals_that_keep_failing_leave_the_search_winner_undecided():
    finals = searched([100, 50, 51, 52])
    crash = Failure(Status.RUNTIME, "crashed the device process")
    for _ in range(3):
        assert finals.mode is not None
        finals.in_flight = True
        finals.job_failed(crash)
    assert finals.mode is None
    selection = finals.select_unconfirmed()
    assert selection.winner == CONFIGS[1]
    assert selection.verdict == "undecided"
    assert selection.median_us is None
    assert "crashed the device process" in selection.reason


def test_a_finalist_that_cannot_be_built_again_is_left_out():
    finals = searched([100, 50, 51, 52])
    gone = finals.candidates()[0]
    finals.build_failed(gone, Failure(Status.COMPILE, "no compiler"))
    assert gone not in finals.candidates()
    assert len(finals.candidates()) == 3


def test_equal_binaries_are_one_finalist():
    finals = searched([100, 50, 50, 52])
    search = finals.search
    duplicate = search.trials[config_key(CONFIGS[2])]
    duplicate.record = replace(duplicate.record, binary_hash="b1")
    again = Finals(search)
    again.nominate()
    assert [t.number for t in again.candidates()] == [1, 3, 0]


def test_without_a_timed_variant_nothing_is_chosen():
    finals = searched([None, None, None, None])
    assert finals.mode is None
    assert finals.select_unconfirmed() is None


def test_a_candidate_that_screening_dropped_never_becomes_the_incumbent():
    finals = searched([100, 50, 51, 52])
    search = finals.search
    lucky = {"block": 32, "stages": 3, "order": "column"}
    record = TrialRecord("1:9:0", 9, lucky, Status.CORRECT, median_us=30.0, samples_us=(30.0,))
    again = Search(replace(search.spec, finished=(*search.spec.finished, record)))
    assert again.trials[config_key(lucky)].score == pytest.approx(math.log(30.0))
    assert again.incumbent.config == CONFIGS[1]
    assert lucky not in [trial.config for trial in again.ranking.trials()]


def test_a_race_in_which_every_finalist_fails_names_the_failure():
    finals = searched([100, 50, 51, 52])
    failed = tuple(Failure(Status.CORRECTNESS, "relative error 0.3") for _ in finals.candidates())
    finals.in_flight = True
    finals.handle_race(Measurement(DEVICE, TOOLS, failed))
    assert finals.mode is None
    assert "relative error 0.3" in finals.select_unconfirmed().reason


def test_finalists_that_cannot_be_built_again_are_named_in_the_reason():
    finals = searched([100, 50, 51, 52])
    for trial in list(finals.candidates()):
        finals.build_failed(trial, Failure(Status.COMPILE, "ptxas failed"))
    assert finals.mode is None
    assert "could not be built again: ptxas failed" in finals.select_unconfirmed().reason
