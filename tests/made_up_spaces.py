"""Made-up recorded spaces, for tests and for judging strategies: a known best under known noise.

The model of the noise: docs/recorded_spaces.md. Times are ln T = ln T_best + x - min x with
x ~ Gamma(shape, scale), given to configs in the order of a smooth function of their parameters,
so that a strategy has something to learn.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces.errors import SpaceError
from search_spaces.recorded.entries import Noise, RecordedConfig, RecordedParameter
from search_spaces.recorded.recorded_space import RecordedSpace
from search_spaces.records import Config, Device, Status, Toolchain, Value, Workload, digest


@dataclass(frozen=True, slots=True)
class Scenario:
    """The time of the best config, the spread of the others, and the noise."""

    #: What distinguishes the scenario, which reports print after its id.
    title: str
    best_us: float
    noise: Noise
    #: Shape of the Gamma distribution of log times; a smaller shape crowds the top.
    shape: float = 2.5
    #: Scale of the Gamma distribution of log times.
    scale: float = 0.35


_PLAIN = Noise(0.01, outlier_share=0.02, outlier_mean=0.10, drift_sd=0.015, drift_tau_s=2.0)

SCENARIOS: Mapping[str, Scenario] = {
    "quiet": Scenario("almost no noise", 50.0, Noise(sigma=0.001)),
    "W1": Scenario("usual noise", 50.0, _PLAIN),
    "W2": Scenario("crowded top", 50.0, _PLAIN, shape=1.5, scale=0.5),
    "W3": Scenario("short noisy kernels", 5.0, replace(_PLAIN, sigma=0.03, outlier_share=0.05)),
    "W4": Scenario("falling clock", 50.0, replace(_PLAIN, ramp=0.20, ramp_tau_s=0.5)),
    "W5": Scenario("fast drift", 50.0, replace(_PLAIN, drift_sd=0.03, drift_tau_s=0.3)),
    "W6": Scenario(
        "heavy outliers, crowded top",
        50.0,
        replace(_PLAIN, sigma=0.02, outlier_share=0.10, outlier_mean=0.20),
        shape=1.5,
        scale=0.5,
    ),
}

_PARAMETERS = (
    RecordedParameter("BLOCK_M", "power_of_two", (16, 32, 64, 128, 256)),
    RecordedParameter("BLOCK_N", "power_of_two", (16, 32, 64, 128, 256)),
    RecordedParameter("num_warps", "power_of_two", (1, 2, 4, 8)),
    RecordedParameter("num_stages", "integer", (1, 2, 3, 4, 5)),
    RecordedParameter("BLOCK_K", "power_of_two", (16, 32, 64, 128)),
    RecordedParameter("order", "choice", ("row", "column", "grouped")),
    RecordedParameter("persistent", "boolean", (False, True)),
    RecordedParameter("unroll", "power_of_two", (1, 2, 4, 8)),
)

_DEVICE = Device(
    kind="cuda",
    name="Synthetic Device",
    target="cuda:90",
    sm_count=132,
    memory_bytes=80 * 2**30,
    shared_bytes=232448,
    registers=65536,
    power_limit_w=700.0,
)

_FAILED = {
    Status.CONSTRAINTS: "needs more shared memory than the device has",
    Status.COMPILE: "the compiler gave up",
    Status.RUNTIME: "illegal memory access",
    Status.CORRECTNESS: "output differs from the reference",
}


def synthesize(
    configs: int = 200,
    *,
    seed: int = 0,
    scenario: str = "W1",
    failures: float = 0.0,
    twins: float = 0.0,
    build_s: float = 0.5,
    kernel: str = "synthetic",
) -> RecordedSpace:
    """A space of `configs` points, the same for equal arguments.

    failures: share of configs recorded with a status other than `correct`, never the default.
    twins: share whose binary equals that of another config. build_s: mean build time, seconds.
    Raises SpaceError for an unknown scenario or more configs than there are points.
    """
    if scenario not in SCENARIOS:
        raise SpaceError(f"no scenario is called {scenario!r}", f"known: {', '.join(SCENARIOS)}")
    rng = random.Random(f"{configs}/{seed}/{scenario}")
    parameters = _enough_parameters(configs)
    points = _points(parameters, configs, rng)
    medians = _medians(points, parameters, SCENARIOS[scenario], rng)
    entries = [
        RecordedConfig(
            config=point,
            median_us=round(median_us, 4),
            binary=digest(point),
            registers=rng.randrange(32, 256, 8),
            spill_bytes=rng.choice((0, 0, 0, 16)),
            shared_bytes=rng.randrange(0, 200_000, 1024),
            build_s=round(rng.uniform(0.5, 1.5) * build_s, 3),
        )
        for point, median_us in zip(points, medians, strict=True)
    ]
    default = rng.randrange(configs // 2, configs) if configs > 1 else 0
    entries = _with_failures(entries, default, failures, twins, rng)
    best_us = min(medians)
    return RecordedSpace(
        kernel=kernel,
        workload=Workload.of(N=4096, dtype="bfloat16"),
        device=_DEVICE,
        toolchain=Toolchain(python="3.11", torch="2.11", triton="3.6", cuda="13.0"),
        parameters=parameters,
        default=entries[default].config,
        configs=tuple(entries),
        flops=best_us * 1e6 * 200,
        bytes=best_us * 1e6,
        tolerance=0.01,
        baselines={"eager": round(3 * best_us, 4), "vendor": round(1.05 * best_us, 4)},
        noise=SCENARIOS[scenario].noise,
    )


def _enough_parameters(count: int) -> tuple[RecordedParameter, ...]:
    size = 1
    for used, parameter in enumerate(_PARAMETERS, start=1):
        size *= len(parameter.values)
        if used >= 2 and size >= count:
            return _PARAMETERS[:used]
    raise SpaceError(f"{count} configs are more than the {size} points there are", "ask for fewer")


def _points(
    parameters: Sequence[RecordedParameter], count: int, rng: random.Random
) -> list[Config]:
    names = [parameter.name for parameter in parameters]
    grid = list(itertools.product(*(parameter.values for parameter in parameters)))
    return [
        dict(zip(names, grid[index], strict=True))
        for index in sorted(rng.sample(range(len(grid)), count))
    ]


def _medians(
    points: Sequence[Config],
    parameters: Sequence[RecordedParameter],
    scenario: Scenario,
    rng: random.Random,
) -> list[float]:
    centre = {parameter.name: rng.random() for parameter in parameters}
    weight = {parameter.name: rng.uniform(0.3, 1.0) for parameter in parameters}
    place: dict[str, dict[Value, float]] = {
        parameter.name: {
            value: index / max(1, len(parameter.values) - 1)
            for index, value in enumerate(parameter.values)
        }
        for parameter in parameters
    }

    def roughness(point: Config) -> float:
        bowl = sum(weight[n] * (place[n][v] - centre[n]) ** 2 for n, v in point.items())
        return bowl + rng.gauss(0.0, 0.05)

    heights = [roughness(point) for point in points]
    order = sorted(range(len(points)), key=heights.__getitem__)
    draws = sorted(rng.gammavariate(scenario.shape, scenario.scale) for _ in points)
    medians = [0.0] * len(points)
    for index, draw in zip(order, draws, strict=True):
        medians[index] = scenario.best_us * math.exp(draw - draws[0])
    return medians


def _with_failures(
    entries: list[RecordedConfig], default: int, failures: float, twins: float, rng: random.Random
) -> list[RecordedConfig]:
    """Some configs as failures, and some with the binary and time of an earlier one."""
    changed = list(entries)
    for index, entry in enumerate(entries):
        draw = rng.random()
        status = rng.choice(list(_FAILED))
        other = changed[rng.randrange(index + 1)]
        if index == default:
            continue
        if draw < failures:
            changed[index] = replace(entry, status=status, median_us=None, message=_FAILED[status])
        elif draw < failures + twins:
            changed[index] = replace(other, config=entry.config)
    return changed
