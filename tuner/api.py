"""The farm from Python, for notebooks and libraries: the same engine as the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces import registry
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Value, Workload
from tuner.campaign import RunOptions, run_campaign
from tuner.progress import ProgressCallback
from tuner.settings import validated

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TuneResult:
    """The outcome of `tune`."""

    #: The fastest correct config; None when nothing ran correctly.
    winner: Config | None
    #: The configs that cannot be distinguished from the winner within 1 %.
    tie_set: tuple[Config, ...]
    #: The winner against the default config: `faster`, `slower`, `same` or `undecided`.
    verdict: str
    #: Confirmed time of the config that ships, microseconds.
    median_us: float | None
    #: Time of the default config over that of the config that ships.
    speedup: float | None
    #: Confirmed times in microseconds by name; None for a baseline that failed.
    baselines: Mapping[str, float | None]
    #: One row per trial.
    trials: pd.DataFrame
    #: The device's exact name.
    device: str
    #: Remarks on the task, such as why it ended early.
    note: str = ""
    #: The config of a table: the winner or, where that may be slower, the default config; None
    #: where nothing is confirmed.
    ships: Config | None = None
    #: Why the default config ships instead of the winner; empty where the winner ships.
    kept_because: str = ""


def tune(
    kernel: str | Kernel,
    workload: Workload | Mapping[str, Value],
    *,
    budget: int | str | Mapping[str, Any] = 100,
    target: str | None = None,
    strategy: str = "bayes",
    seed: int = 0,
    pool: str = "local",
    database: str | None = None,
    fresh: bool = False,
    settings: Mapping[str, Any] | None = None,
    on_progress: ProgressCallback | None = None,
) -> TuneResult:
    """Tune one kernel for one workload and return the winner, its tie set and all trials.

    kernel: a registered name, `module:object`, `file.py:object`, or a `Kernel` that another process
    can import. budget: trials, `"auto"`, or a mapping of `trials`, `gain`, `max_trials`,
    `device`, `wall` (seconds or `"30m"`).
    target: `cpu`, `cuda`, `cuda:90`...; by default the kernel's own kind. database: a SQLAlchemy
    URL; by default a temporary one, so that nothing is kept. settings: more of config.yaml, such as
    `{"measure": {"final_pairs": 40}}`. Raises `TunerError` for whatever the caller can correct.
    """
    found = registry.load_undecided(kernel) if isinstance(kernel, str) else kernel
    spec = registry.spec_of(found)
    dims = workload.as_dict() if isinstance(workload, Workload) else dict(workload)
    campaign = {
        "tasks": [{"kernel": spec, "workloads": [dims]}],
        "targets": [target] if target else list(found.kinds),
        "budget": dict(budget) if isinstance(budget, Mapping) else {"trials": budget},
        "strategy": {"name": strategy, "seed": seed},
    }
    with tempfile.TemporaryDirectory(prefix="tuner-") as scratch:
        url = database or f"sqlite:///{scratch}/tuner.db"
        more = dict(settings or {})
        more["pool"] = {"kind": pool, **more.get("pool", {})}
        more |= {"database": {"url": url}, "campaigns": {"tune": campaign}}
        full = validated(more, lambda _: "tune()")
        options = RunOptions(fresh=fresh, report=False, export=False, base=Path.cwd())
        outcome = run_campaign(full, "tune", options=options, on_progress=on_progress)
        return _result(url, outcome.run_id, outcome.summary)


def _result(url: str, run_id: int, summary: str) -> TuneResult:
    from results_db import Store
    from results_db.shipped import shipped

    with Store.open(url) as store:
        tasks = store.tasks(run_id)
        if not tasks:
            raise TunerError(f"nothing was tuned: {summary}", "run `tuner doctor`")
        task = next((t for t in tasks if t.selection is not None), tasks[0])
        chosen = task.selection
        ships = shipped(chosen) if chosen and chosen.median_us is not None else None
        shipped_us = ships.median_us if ships else None
        default = chosen.default_us if chosen else None
        return TuneResult(
            winner=chosen.winner if chosen else None,
            tie_set=chosen.tie_set if chosen else (),
            verdict=chosen.verdict if chosen else "undecided",
            median_us=shipped_us,
            speedup=default / shipped_us if default and shipped_us else None,
            baselines={b.name: b.median_us for b in task.baselines},
            trials=store.trials_frame(task_id=task.task_id),
            device=task.key.device.name,
            note=task.note,
            ships=ships.config if ships else None,
            kept_because=ships.kept_because if ships else "",
        )
