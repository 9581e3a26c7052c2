"""Measure again what a comparison of two runs or tables ships, both in one pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from results_db.run_comparison import BESIDE_DEFAULT, SAME_RECORD, TaskComparison, judge_times
from results_db.shipped import select_shipped
from results_db.step_detection import between_runs
from results_db.stored_records import TaskKey
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Status, config_key
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.compare.bench_rows import Pass, compare
from tuner.compare.given_tasks import GivenTask
from tuner.compare.named_configs import Variant
from tuner.compare.targets import BenchTarget, bench_target, find_spec, pick_workloads
from tuner.progress import ProgressCallback
from tuner.settings.sections import Settings
from workers import backend_kinds


def remeasure(
    settings: Settings,
    base: Path,
    found: Sequence[TaskComparison],
    kernels: Mapping[str, Sequence[Kernel]],
    on_progress: ProgressCallback | None = None,
    *,
    drifts: bool = False,
) -> list[TaskComparison]:
    """The comparisons, with the verdict of a new pass wherever both sides can be measured here.

    A pass is a confirmation of both configs with the code of today, as `bench` makes it. What is
    of another device or of other code keeps its verdict and says why. Nothing is stored. kernels:
    declarations by name that precede registered names. drifts: where code and config are the same,
    whether today's ratio to the default config is still that of A.
    """
    done = list(found)
    given: dict[int, GivenTask] = {}
    known: dict[tuple[str, str, str], BenchTarget] = {}
    for at, each in enumerate(found):
        if each.verdict is None or each.why == SAME_RECORD:
            continue
        key = each.task.key
        try:
            target = known.get((key.kernel, key.device.kind, key.launch_hash))
            if target is None:
                target = _find_target(settings, base, key, kernels)
                known[key.kernel, key.device.kind, key.launch_hash] = target
            configs = _find_configs(target, each)
            (workload,) = pick_workloads(target.kernel, [key.workload.key])
        except TunerError as error:
            done[at] = _keep(each, error)
            continue
        if config_key(configs[0]) == config_key(configs[1]):
            done[at] = replace(each, verdict=Verdict.SAME, why="same code and config")
            default = _find_default(each) if drifts else None
            if default is None or config_key(default) == config_key(configs[0]):
                continue
            configs[1] = default
        variants = [Variant(name, config) for name, config in zip("AB", configs, strict=True)]
        given[at] = GivenTask(target, workload, variants)
    try:
        passes = compare(settings, list(given.values()), on_progress)
    except TunerError as error:
        return [_keep(each, error) if at in given else each for at, each in enumerate(done)]
    for at, measured in zip(given, passes, strict=True):
        same = done[at].verdict is Verdict.SAME
        done[at] = _judge_drift(done[at], measured) if same else _judge(found[at], measured)
    return done


def _find_default(each: TaskComparison) -> Config | None:
    """The default config that the confirmation of A timed; None where A ships that config."""
    chosen = each.old.selection if each.old else None
    ships = select_shipped(chosen) if chosen else None
    known = ships and ships.log_ratio and not ships.default_kept and ships.log_ratio.half_width
    return chosen.default if chosen and known else None


def _judge_drift(each: TaskComparison, measured: Pass) -> TaskComparison:
    """The time of a config now over its time in run A, each relative to the default config."""
    now = _judge(each, measured)
    assert each.old is not None
    if now.log_ratio is None or each.old.selection is None:
        return replace(now, verdict=Verdict.SAME)
    before = select_shipped(each.old.selection).log_ratio
    assert before is not None
    # Intervals of independent passes, with the noise between them.
    noise = 2.77 * between_runs(each.old.key.device.kind)
    value = before.value - now.log_ratio.value
    half = math.hypot(before.half_width, now.log_ratio.half_width, noise)
    change = LogRatio(value, value - half, value + half)
    us = now.remeasured_us[0] if now.remeasured_us else 0.0
    times = us / change.ratio, us
    return replace(
        now,
        verdict=judge_times(change),
        why=BESIDE_DEFAULT,
        log_ratio=change,
        remeasured_us=times,
    )


def _find_target(
    settings: Settings, base: Path, key: TaskKey, kernels: Mapping[str, Sequence[Kernel]]
) -> BenchTarget:
    kind = key.device.kind
    spec = find_spec(key.kernel, kind, kernels, key.launch_hash)
    named = None if backend_kinds.spec(kind).replayed else kind
    return bench_target(settings, base, spec, target=named)


def _judge(each: TaskComparison, measured: Pass) -> TaskComparison:
    for row in measured.rows:
        if row.status is not Status.CORRECT or row.median_us is None:
            return _keep(each, TunerError(f"{row.variant}'s config: {row.status}: {row.message}"))
    a, b = measured.rows
    assert a.median_us is not None
    assert b.median_us is not None
    assert b.log_ratio is not None
    return replace(
        each,
        verdict=judge_times(b.log_ratio),
        why="measured again",
        log_ratio=b.log_ratio,
        remeasured_us=(a.median_us, b.median_us),
    )


def _find_configs(target: BenchTarget, each: TaskComparison) -> list[Config]:
    """The configs of both sides. Raises `TunerError` where they cannot be measured here."""
    configs = []
    for name, side in (("A", each.old), ("B", each.new)):
        if side is None or side.selection is None:
            raise TunerError(f"{name} confirmed no winner", "")
        if side.key.device.name != target.device.name:
            raise TunerError(f"{name} is of {side.key.device.name}, which is not here", "")
        if side.key.launch_hash != target.kernel.launch_hash():
            raise TunerError(f"the code of {name} is no longer here", "")
        configs.append(select_shipped(side.selection).config)
    return configs


def _keep(each: TaskComparison, error: TunerError) -> TaskComparison:
    """The comparison as it was, with the reason why it was not measured again."""
    why = "; ".join(filter(None, [each.why, f"not measured again: {error.message}"]))
    return replace(each, why=why)
