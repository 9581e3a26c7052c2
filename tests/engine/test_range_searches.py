"""Ranges of sizes: what is searched, compared and left out, and how few configs serve all."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import DEVICE, World, seeds, spec, toy_bits, toy_fault, toy_space

from results_db.range_outcomes import SizeOutcome, divide, find_switch, outcome_at
from results_db.stored_records import Stage, TaskInfo, TaskKey
from search_spaces.constraints import Preference
from search_spaces.params import Choice, PowerOfTwo
from search_spaces.records import Config, Device, Toolchain, Workload, config_key
from search_spaces.size_range import Range, RangePlace, list_places
from search_spaces.space import SearchSpace
from tuner import strategies
from tuner.engine import Engine, TaskBudget
from tuner.engine.range_search import COMPARED, FinishedSize
from workers.job_records import MeasurementProtocol

GAIN = 0.02
RIGHT = [config for config in toy_space().enumerate() if toy_fault(config) is None]


def crossing_us(workload: Workload, config: Config) -> float:
    """A fixed cost that falls with the block's size and work that grows with it: as of tiles."""
    block, more = config["block"], 1 + 0.05 * (config["order"] == "row") + 0.02 * config["stages"]
    return more * (2000 / block + workload["n"] * (0.001 + 4e-6 * block))


def best_us(size: int) -> float:
    workload = Workload.of(n=size)
    return min(crossing_us(workload, config) for config in RIGHT)


def search(
    time_us=crossing_us, sizes=None, held_out=(), searches=8, seed=0, trials=25, only=None,
    places=None, run=True, before=None, numerics="any", known=(), **world,
) -> World:  # fmt: skip
    """before: the world of a run that was interrupted; this one resumes it."""
    sizes = sizes or Range(16, 4096)
    specs = [
        replace(
            spec(number, seed=number, budget=TaskBudget(trials=trials, polish=5), known=known),
            workload=Workload.of(n=size),
            place=RangePlace((("n", sizes),), GAIN, searches, between, size in held_out),
            protocol=MeasurementProtocol(numerics=numerics),
        )
        for number, (size, between) in enumerate(
            [*(places or list_places(sizes)).items(), *((size, None) for size in held_out)], 1
        )
        if only is None or size in only
    ]
    over: list[FinishedSize] = []
    if before is not None:
        over = [finished_size(task, before) for task in before.engine.tasks if is_over(task)]
        done = {each.workload for each in over}
        specs = [
            replace(each, finished=trials_of(before, each.task_id))
            for each in specs
            if each.workload not in done
        ]
    engine = Engine(specs, builders=4, finished_sizes=over)
    found = World(engine, seed=seed, time_us=time_us, **world)
    if run:
        found.run()
    return found


@cache
def usual() -> World:
    """The search of a range that most tests look at."""
    return search()


def is_over(task) -> bool:
    return task.stage is Stage.DONE


def trials_of(world: World, task_id: int):
    return tuple(trial for number, trial in world.records if number == task_id)


def finished_size(task, world: World) -> FinishedSize:
    """What a database holds of a task that is over."""
    spec, chosen = task.spec, task.outcome
    toolchain = Toolchain(python="3", torch="2", triton="3")
    info = TaskInfo(
        spec.task_id,
        1,
        TaskKey("toy", "aa", "cc", spec.workload, spec.device, toolchain),
        Stage.DONE,
        selection=chosen and chosen.selection,
        finals=tuple(chosen.finals) if chosen else (),
        place=spec.place,
    )
    return FinishedSize.of(spec.kernel.spec, info, trials_of(world, spec.task_id))


def sizes_of(world: World) -> dict[int, int]:
    """Trials by size, of the sizes that were tried."""
    sizes = {task.spec.task_id: task.spec.workload["n"] for task in world.engine.tasks}
    found: dict[int, int] = {}
    for number, _ in world.records:
        found[sizes[number]] = found.get(sizes[number], 0) + 1
    return found


def searched_sizes(world: World) -> set[int]:
    """Sizes at which more was tried than what was to be compared."""
    tasks = [task for task in world.engine.tasks if task.search.trials]
    return {task.spec.workload["n"] for task in tasks if task.search.asker.searches}


def segments_of(world: World):
    outcomes = [
        outcome_at(task.spec.workload["n"], task.outcome.selection, task.outcome.finals)
        for task in world.engine.tasks
        if task.outcome and not task.spec.place.held_out
    ]
    outcomes.sort(key=lambda each: each.size)
    return divide(outcomes, GAIN, Range(16, 4096)), outcomes


@pytest.mark.parametrize("seed", seeds(3))
def test_every_size_of_a_range_is_served_within_the_gain(seed):
    world = search(seed=seed) if seed else usual()
    segments, outcomes = segments_of(world)
    configs = {key: config for each in outcomes for key, config in each.configs.items()}
    ends = [*(segment.sizes for segment in segments)]
    for segment, following in zip(segments, [*ends[1:], None], strict=True):
        last = find_switch(segment.sizes[-1], following[0]) if following else segment.sizes[-1]
        for size in range(segment.sizes[0], last + 1, 97):
            taken = crossing_us(Workload.of(n=size), configs[segment.config])
            assert taken <= best_us(size) * 1.05
    assert len({segment.config for segment in segments}) <= 6


def test_few_sizes_are_searched_and_the_rest_only_compared():
    world = usual()
    tried = sizes_of(world)
    assert {16, 4096, 256} <= set(tried)
    assert len(searched_sizes(world)) <= 8
    compared = [tried[size] for size in tried.keys() - searched_sizes(world)]
    assert len(compared) >= len(tried) // 2
    assert max(compared) < 25
    left_out = [note for note in world.notes.values() if "left out" in note]
    assert len(left_out) + len(tried) == len(list_places(Range(16, 4096)))


def test_a_size_that_needs_a_config_of_its_own_is_searched():
    def moving_us(workload: Workload, config: Config) -> float:
        """The best block grows with the size, and the configs of both ends are slow between."""
        best = 4 + math.log2(workload["n"] / 16) / 2
        return workload["n"] * (1 + abs(math.log2(config["block"]) - best) / 4)

    world = search(moving_us)
    segments, outcomes = segments_of(world)
    assert len(segments) >= 4
    for each in outcomes:
        workload = Workload.of(n=each.size)
        least = min(moving_us(workload, config) for config in RIGHT)
        assert moving_us(workload, each.configs[each.shipped]) <= 1.1 * least


def test_one_config_that_is_best_everywhere_is_one_segment():
    def same_us(workload: Workload, config: Config) -> float:
        return workload["n"] * (1 + abs(math.log2(config["block"]) - 7) + config["stages"])

    world = search(same_us, trials=100)
    segments, _ = segments_of(world)
    assert len(segments) == 1
    tried = sizes_of(world)
    assert min(tried.pop(size) for size in (16, 256, 4096)) > 50
    # Wide halves are looked into; all else is left out.
    assert tried
    assert max(tried.values()) <= COMPARED


def test_sizes_held_out_come_last_and_change_nothing():
    held_out = (100, 3000)
    world, without = search(held_out=held_out), usual()
    numbers = {task.spec.workload["n"]: task.spec.task_id for task in world.engine.tasks}
    order = [number for number, _ in world.records]
    first = min(order.index(numbers[size]) for size in held_out)
    assert set(order[first:]) == {numbers[size] for size in held_out}
    assert {*sizes_of(world)} - set(held_out) == {*sizes_of(without)}


def test_what_is_served_at_a_size_held_out_is_raced_there_however_slow_it_is():
    fastest = min(RIGHT, key=lambda config: (config["block"], config_key(config)))

    def time_us(workload: Workload, config: Config) -> float:
        alone = workload["n"] == 1000 and config == fastest
        return best_us(1000) / 1.5 if alone else crossing_us(workload, config)

    world = search(time_us=time_us, held_out=(1000,), trials=60)
    (part,) = [each for each in segments_of(world)[0] if each.low <= 1000 <= each.high]
    (task,) = [each for each in world.engine.tasks if each.spec.place.held_out]
    outcome = outcome_at(1000, task.outcome.selection, task.outcome.finals)
    served = next(c for c in RIGHT if config_key(c) == part.config)
    assert outcome.configs[outcome.shipped] == fastest
    lost = math.log(time_us(task.spec.workload, served) / time_us(task.spec.workload, fastest))
    assert outcome.loss(part.config) == pytest.approx(lost, abs=0.01)


def test_the_ends_begin_after_the_middle_with_its_fastest_configs():
    world = usual()
    searches = {task.spec.workload["n"]: task.search for task in world.engine.tasks}
    numbers = {task.spec.workload["n"]: task.spec.task_id for task in world.engine.tasks}
    order = [number for number, _ in world.records]
    last = max(place for place, number in enumerate(order) if number == numbers[256])
    for end in (16, 4096):
        assert last < order.index(numbers[end])
        warm = [trial for trial in searches[end].trials.values() if trial.strategy == "warm"]
        assert searches[256].incumbent.config in [trial.config for trial in warm]


def test_no_more_sizes_are_searched_than_asked_for():
    world = search(searches=4)
    assert len(searched_sizes(world)) <= 4


def test_what_is_left_to_do_counts_no_more_sizes_than_are_searched():
    world = search(searches=4, run=False)
    tasks, expected = world.engine.tasks, world.engine.list_expected()
    always = [task for task in tasks if not task.spec.place.between]
    assert len(tasks) > len(expected) == len(always) + 4
    world.run()
    expected = world.engine.list_expected()
    assert all(task in expected for task in tasks if task.search.trials)


def test_sizes_that_are_left_out_are_no_searches():
    """Below 64 one config is best, so that sizes are left out there; above, the best one moves."""

    def one_then_many_us(workload: Workload, config: Config) -> float:
        best = 4 + max(0.0, math.log2(workload["n"] / 64))
        return 100 * workload["n"] ** 0.1 * (1 + abs(math.log2(config["block"]) - best) / 4)

    world = search(one_then_many_us, Range(1, 4096), trials=12)
    assert [note for note in world.notes.values() if "left out" in note]
    (group,) = {id(each): each for each in world.engine._ranges._ranges.values()}.values()
    assert group.count_searches() == len(searched_sizes(world))


@given(st.sets(st.sampled_from(sorted(list_places(Range(16, 4096)))), min_size=1, max_size=6))
@settings(max_examples=12)
def test_any_part_of_a_range_ends(only):
    """A filter of the command line may leave out the sizes that others wait for."""
    world = search(only=only, trials=6)
    assert world.finish is not None
    done = {task.spec.workload["n"] for task in world.engine.tasks if task.outcome}
    left_out = sum("left out" in note for note in world.notes.values())
    assert len(done) + left_out == len(only)


@pytest.mark.parametrize("seed", seeds(3))
def test_losses_of_workers_end_a_range_all_the_same(seed):
    world = search(losses=0.05, seed=seed)
    assert world.finish is not None
    assert len(segments_of(world)[0]) >= 1


@pytest.mark.parametrize(
    "strategy", ["bayes", *(pytest.param(s, marks=pytest.mark.full) for s in ("random", "tpe"))]
)
def test_a_config_that_a_search_would_not_try_serves_where_it_is_valid(strategy):
    """Blocks of 16 are best everywhere, and worth trying at small sizes alone."""

    def small_is_best_us(workload: Workload, config: Config) -> float:
        return workload["n"] * (1 + math.log2(config["block"] / 16) + 0.1 * config["stages"])

    def near(config: Config, workload: Workload, device: Device) -> bool:
        return config["block"] >= workload["n"] // 8

    sizes, default = Range(16, 4096), {"block": 1024, "stages": 1, "order": "row"}
    specs = []
    for number, (size, between) in enumerate(list_places(sizes).items(), 1):
        workload = Workload.of(n=size)
        space = toy_space(workload, Preference("near", near, "small blocks are for small sizes"))
        budget = TaskBudget(trials=60, gain=0.01)
        one = spec(number, strategy=strategy, seed=number, budget=budget, default=default)
        place = RangePlace((("n", sizes),), GAIN, 12, between)
        one = replace(one, space=space, strategy=strategies.create(strategy, space, number))
        specs.append(replace(one, workload=workload, place=place))
    world = World(Engine(specs, builders=4), seed=1, time_us=small_is_best_us)
    world.run()
    _, outcomes = segments_of(world)
    shipped = {each.size: each.configs[each.shipped]["block"] for each in outcomes}
    between = {size for size, at in list_places(sizes).items() if at is not None}
    assert {block for size, block in shipped.items() if size in between} <= {16, 32}


# -- the fewest configs ----------------------------------------------------------------------------
@st.composite
def outcome_lists(draw) -> list[SizeOutcome]:
    sizes = sorted(draw(st.sets(st.integers(1, 5000), min_size=1, max_size=8)))
    names = ["a", "b", "c", "d"]
    found = []
    for size in sizes:
        raced = draw(st.sets(st.sampled_from(names), min_size=1))
        losses = {name: draw(st.sampled_from([0.0, 0.01, 0.05])) for name in sorted(raced)}
        shipped = min(losses, key=losses.get)
        losses = {name: loss - losses[shipped] for name, loss in losses.items()}
        found.append(
            SizeOutcome(size, 1.0, losses, {name: {"c": name} for name in losses}, shipped)
        )
    return found


@given(outcome_lists())
def test_segments_partition_the_sizes_within_the_gain(outcomes):
    segments = divide(outcomes, GAIN, Range(1, 5000))
    assert [size for segment in segments for size in segment.sizes] == [e.size for e in outcomes]
    by_size = {each.size: each for each in outcomes}
    for segment in segments:
        assert any(by_size[size].shipped == segment.config for size in segment.sizes)
        assert all(by_size[size].loss(segment.config) <= math.log1p(GAIN) for size in segment.sizes)


@given(outcome_lists())
def test_no_division_has_fewer_segments(outcomes):
    def fewest(rest: list[SizeOutcome]) -> int:
        """By trying every first segment."""
        if not rest:
            return 0
        return 1 + min(
            fewest(rest[end:])
            for end in range(1, len(rest) + 1)
            if any(
                all(each.loss(one.shipped) <= math.log1p(GAIN) for each in rest[:end])
                for one in rest[:end]
            )
        )

    assert len(divide(outcomes, GAIN, Range(1, 5000))) == fewest(outcomes)


def test_work_that_grows_faster_than_the_size_is_searched_between():
    """Of quadratic work, half of the time at twice the size is no bound: a quarter is."""

    def quadratic_us(workload: Workload, config: Config) -> float:
        n = workload["n"]
        best = 4 + math.log2(n / 16)
        return n * n / 16 * (1 + abs(math.log2(config["block"]) - best) / 4)

    inside = {size for size, between in list_places(Range(16, 4096)).items() if between is not None}
    assert searched_sizes(search(quadratic_us)) & inside


def growing_us(workload: Workload, config: Config) -> float:
    """The best block grows with the size, faster than the configs in between."""
    best = 4 + math.log2(workload["n"] / 16)
    return workload["n"] * (1 + abs(math.log2(config["block"]) - best) / 4)


@pytest.mark.parametrize("seed", seeds(3))
def test_narrow_intervals_take_no_search_from_wide_ones(seed):
    """Small sizes come first in a campaign and are soon over."""

    places = dict(sorted(list_places(Range(16, 4096)).items()))
    found = searched_sizes(search(growing_us, searches=5, seed=seed, places=places))
    assert len(found) == 5
    intervals = [places[size] for size in found if places[size] is not None]
    assert all(high / low > 2 for low, high in intervals)


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("stop", [90, 160])
def test_a_resumed_run_counts_what_was_searched_before(seed, stop):
    broken = search(growing_us, searches=5, seed=seed, stop_after=stop)
    assert any(map(is_over, broken.engine.tasks))
    resumed = search(growing_us, searches=5, seed=seed, before=broken)
    places = {task.spec.task_id: task.spec.place for task in broken.engine.tasks}
    searched = {
        number
        for number, trial in broken.records + resumed.records
        if places[number].between is None or trial.strategy == "random"
    }
    assert len(searched) == 5


#: Large enough that two searches of 25 trials seldom try equal configs.
WIDE = SearchSpace(
    (
        PowerOfTwo("block", 16, 1024),
        Choice("stages", tuple(range(1, 17))),
        Choice("order", ("row", "column")),
        Choice("warps", (1, 2, 4, 8, 16, 32)),
    )
)


def joint_us(workload: Workload, config: Config) -> float:
    """Two parts: the second one takes longer, and prefers larger blocks and more warps."""
    second = workload["part"] == "b"
    warps, stages = math.log2(config["warps"]) - 2 - second, config["stages"] - 4 - 2 * second
    more = 1 + 0.1 * warps * warps + 0.01 * stages * stages + 0.05 * (config["order"] == "row")
    return more * crossing_us(workload, {"block": config["block"], "order": "", "stages": second})


@pytest.mark.parametrize("joint", [("part",), pytest.param((), marks=pytest.mark.full)])
def test_ranges_that_share_rows_measure_configs_for_each_other(joint):
    sizes = Range(16, 4096)
    places = [(part, *place) for place in list_places(sizes).items() for part in "ab"]
    space = WIDE.bind(Workload.of(n=16, part="a"), DEVICE)
    specs = [
        replace(
            spec(number, seed=number, budget=TaskBudget(trials=25, polish=5)),
            workload=Workload.of(n=size, part=part),
            space=space,
            strategy=strategies.create("random", space, number),
            default={"block": 64, "stages": 1, "order": "row", "warps": 1},
            place=RangePlace((("n", sizes),), GAIN, 8, between),
            joint_dims=joint,
        )
        for number, (part, size, between) in enumerate(places, 1)
    ]
    world = World(Engine(specs, builders=4), time_us=joint_us)
    world.run()
    both = parts_of(world)
    assert len(both) >= 4
    losses = []
    every = [one for one in space.enumerate() if toy_fault(one) is None]
    for size, (first, second) in both.items():
        workloads = [Workload.of(n=size, part=part) for part in "ab"]

        def whole_us(config, workloads=workloads):
            return sum(joint_us(workload, config) for workload in workloads)

        common = [config for key, config in first.items() if key in second]
        losses.append(min(map(whole_us, common)) / min(map(whole_us, every)) - 1)
    # Of 1,344 configs, 25 were tried at most at each size and part.
    assert max(losses) <= 0.1 if joint else max(losses) > 1, losses


def parts_of(world: World) -> dict[int, list[dict[str, Config]]]:
    """The configs that are right and timed, by size and part, of sizes that both parts have."""
    found: dict[int, dict[str, dict[str, Config]]] = {}
    of_task = {task.spec.task_id: task.spec.workload for task in world.engine.tasks}
    for number, trial in world.records:
        if trial.median_us is not None:
            workload = of_task[number]
            parts = found.setdefault(workload["n"], {})
            parts.setdefault(workload["part"], {})[config_key(trial.config)] = trial.config
    return {size: [*parts.values()] for size, parts in found.items() if len(parts) == 2}


# -- rows with the same bits at all sizes ----------------------------------------------------------
def leaning_us(workload: Workload, config: Config) -> float:
    """By row is the faster order of few rows, by column of many; blocks of 16 are always slow."""
    n, by_row = workload["n"], config["order"] == "row"
    slower = 1.3 if by_row == (n > 300) else 1.0
    return slower * (1 + (config["block"] == 16)) * crossing_us(workload, config)


def shipped_bits(world: World) -> set[str]:
    return {toy_bits(each.outcome.selection.winner) for each in world.engine.tasks if each.outcome}


@pytest.mark.parametrize("seed", seeds(3))
def test_all_sizes_ship_configs_of_the_same_bits(seed):
    free = search(time_us=leaning_us, seed=seed)
    assert len(shipped_bits(free)) > 1
    kept = search(time_us=leaning_us, seed=seed, numerics="batch_invariant", held_out=(100, 3000))
    assert len(shipped_bits(kept)) == 1
    (bits,) = shipped_bits(kept)
    assert bits != "small"
    _, outcomes = segments_of(kept)
    assert {toy_bits(each) for found in outcomes for each in found.configs.values()} == {bits}
    sizes = {each.size: each.best_us for each in outcomes}
    assert {16, 4096} <= sizes.keys()
    for size, found_us in sizes.items():
        workload = Workload.of(n=size)
        right = [config for config in RIGHT if toy_bits(config) == bits]
        assert found_us <= 1.05 * min(leaning_us(workload, config) for config in right)


def test_the_bits_with_the_least_time_of_all_sizes_are_chosen():
    """By column is faster at one of the three first sizes only, but more so there."""

    def time_us(workload: Workload, config: Config) -> float:
        by_row, most = config["order"] == "row", workload["n"] == 4096
        slower = 3.0 if by_row and most else 1.2 if not by_row and not most else 1.0
        return slower * crossing_us(workload, config)

    world = search(time_us=time_us, numerics="batch_invariant")
    assert shipped_bits(world) == {"column"}


@pytest.mark.parametrize("steps", [5, 60, 140, 260])
def test_the_chosen_bits_hold_for_a_run_that_is_resumed(steps):
    begun = search(time_us=leaning_us, numerics="batch_invariant", stop_after=steps)
    resumed = search(time_us=leaning_us, numerics="batch_invariant", before=begun)
    assert len(shipped_bits(begun) | shipped_bits(resumed)) == 1


@pytest.mark.parametrize("records", [7, 17, 36, 60])
def test_a_run_that_is_drained_before_or_after_the_choice_ends(records):
    world = search(
        time_us=leaning_us, numerics="batch_invariant", seed=2, trials=12, drain_after=records
    )
    assert world.finish.status == "interrupted"
    assert len(shipped_bits(world)) <= 1


@pytest.mark.parametrize("only", [{4096, 575}, {64, 88, 128}, {16, 256, 1024, 2048}])
def test_filters_may_leave_ends_out(only):
    """Sizes whose neighbours are left out have a part in the choice of bits; none waits forever."""
    world = search(
        time_us=leaning_us, numerics="batch_invariant", trials=12, only=only, held_out=[min(only)]
    )
    assert world.finish.status == "finished"
    assert len(shipped_bits(world)) == 1


def test_a_size_that_was_held_out_ends_where_nothing_was_chosen():
    """As in a run that is resumed after the ends and the middle have found nothing."""
    world = search(numerics="batch_invariant", only={100, 200}, held_out=(100, 200))
    assert world.finish.status == "finished"
    assert not shipped_bits(world)


def test_verdicts_of_other_rows_are_not_reused():
    """Digests of a range that begins elsewhere, and refusals for bits that were chosen then."""
    before = search(time_us=leaning_us, numerics="batch_invariant", trials=12)
    named = [
        replace(each, row_bits=each.row_bits and each.row_bits.replace("16", low))
        for low, (_, each) in zip(cycle(("1", "16")), before.records, strict=False)
    ]
    world = search(time_us=leaning_us, numerics="batch_invariant", trials=12, known=named)
    reused = [each for _, each in world.records if each.source == "reused"]
    assert reused
    assert all(f"{each.row_bits}".startswith("16-") for each in reused if each.row_bits)
    assert None not in {each.row_bits for each in reused if each.status == "correctness"}
