"""A recorded space for the simulated backend, from two exhaustive rankings."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from rankings import Ranked, Stage, noise_of

from search_spaces.recorded.recorded_space import Noise, RecordedConfig, RecordedSpace
from search_spaces.records import Status, config_key
from tuner.tables.recorded_spaces import parameters_of
from workers.job_records import Artifact, Failure


@dataclass(frozen=True, slots=True)
class RankingPair:
    """Two exhaustive rankings of the same space."""

    stages: tuple[list[Stage], list[Stage]]
    #: Configs that failed in either ranking.
    failures: dict[str, Failure]
    #: Configs that failed in only one ranking.
    disagreed: list[str]
    baselines: dict[str, tuple[str, list[float]]]
    baseline_problems: dict[str, str]
    methods: list[str]
    gate_s: float
    timing_s: float


def of_twins(builds, values: dict) -> dict:
    """Values by config key, for all configs whose binary is that of a timed config."""
    by_binary = {builds[key].binary_hash: value for key, value in values.items()}
    return {
        key: by_binary[result.binary_hash]
        for key, result in builds.items()
        if isinstance(result, Artifact) and result.binary_hash in by_binary
    }


def noise(measured: RankingPair, both: Ranked) -> Noise:
    overheads = [stage.overhead_us for stages in measured.stages for stage in stages]
    return noise_of(both, statistics.median(overheads))


def baselines_us(measured: RankingPair, both: Ranked) -> dict[str, float]:
    return {
        name: both.times_us[against] * statistics.median(ratios)
        for name, (against, ratios) in measured.baselines.items()
        if against in both.times_us
    }


def recording(task, device, farm, builds, measured, both, default) -> RecordedSpace:
    """The space as measured: samples of both rankings without their common modes."""
    kernel, workload = task.kernel, task.workload
    cost = kernel.cost(workload)
    times = of_twins(builds, both.times_us)
    samples = of_twins(builds, {n: both.samples_us[n] for n in both.times_us})
    failed = of_twins(builds, measured.failures)
    configs = [
        _recorded(result, config_key(result_config), times, samples, failed, result_config)
        for result_config, result in _in_order(task, device, builds)
    ]
    fallback = configs[0].config
    default_config = default if any(c.config == dict(default) for c in configs) else fallback
    return RecordedSpace(
        kernel=kernel.name,
        workload=workload,
        device=replace(device, uuid=""),
        toolchain=farm.worker.toolchain,
        parameters=parameters_of([entry.config for entry in configs]),
        default=dict(default_config),
        configs=tuple(configs),
        flops=cost.flops,
        bytes=cost.bytes,
        tolerance=kernel.tolerance(workload).relative,
        baselines={n: round(v, 4) for n, v in baselines_us(measured, both).items()},
        noise=noise(measured, both),
    )


def _in_order(task, device, builds):
    for config in task.bind(device).enumerate():
        yield dict(config), builds[config_key(config)]


def _recorded(result, key, times, samples, failed, config) -> RecordedConfig:
    facts = result.facts
    failure = result if isinstance(result, Failure) else failed.get(key)
    return RecordedConfig(
        config=config,
        status=failure.status if failure else Status.CORRECT,
        median_us=None if failure else round(times[key], 4),
        binary=result.binary_hash[:16],
        registers=facts.registers if facts else 0,
        spill_bytes=facts.spill_bytes if facts else 0,
        shared_bytes=facts.shared_bytes if facts else 0,
        build_s=round(result.build_s, 3),
        message=failure.message if failure else "",
        samples_us=() if failure else tuple(round(value, 3) for value in samples[key]),
    )
