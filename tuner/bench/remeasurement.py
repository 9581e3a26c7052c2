"""Measure again what a comparison of two runs or tables ships, both in one pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from results_db.run_comparison import SAME_RECORD, TaskComparison, judge_times
from results_db.shipped import select_shipped
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Status, config_key
from tuner.base.log_ratio import Verdict
from tuner.bench.local_session import LocalSession, ProgressCallback, no_progress
from tuner.bench.named_configs import Variant
from tuner.bench.side_by_side import SideBySide
from tuner.bench.targets import BenchTarget, bench_target, find_spec, pick_workloads
from tuner.settings.sections import Settings
from workers import backend_kinds


def remeasure(
    settings: Settings,
    base: Path,
    found: Sequence[TaskComparison],
    kernels: Mapping[str, Sequence[Kernel]],
    on_progress: ProgressCallback = no_progress,
) -> list[TaskComparison]:
    """The comparisons, with the verdict of a new pass wherever both sides can be measured here.

    A pass is a confirmation of both configs with the code of today, as `bench` makes it. What is
    of another device or of other code keeps its verdict and says why. Nothing is stored. kernels:
    declarations by name that precede registered names.
    """
    done = list(found)
    by_kernel: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for at, each in enumerate(found):
        if each.verdict is not None and each.why != SAME_RECORD:
            key = each.task.key
            by_kernel[key.kernel, key.device.kind, key.launch_hash].append(at)
    for (name, kind, launch_hash), places in by_kernel.items():
        try:
            spec = find_spec(name, kind, kernels, launch_hash)
            named = None if backend_kinds.spec(kind).replayed else kind
            target = bench_target(settings, base, spec, target=named)
            with LocalSession(settings, target.runner, target.ref.paths, on_progress) as session:
                for at in places:
                    done[at] = _measure(settings, target, session, found[at], on_progress)
        except TunerError as error:
            for at in places:
                done[at] = _keep(found[at], error)
    return done


def _measure(
    settings: Settings,
    target: BenchTarget,
    session: LocalSession,
    each: TaskComparison,
    on_progress: ProgressCallback,
) -> TaskComparison:
    try:
        configs = _find_configs(target, each)
        if config_key(configs[0]) == config_key(configs[1]):
            return replace(each, verdict=Verdict.SAME, why="same code and config")
        (workload,) = pick_workloads(target.kernel, [each.task.key.workload.key])
        variants = [Variant(name, config) for name, config in zip("AB", configs, strict=True)]
        rows = (
            SideBySide(settings, target, session, workload, variants, on_progress=on_progress)
            .run()
            .rows
        )
        for row in rows:
            if row.status is not Status.CORRECT or row.median_us is None:
                raise TunerError(f"{row.variant}'s config: {row.status}: {row.message}", "")
    except TunerError as error:
        return _keep(each, error)
    a, b = rows
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
