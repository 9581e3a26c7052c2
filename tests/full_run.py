"""Which tests of kernel families run whole: those whose code changed since the last full run.

Notation. A *unit* is a test file marked `family`, or the part of a file marked `matrix` that is
about one family, `file[family]`. The *code* of a unit are the files that its outcome depends on:
the test file and its helpers, the families that it names with the modules of `search_spaces` that
these reach, and what builds and interprets kernels. `full_run.json` holds, for each toolchain, a
digest of the code of each unit that passed whole in `make test-all`.

    FAMILIES=changed   units whose digest is there run in rotation: one test of a file, and for each
                       family one interpreted variant and one build; others run whole (the default)
    FAMILIES=all       all units run whole, and those that pass are written to `full_run.json`
    FAMILIES=few       all tests are there, each with one variant (other toolchains)

ROTATION, a number, chooses what runs in rotation; by default it follows from the commit.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path

import pytest

from search_spaces.registry import BUILT_IN
from search_spaces.source_reach import module_file, reach_of, text_of

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "full_run.json"
MODES = ("changed", "all", "few")
#: Where the code of tests lies, with what builds and interprets kernels.
_CODE_OF_TESTS = (
    "tests/full_run.py",
    "tests/spaces",
    "tests/compiling/test_torch_free_builds.py",
    "search_spaces/kernels",
    "workers/backends/interpreter",
    "workers/compiling",
)
_KERNELS = f"{ROOT / 'search_spaces/kernels'}/"


def describe_toolchain() -> str:
    """What the outcomes of a unit are kept by."""
    python = ".".join(map(str, sys.version_info[:2]))
    # Builds and the interpreter are the same for a CPU and for CUDA (`2.13.0+cpu`).
    torch = version("torch").partition("+")[0]
    return f"Python {python}, torch {torch}, triton {version('triton')}"


# -- the code of a unit ----------------------------------------------------------------------------
def _below(*places: str) -> tuple[str, ...]:
    return tuple(f"{ROOT / place}" for place in places)


@cache
def _reached(file: Path, places: tuple[str, ...]) -> frozenset[str]:
    """The files below the places that a file reaches by its imports."""
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return frozenset(reach_of(file, name, lambda found: _belongs(found, places)).modules)


def _belongs(found: str, places: tuple[str, ...]) -> bool:
    # The package itself only names what others may import, and so reaches everything.
    return found.startswith(places) and found != f"{ROOT / 'search_spaces/__init__.py'}"


def list_code(test: Path, families: Iterable[str]) -> set[str]:
    """The files that the outcome of a test file depends on, for these families."""
    found = set(_reached(test, _below(*_CODE_OF_TESTS)))
    for family in families:
        place = module_file(BUILT_IN[family].partition(":")[0])
        assert place is not None, family
        found.add(place)
    for file in [file for file in found if file.startswith(_KERNELS)]:
        found |= _reached(Path(file), _below("search_spaces"))
    return found


@cache
def _named_families(test: Path) -> tuple[str, ...]:
    """The families whose names stand in a file, as `load("softmax")` has one."""
    constants = {node.value for node in ast.walk(ast.parse(test.read_bytes())) if _is_text(node)}
    return tuple(name for name in BUILT_IN if name in constants)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def digest(unit: str) -> str:
    """A digest of a unit's code."""
    path, _, family = unit.removesuffix("]").partition("[")
    test = ROOT / path
    files = list_code(test, [family] if family else _named_families(test))
    # Of syntax trees: comments, docstrings and blank lines do not count.
    said = sorted(text_of(file).digest for file in files)
    return hashlib.sha256("".join(said).encode()).hexdigest()[:16]


# -- what was covered ------------------------------------------------------------------------------
def read_covered() -> dict[str, dict[str, str]]:
    """The digests that passed whole, by toolchain and unit."""
    covered: dict[str, dict[str, str]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return covered


def _write_covered(passed: Mapping[str, str], failed: Iterable[str]) -> None:
    everything = read_covered()
    units = everything.setdefault(describe_toolchain(), {})
    units |= passed
    for unit in [*failed, *(unit for unit in units if not _exists(unit))]:
        units.pop(unit, None)
    FILE.write_text(json.dumps(everything, indent=0, sort_keys=True) + "\n")


def _exists(unit: str) -> bool:
    path, _, family = unit.removesuffix("]").partition("[")
    return (ROOT / path).exists() and (not family or family in BUILT_IN)


@dataclass(frozen=True, eq=False)
class Selection:
    """What runs whole in a session of tests, and what chooses the rest."""

    mode: str = field(default_factory=lambda: os.environ.get("FAMILIES", "changed"))
    rotation: int = field(default_factory=lambda: _read_rotation())

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise pytest.UsageError(f"FAMILIES is {self.mode!r}; use one of {', '.join(MODES)}")

    @cached_property
    def _covered(self) -> dict[str, str]:
        return read_covered().get(describe_toolchain(), {}) if self.mode == "changed" else {}

    @cache  # noqa: B019 - one selection lives as long as the session
    def is_whole(self, unit: str) -> bool:
        """Whether all of a unit runs."""
        if self.mode == "changed":
            return unit not in self._covered or self._covered[unit] != digest(unit)
        return self.mode == "all"

    def choose(self, group: str, count: int) -> int:
        """The one of `count` tests of a group whose turn it is."""
        return (self.rotation + sum(group.encode())) % count


def _read_rotation() -> int:
    if "ROTATION" in os.environ:
        return int(os.environ["ROTATION"])
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    said = ""
    with suppress(OSError):  # there is no git
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return int(said.strip() or "0", 16)


# -- the session of tests --------------------------------------------------------------------------
def unit_of(item: pytest.Item) -> str:
    """The unit of a test; empty for one that always runs."""
    path = f"{item.path.relative_to(ROOT)}"
    if item.get_closest_marker("matrix") is not None:
        family = getattr(item, "callspec").params["name"]  # noqa: B009 - of functions alone
        return f"{path}[{family}]"
    return path if item.get_closest_marker("family") is not None else ""


def _group_of(item: pytest.Item) -> str:
    """Tests that share one turn: those of a file; in the matrix, of a family and kind of test."""
    unit, matrix = unit_of(item), item.get_closest_marker("matrix")
    return unit if matrix is None else f"{matrix.args[0]}{unit[unit.index('[') :]}"


def split_by_turn(
    selection: Selection, items: Sequence[pytest.Item]
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run, in their order, and those whose turn it is not."""
    waiting: dict[str, list[pytest.Item]] = {}
    for item in items:
        unit = unit_of(item)
        if unit and selection.mode == "changed" and not selection.is_whole(unit):
            waiting.setdefault(_group_of(item), []).append(item)
    left = set()
    for group, tests in waiting.items():
        del tests[selection.choose(group, len(tests))]
        left |= set(tests)
    return [item for item in items if item not in left], [i for i in items if i in left]


class FullRun:
    """The plug-in of a session: selects tests, and writes what a full run has covered.

    Processes of tests send with each report the test's unit, the number of its tests, and the
    digest of its code before they ran, as `unit`, `of` and `digest`; the process that gathers the
    reports counts them.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.selection = Selection()
        self._gathers = not hasattr(config, "workerinput")
        self._writes = self.selection.mode == "all" and not any("::" in a for a in config.args)
        self._passed: Counter[str] = Counter()
        self._expected: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._failed: set[str] = set()

    def pytest_report_header(self) -> str:
        return f"families: {self.selection.mode}, rotation {self.selection.rotation}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        counted = [item for item in items if item.get_closest_marker("gpu") is None]
        counts = Counter(map(unit_of, counted))
        for item in counted:
            unit = unit_of(item)
            if unit and self._writes:
                said = {"unit": unit, "of": counts[unit], "digest": digest(unit)}
                item.user_properties += said.items()
        kept, left = split_by_turn(self.selection, items)
        if left:
            config.hook.pytest_deselected(items=left)
            items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = dict(report.user_properties)
        if self._gathers and "unit" in said:
            unit = str(said["unit"])
            self._expected[unit], self._digests[unit] = int(str(said["of"])), str(said["digest"])
            self._passed[unit] += report.when == "call" and report.passed
            if report.failed:
                self._failed.add(unit)

    def pytest_sessionfinish(self) -> None:
        whole = {u for u, count in self._expected.items() if self._passed[u] == count}
        passed = {unit: self._digests[unit] for unit in whole - self._failed}
        if passed or self._failed:
            _write_covered(passed, self._failed)


@pytest.fixture
def whole(request: pytest.FixtureRequest) -> bool:
    """Whether the unit of this test runs whole; otherwise one variant is enough."""
    plugin: FullRun = request.config.pluginmanager.getplugin("full run")
    return plugin.selection.is_whole(unit_of(request.node))


@pytest.fixture
def in_turn(request: pytest.FixtureRequest) -> Callable[[Sequence[str]], list[str]]:
    """All of some families in a full run; every fifth, in rotation, where none of them is asked."""
    selection = request.config.pluginmanager.getplugin("full run").selection
    step = 1 if selection.mode == "all" else 5
    return lambda names: list(names[selection.rotation % step :: step])


@pytest.fixture
def turn(request: pytest.FixtureRequest) -> int:
    """A number that chooses the variant of a unit that does not run whole."""
    plugin: FullRun = request.config.pluginmanager.getplugin("full run")
    return plugin.selection.rotation
