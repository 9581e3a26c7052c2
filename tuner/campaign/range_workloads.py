"""The workloads of a task entry, those of its ranges included."""

from __future__ import annotations

import csv
import itertools
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from search_spaces import registry
from search_spaces.declaration import guarded_calls
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Value, Workload
from search_spaces.size_range import Range, RangePlace, list_fixed_sizes, list_places
from tuner.settings.sections import HistogramFile, TaskConfig

Placed: TypeAlias = tuple[Workload, RangePlace | None]
#: The largest file of a histogram.
_MAX_BYTES = 4 * 2**20
#: A cell that begins like a number, as `1024.0` or `-1`.
_NUMERIC = re.compile(r"\s*[-+.]*\d")
#: The most workloads of a task entry.
_MAX_WORKLOADS = 100_000


def read_line(
    line: TaskConfig, kernel: Kernel, paths: Sequence[str]
) -> tuple[Kernel, list[Placed]]:
    """The kernel of a task entry, and its workloads with their places in ranges.

    Of a kernel whose own workloads can be made at other sizes, as captured calls, it is another
    one, which does so. Raises as `list_workloads`, and for ranges without other dims.
    """
    if line.workloads != "all":
        return kernel, list_workloads(line, paths)
    own = guarded_calls.workloads(kernel)
    if not line.ranges:
        return kernel, [(each, None) for each in own]
    ranges = {name: _read_range(name, each, paths) for name, each in line.ranges.items()}
    sized = kernel.with_ranges(ranges)
    if sized is None:
        raise TunerError(
            f"{line.kernel}: `ranges` needs `workloads`",
            "list the other dims, such as [{N: 4096}], or [{}] where there are none",
        )
    whole = guarded_calls.workloads(sized)[0].as_dict()
    rest = {name: value for name, value in whole.items() if name not in ranges}
    return sized, list_workloads(line.model_copy(update={"workloads": [rest]}), paths)


def list_workloads(line: TaskConfig, paths: Sequence[str]) -> list[Placed]:
    """The listed workloads of a task entry with their places in its ranges.

    paths: the folders in which a histogram is looked for. Raises `TunerError` for one that cannot
    be read, and for a dim that a workload and a range both give.
    """
    assert line.workloads != "all"
    listed = line.workloads
    if not line.ranges:
        return [(Workload.from_mapping(each), None) for each in listed]
    ranges = {name: _read_range(name, each, paths) for name, each in line.ranges.items()}
    for workload in listed:
        if both := [name for name in ranges if name in workload]:
            raise TunerError(
                f"{line.kernel}: {both[0]} is given by a workload and by `ranges`",
                f"leave {both[0]} out of the workload, or out of `ranges`",
            )
    placed = (place for each in listed for place in _list_places(line, each, ranges))
    found = list(itertools.islice(placed, _MAX_WORKLOADS + 1))
    if len(found) > _MAX_WORKLOADS:
        raise TunerError(
            f"{line.kernel}: its ranges make more than {_MAX_WORKLOADS:,} workloads",
            "give fewer sizes of each range, or fewer ranges",
        )
    return found


def _list_places(
    line: TaskConfig, rest: Mapping[str, Value], ranges: Mapping[str, Range]
) -> Iterator[Placed]:
    """The sizes of the last range, for each choice of sizes of the others; then those held out."""
    coverage, (*others, dim) = line.coverage, ranges
    last, searched = ranges[dim], list_places(ranges[dim])
    for sizes in itertools.product(*(list_fixed_sizes(ranges[name]) for name in others)):
        fixed = Workload.from_mapping({**rest, **dict(zip(others, sizes, strict=True))})
        seed = zlib.crc32(f"{fixed.key} {last!r}".encode())
        drawn = dict.fromkeys(last.draw(8 * coverage.held_out, seed))
        held_out = [size for size in drawn if size not in searched][: coverage.held_out]
        for size, between in (dict(sorted(searched.items())) | dict.fromkeys(held_out)).items():
            yield (
                Workload.from_mapping({**fixed.as_dict(), dim: size}),
                RangePlace(
                    tuple(ranges.items()),
                    coverage.gain,
                    coverage.searches,
                    between,
                    size in held_out,
                ),
            )


def _read_range(dim: str, given: Range | HistogramFile, paths: Sequence[str]) -> Range:
    if isinstance(given, Range):
        return given
    path = registry.find_file(given.file, paths)
    where = f"ranges.{dim}: {given.file}"
    if path is None or not Path(path).is_file():
        raise TunerError(f"{where} is not a file", "give a CSV file with `size,weight` lines")
    if os.path.getsize(path) > _MAX_BYTES:
        raise TunerError(f"{where} is too large", f"a histogram has at most {_MAX_BYTES} bytes")
    weights: dict[int, float] = {}
    number = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if not row or (number == 1 and not any(map(_NUMERIC.match, row))):
                    continue  # a blank line, or a heading
                size, weight = int(row[0]), float(row[1]) if len(row) > 1 else 1.0
                Range.of_sizes({size: weight})
                weights[size] = weights.get(size, 0.0) + weight
        number = 0  # what is wrong now is wrong with the whole file
        return Range.of_sizes(weights)
    except (OSError, ValueError, csv.Error) as error:
        at = f" line {number}" if number else ""
        raise TunerError(
            f"{where}{at}: {error}", "write one size and its weight per line: 128,0.25"
        ) from None
