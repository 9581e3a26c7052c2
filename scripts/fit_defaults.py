"""Write the winners from which the default configs of GPU families follow (docs/search_spaces.md).

    python scripts/fit_defaults.py [--results FOLDER] [--database URL] [-o FILE]

Read are campaigns' results, databases (`*.db.xz`) and recorded spaces under FOLDER (`benchmarks`),
and what ships of each confirmed task of a database. Of several results of one workload on one
device the newest counts; a recorded space comes after them. Of a database under FOLDER, winners of
a kernel are taken only if they give better defaults for its workloads there, each without its own
winner, and no worse ones for recorded spaces; the figures are printed. Equal input gives equal
bytes.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from write_kernels_page import FORMER_NAMES, ROOT

from results_db import Store
from results_db.migrate import upgrade
from results_db.shipped import select_shipped
from search_spaces.bound import BoundSpace
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.measured_defaults import FILE, Measured, choose_nearest
from search_spaces.recorded.recorded_kernel import RecordedKernel
from search_spaces.recorded.recorded_space import RecordedSpace
from search_spaces.records import Value, Workload, canonical_json, config_key
from search_spaces.registry import compiles_without_torch, load

#: The script takes winners of a kernel from a packed database if the defaults improve by this
#: factor over at least this number of workloads.
GAIN, LEAST = 1.01, 8
#: The shares of its winners that are tried.
SHARES = (1.0, 0.8, 0.6, 0.4)


def read_results(folder: Path, targets: dict[str, str]) -> Iterator[tuple[str, Measured]]:
    """Winners of campaigns that are not slower than the default, each with its date."""
    for path in folder.glob("results/*/families*.json"):
        document = json.loads(path.read_text())
        (device,) = document["devices"]
        for task in document["tasks"]:
            if task.get("winner") and task["verdict_against_default"] != "slower":
                yield (
                    document["date"],
                    Measured(
                        FORMER_NAMES.get(task["kernel"], task["kernel"]),
                        _rename(task["workload"]),
                        task["winner"],
                        device,
                        targets[device],
                        f"{path.relative_to(folder)}",
                    ),
                )


def _rename(dims: dict[str, Value]) -> Workload:
    return Workload.from_mapping(
        {
            FORMER_NAMES.get(name, name): FORMER_NAMES.get(f"{value}", value)
            for name, value in dims.items()
        }
    )


def read_database(url: str) -> Iterator[tuple[str, Measured]]:
    """What ships of each confirmed task, with its place among them, the newest last."""
    with Store.open(url, create=False) as store:
        confirmed = store.list_confirmed()
        for at, outline in enumerate(reversed(confirmed)):
            task = store.task(outline.task_id)
            if task.selection is not None:
                config = dict(select_shipped(task.selection).config)
                key, device = task.key, task.key.device
                yield (
                    f"z{at:09}",
                    Measured(
                        key.kernel, key.workload, config, device.name, device.target, "database"
                    ),
                )


def read_packed(
    path: Path, folder: Path, others: Sequence[Measured], spaces: Sequence[RecordedSpace]
) -> Iterator[tuple[str, Measured]]:
    """The winners of a packed database that give better defaults."""
    with tempfile.TemporaryDirectory() as scratch:
        url = f"sqlite:///{scratch}/tuner.db"
        (Path(scratch) / "tuner.db").write_bytes(lzma.decompress(path.read_bytes()))
        upgrade(url)
        source = f"{path.relative_to(folder)}"
        found = [replace(item, source=source) for _, item in read_database(url) if is_taken(item)]
        with Store.open(url, create=False) as store:
            runs = store.runs(limit=None)
            date = max(run.started_at for run in runs).date().isoformat()
            problems = [problem for run in runs for problem in list_problems(store, run.run_id)]
        for name in sorted({item.kernel for item in found}):
            own = [problem for problem in problems if problem.kernel.name == name]
            recorded = [Problem.of(space) for space in spaces if space.kernel == name]
            known = [item for item in others if item.kernel == name]
            more = [item for item in found if item.kernel == name]
            if len(own) < LEAST:
                continue
            yield from ((date, item) for item in choose_winners(own, recorded, known, more))


class Problem(NamedTuple):
    """A workload on a device, with the times of configs by key."""

    kernel: Kernel
    space: BoundSpace
    times: Mapping[str, float]

    @classmethod
    def of(cls, recorded: RecordedSpace) -> Problem:
        space = RecordedKernel(recorded).space(recorded.workload)
        times = {config_key(e.config): e.median_us for e in recorded.configs if e.median_us}
        return cls(load(recorded.kernel), space.bind(recorded.workload, recorded.device), times)

    def judge(self, winners: Iterable[Measured]) -> float | None:
        """The best time over the default's by winners of other workloads; None if not timed."""
        others = [item for item in winners if item.workload != self.space.workload]
        config = choose_nearest(self.kernel, self.space, others)
        time_us = self.times.get(config_key(config)) if config else None
        return min(self.times.values()) / time_us if time_us else None


def list_problems(store: Store, run_id: int) -> Iterator[Problem]:
    """The tasks of a run that have a winner, with the times of their trials."""
    for task in store.tasks(run_id):
        if task.selection is not None:
            kernel, workload = load(task.key.kernel), task.key.workload
            trials = [trial for trial in store.trials(task.task_id) if trial.median_us]
            times = {config_key(t.config): t.median_us for t in trials if t.median_us is not None}
            yield Problem(kernel, kernel.space(workload).bind(workload, task.key.device), times)


def choose_winners(
    own: Sequence[Problem],
    recorded: Sequence[Problem],
    known: Sequence[Measured],
    more: Sequence[Measured],
) -> list[Measured]:
    """Those of `more` with the most work, as many as leave recorded spaces as they are.

    None unless the defaults of the database's own workloads are better with them.
    """
    work = {item: load(item.kernel).cost(item.workload).flops for item in more}
    ordered = sorted(more, key=lambda item: -work[item])
    for share in SHARES:
        taken = ordered[: round(share * len(ordered))]
        (was, now), count = compare_means(own, known, [*known, *taken])
        (before, after), _ = compare_means(recorded, known, [*known, *taken])
        helps = now > GAIN * was and after >= before
        print(
            f"{more[0].kernel}, {len(taken)} of {len(more)} winners: best over default "
            f"{was:.3f} -> {now:.3f} at {count} of their workloads, {before:.3f} -> {after:.3f} "
            f"at {len(recorded)} recorded spaces; {'taken' if helps else 'left out'}"
        )
        if helps:
            return taken
    return []


def compare_means(
    problems: Sequence[Problem], known: Sequence[Measured], all_: Sequence[Measured]
) -> tuple[tuple[float, float], int]:
    """The geometric means by either, over problems whose defaults are timed, and their number."""
    pairs = [(problem.judge(known), problem.judge(all_)) for problem in problems]
    timed = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not timed:
        return (1.0, 1.0), 0
    return (geometric_mean(a for a, _ in timed), geometric_mean(b for _, b in timed)), len(timed)


def is_taken(item: Measured) -> bool:
    """Whether a built-in GPU family of that name takes the workload."""
    if not compiles_without_torch(item.kernel):
        return False
    try:
        load(item.kernel).check_workload(item.workload)
    except TunerError:
        return False
    return True


def collect(folder: Path, database: str | None) -> list[Measured]:
    """All winners, sorted; of one workload, the preferred one first."""
    spaces = [(path, RecordedSpace.load(path)) for path in folder.glob("spaces/*/*.space.json")]
    targets = {space.device.name: space.device.target for _, space in spaces}
    recorded = [
        Measured(
            space.kernel, space.workload, space.best.config, space.device.name,
            space.device.target, f"{path.relative_to(folder)}",
        )
        for path, space in sorted(spaces)
    ]  # fmt: skip
    files = list(read_results(folder, targets))
    for path in sorted(folder.glob("results/*/*.db.xz")):
        known = [item for item in [*(m for _, m in files), *recorded] if is_taken(item)]
        files += read_packed(path, folder, known, [space for _, space in spaces])
    dated = sorted(
        [*files, *(read_database(database) if database else ())],
        key=lambda pair: (pair[0], pair[1].source, pair[1].kernel),
    )
    newest = {(m.kernel, m.workload, m.device): m for _, m in dated}
    ranked = [(0, item) for item in newest.values()] + [(1, item) for item in recorded]
    known: dict[str, tuple[int, Measured]] = {}
    for rank, item in ranked:
        dims = canonical_json(item.workload.as_dict())
        key = canonical_json([item.kernel, dims, item.device, dict(item.config)])
        known.setdefault(key, (rank, item))

    def order(pair: tuple[int, Measured]) -> tuple[object, ...]:
        rank, item = pair
        return item.kernel, canonical_json(item.workload.as_dict()), rank, item.source, item.device

    return [item for _, item in sorted(known.values(), key=order) if is_taken(item)]


def write(path: Path, measured: Iterable[Measured]) -> None:
    """Write winners, one per line, as they are ordered."""
    names = ("kernel", "workload", "config", "device", "target", "source")
    rows = [
        {name: getattr(item, name) for name in names} | {"workload": item.workload.as_dict()}
        for item in measured
    ]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(f"[\n{lines}\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks")
    parser.add_argument("--database", metavar="URL")
    parser.add_argument("-o", "--output", type=Path, default=FILE, metavar="FILE")
    options = parser.parse_args()
    found = collect(options.results, options.database)
    write(options.output, found)
    print(f"{options.output}: {len(found)} winners of {len({m.kernel for m in found})} kernels")


if __name__ == "__main__":
    main()
