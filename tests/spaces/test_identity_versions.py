"""A kernel has one identity under every Python version: tables of one are valid in another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = '''
import enum
import functools
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

SCALE = 2.5


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"


class Pair(NamedTuple):
    left: int
    right: int = 3


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a block."""

    count: int
    names: tuple[str, ...] = ()
    extra: dict[str, int] = field(default_factory=dict)

    @property
    def doubled(self) -> int:
        return 2 * self.count


class Shape(Protocol):
    def size(self) -> int: ...


@functools.lru_cache
def cached(value: int) -> str:
    return f"{value:>{4}} of {SCALE!r}"


def choose(value, *rest, key=None, **more):
    match value:
        case Rows(count=0) | None:
            return [cached(n) for n in range(3) if (half := n // 2)]
        case {"mode": Mode.FAST, **others}:
            return lambda x: x + len(others) + Pair(1).right
        case _:
            try:
                return {n: m for n, m in zip(rest, more)}
            except* ValueError as group:
                raise TypeError("no") from group


class Kernel:
    limit = 1 << 20

    def launches(self, config):
        return choose(Rows(self.limit), config, key=Mode.EXACT, shape=Shape)
'''
SCRIPT = """
import sys
from kernel import Kernel
from tuner.runtime.identity import closure_of
print(closure_of(Kernel(), ("launches",)).digest)
"""


def digest(python: str, folder: Path) -> str:
    done = subprocess.run(
        [python, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_python_computes_the_same_identity(tmp_path, version):
    other = shutil.which(f"python{version}")
    if other is None or subprocess.run([other, "-V"], capture_output=True, check=False).returncode:
        pytest.skip(f"Python {version} is not installed")
    (tmp_path / "kernel.py").write_text(CODE)
    assert digest(other, tmp_path) == digest(sys.executable, tmp_path)


def test_the_options_of_a_dataclass_enter_the_identity(tmp_path):
    (tmp_path / "kernel.py").write_text(CODE)
    before = digest(sys.executable, tmp_path)
    (tmp_path / "kernel.py").write_text(CODE.replace("frozen=True", "frozen=False"))
    assert digest(sys.executable, tmp_path) != before
