"""Exporters of tables: the format of `tuner.runtime`, and lists of Triton configs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from results_db.config_text import split_triton_config
from search_spaces.records import digest
from tuner.runtime import Table
from tuner.tables.exporters import File
from tuner.tables.results import Results
from tuner.tables.text import file_name, text_of


class Tables:
    """`tuner`: one table per kernel and device, as `tuner.runtime` reads them."""

    def files(self, results: Results) -> Iterator[File]:
        for name, table in name_files(results):
            yield File(name, text_of(table).encode(), _tasks(table))


class TritonConfigs:
    """`triton`: a list of configs per key, winner first, each for `triton.Config(**config)`."""

    def files(self, results: Results) -> Iterator[File]:
        for name, table in name_files(results):
            rows = [
                {
                    "key": dict(entry.key),
                    "configs": [
                        split_triton_config(entry.config),
                        *(split_triton_config(tie) for tie in entry.tie_set if tie != entry.config),
                    ],
                }
                for entry in table.entries
            ]
            text = json.dumps(rows, indent=2, sort_keys=True, allow_nan=False) + "\n"
            yield File(f"{name.removesuffix('.json')}.triton.json", text.encode(), _tasks(table))


def name_files(results: Results) -> Iterator[tuple[str, Table]]:
    """Tables with their file names. Tables of several toolchains get a digest in their names."""
    count = Counter(file_name(table) for table in results.tables)
    for table in results.tables:
        name = file_name(table)
        if count[name] > 1:
            suffix = digest([table.launch_hash, dict(table.toolchain)], 6)
            name = f"{name.removesuffix('.json')}-{suffix}.json"
        yield name, table


def _tasks(table: Table) -> tuple[int, ...]:
    found = (entry.provenance.get("task") for entry in table.entries)
    return tuple(sorted(task for task in found if isinstance(task, int)))
