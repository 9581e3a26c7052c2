"""Selection in simulated noise scenarios: real engine, screening and race in virtual time (C1).

For each noise scenario of tests/made_up_spaces.py and each seed, a space is synthesised whose best
config is known; every config is measured and the finals choose. The summary says how often the
choice is within 1 % and 2 % of the best, the 95th percentile of the regret, and the simulated
device seconds.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from made_up_spaces import SCENARIOS, synthesize
from virtual_pool import VirtualPool

from search_spaces.recorded.recorded_kernel import RecordedKernel, RecordedSpace
from search_spaces.records import config_key
from tuner import strategies
from tuner.engine import (
    Build,
    Engine,
    Finish,
    Instruction,
    Measure,
    Select,
    TaskBudget,
    TaskSpec,
    Tick,
)
from workers.job_records import KernelRef, Mode, PoolSpec

NOISY = ("W1", "W2", "W3", "W4", "W5", "W6")
#: Device seconds of the reference design for 2,000 configs, and the allowed multiple of them.
REFERENCE_S = {"W1": 0.97, "W2": 1.13, "W3": 0.30, "W4": 1.01, "W5": 0.96, "W6": 1.38}
ALLOWED = 1.5


def instructions(engine: Engine, pool: VirtualPool) -> Iterator[Instruction]:
    """All instructions of the engine until it finishes. The pool carries out builds and jobs.

    An instruction is yielded before the pool carries it out.
    """
    pool.start()
    while not engine.finished:
        for event in pool.poll(0.0 if engine.builds_deferred else 0.1) or (Tick(),):
            for instruction in engine.handle(event, pool.clock()):
                yield instruction
                if isinstance(instruction, Build):
                    pool.submit_build(instruction.job)
                elif isinstance(instruction, Measure):
                    pool.submit_measure(instruction.worker_id, instruction.job)


def label(name: str) -> str:
    """The id of a scenario with its title, e.g. `W5 fast drift`."""
    return f"{name} {SCENARIOS[name].title}"


def tune(scenario: str, seed: int, configs: int) -> dict[str, float]:
    """One exhaustive tuning of a synthetic space: regret and simulated seconds."""
    space = synthesize(configs, seed=seed, scenario=scenario, build_s=0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made_up.space.json"
        space.save(path)
        return choose(RecordedSpace.load(path), path, scenario, seed)


def choose(space: RecordedSpace, path: Path, scenario: str, seed: int) -> dict[str, float]:
    """The engine's choice from a recorded space; all configs are measured in virtual time."""
    kernel = RecordedKernel(space)
    bound = kernel.space(space.workload).bind(space.workload, kernel.device)
    task = TaskSpec(
        task_id=1,
        label=scenario,
        kernel=KernelRef(f"recorded:{path}"),
        workload=space.workload,
        device=kernel.device,
        space=bound,
        strategy=strategies.create("exhaustive", bound, seed, {"shuffle": True}),
        default=dict(space.default),
        budget=TaskBudget(),
        finalists=16,
    )
    options = {"simulated": {"seed": seed}}
    pool = VirtualPool(PoolSpec("virtual", {"simulated": 1}, 64, options=options))
    engine = Engine([task], builders=64)
    winner = None
    for instruction in instructions(engine, pool):
        if isinstance(instruction, Measure) and instruction.job.mode is Mode.CONFIRM:
            # The finals have chosen; later steps are not part of the selection.
            winner = instruction.job.candidates[0].config
        elif isinstance(instruction, Select):
            winner = instruction.selection.winner
        elif isinstance(instruction, Finish):
            raise RuntimeError(instruction.message)
        if winner is not None:
            break
    return {
        "regret": space[winner].median_us / space.best.median_us - 1,
        "device_s": engine.dispatcher.timing_s,
        "virtual_s": pool.clock(),
        "found": float(config_key(winner) == config_key(space.best.config)),
    }


def tune_job(arguments: tuple[str, int, int]) -> tuple[str, dict[str, float]]:
    return arguments[0], tune(*arguments)


def summary(scenario: str, runs: list[dict[str, float]], configs: int) -> dict[str, object]:
    regrets = sorted(run["regret"] for run in runs)
    device_s = statistics.median(run["device_s"] for run in runs)
    bound_s = ALLOWED * REFERENCE_S[scenario] * configs / 2000
    within = [sum(r <= limit for r in regrets) / len(regrets) for limit in (0.01, 0.02)]
    return {
        "seeds": len(runs),
        "within_1_percent": round(within[0], 4),
        "within_2_percent": round(within[1], 4),
        "regret_p95": round(regrets[int(0.95 * (len(regrets) - 1))], 5),
        "regret_mean": round(statistics.mean(regrets), 5),
        "device_s": round(device_s, 4),
        "device_s_bound": round(bound_s, 4),
        "passed": within[0] >= 0.99 and within[1] >= 0.995 and device_s <= bound_s,
    }
