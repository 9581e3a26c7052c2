"""A whole program as something to time: run in turn with other tables, and compared.

What counts of a run is the number on the last line of its stdout, of which less is better, such as
milliseconds a step; of a program that prints none, the seconds of the whole run.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Self

from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.base.log_ratio import THRESHOLD, LogRatio
from tuner.base.statistics import compare_pairs
from tuner.optimizing.step_comparison import NEW, TODAY, Times, time_in_turn

#: Rounds of runs, and after which time the fewest suffice.
_FEWEST, _MOST, _LONG_S = 5, 20, 600.0
#: The largest number that can be compared.
_LARGEST = 1e10
#: Bytes and characters of the end of a stream that are read and shown.
_TAIL, _SHOWN = 65536, 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a program that ended with 0."""

    seconds: float
    last_line: str

    @property
    def number(self) -> float | None:
        """The number on the last line; None unless it is positive and of a size to compare."""
        try:
            found = float(self.last_line)
        except ValueError:
            return None
        return found if 1 / _LARGEST <= found <= _LARGEST else None

    @property
    def shown_line(self) -> str:
        """The last line, safe to show."""
        return f"'{inert(self.last_line[:_SHOWN])}'"


@dataclass(frozen=True, slots=True)
class Program:
    """A command and the environment in which it runs."""

    command: Sequence[str]
    environment: Mapping[str, str]
    #: Is told what runs.
    say: Callable[[str], None] = lambda text: None
    #: What a run has that the program does not ask for, for messages.
    way: str = ""

    def with_first(self, name: str, folder: Path) -> Self:
        """The same with a folder before those of a variable such as TUNER_TABLES."""
        return self.with_values({name: f"{folder}{os.pathsep}{self.environment.get(name, '')}"})

    def with_values(self, values: Mapping[str, str], way: str = "") -> Self:
        """The same with these variables. way: what they are, if that is worth a word."""
        environment = {**self.environment, **values}
        return replace(self, environment=environment, way=way or self.way)

    def run(self) -> Outcome:
        """Run it once, without input.

        Raises `TunerError` where it does not end with 0.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            began = time.perf_counter()
            code = subprocess.run(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out,
                stderr=errors, check=False,
            ).returncode  # fmt: skip
            seconds = time.perf_counter() - began
            if code:
                raise self._fail(code if code > 0 else 128 - code, _last_line(errors))
            return Outcome(seconds, _last_line(out))

    def _fail(self, code: int, line: str) -> TunerError:
        name = inert(shlex.join(self.command)[:_SHOWN])
        way = f" with {self.way}" if self.way else ""
        said = f": {inert(line[:_SHOWN])}" if line else ""
        hint = f"it must end with 0{', also' + way if way else '; run it alone to see all it says'}"
        return TunerError(f"{name}: exit code {code}{way}{said}", hint)


def _last_line(stream: IO[bytes]) -> str:
    """The last line that is not empty."""
    stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
    lines = stream.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def time_programs(ways: Mapping[str, Program], *, by_clock: bool = False) -> Times:
    """What counts of each way round by round, after one run of each that does not count.

    At least 5 rounds, and up to 20 within 10 minutes while an interval of the ratio of `NEW` to
    another way is wide; without `NEW`, of `TODAY`. by_clock: seconds count, and not the number that
    is printed. Raises `TunerError` where a run fails, or prints no number.
    """

    def measure(name: str) -> float:
        found = ways[name].run()
        value = found.seconds if by_clock else found.number
        if value is None:
            raise TunerError(
                f"the last line of the output is no positive number: {found.shown_line}",
                "print one number last in each run, such as the milliseconds of a step",
            )
        return value

    def is_enough(times: Times) -> bool:
        rounds = len(times[TODAY])
        found = ", ".join(f"{name} {values[-1]:.4g}" for name, values in times.items() if values)
        ways[TODAY].say(f"round {rounds}: {found}" if rounds else "running it in turn")
        if rounds < _FEWEST:
            return False
        ratios = (compare_pairs(times[own], times[each]) for each in times if each != own)
        return time.monotonic() - began > _LONG_S or all(map(is_narrow, ratios))

    for name in ways:
        measure(name)
    began, own = time.monotonic(), NEW if NEW in ways else TODAY
    return time_in_turn(measure, [*ways], is_enough, _MOST)


def is_narrow(ratio: LogRatio) -> bool:
    """Whether an interval tells enough: within 1 %, or within half of the difference."""
    return ratio.high - ratio.low <= max(THRESHOLD, abs(ratio.value) / 2)


def check_gate(program: Program, published: Path, files: Mapping[str, bytes]) -> tuple[bool, str]:
    """Whether a program is surely not slower with new tables, and the figures in a clause.

    Surely: the interval of new / published time begins at 1 at most and ends at 1.01 at most.
    published: a folder of tables. files: of those that are to be there, by name. Raises
    `TunerError` where the program fails or prints no number last.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-") as made:
        former = {path.name: path.read_bytes() for path in published.glob("*.json")}
        for name, content in {**former, **files}.items():
            Path(made, name).write_bytes(content)
        new = program.with_values({}, "the new tables").with_first("TUNER_TABLES", Path(made))
        times = time_programs({NEW: new, TODAY: program.with_first("TUNER_TABLES", published)})
    ratio = compare_pairs(times[NEW], times[TODAY])
    low, high = ratio.interval or (0.0, math.inf)
    passes = low <= 1 and high <= 1 + THRESHOLD
    word = "not slower" if passes else "slower" if low > 1 else "not surely as fast"
    figures = f"{ratio.ratio:.4f} of the time [{low:.4f}, {high:.4f}], {len(times[NEW])} rounds"
    return passes, f"the gate is {word}: {figures}"
