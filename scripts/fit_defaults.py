"""Write the winners from which the default configs of GPU families follow (docs/search_spaces.md).

    python scripts/fit_defaults.py [--results FOLDER] [--database URL] [-o FILE]

Read are campaigns' results and recorded spaces under FOLDER (`benchmarks`), and what ships of each
confirmed task of a database. Of several results of one workload on one device the newest counts; a
recorded space comes after them. Equal input gives equal bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from write_kernels_page import FORMER_NAMES, ROOT

from results_db import Store
from results_db.shipped import select_shipped
from search_spaces.errors import TunerError
from search_spaces.measured_defaults import FILE, Measured, write
from search_spaces.recorded.recorded_space import RecordedSpace
from search_spaces.records import Value, Workload, canonical_json
from search_spaces.registry import compiles_without_torch, load


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
    dated = sorted(
        [*read_results(folder, targets), *(read_database(database) if database else ())],
        key=lambda pair: (pair[0], pair[1].source, pair[1].kernel),
    )
    newest = {(m.kernel, m.workload, m.device): m for _, m in dated}
    recorded = [
        Measured(
            space.kernel, space.workload, space.best.config, space.device.name,
            space.device.target, f"{path.relative_to(folder)}",
        )
        for path, space in sorted(spaces)
    ]  # fmt: skip
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
