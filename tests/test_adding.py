"""What is added in one place: the rest of the product finds it there.

Plug-ins of installed packages have tests with their subjects: exporters in `tests/tables`,
backends in `tests/measure`, sections of the report in `tests/reports`. A column of a listing has
one in `tests/cli`, an operator one in `tests/ops`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from search_spaces.plugins import PluginGroup
from tuner import strategies, tables
from tuner.cli import application
from workers import backend_kinds


def run(code: str, *arguments: Path) -> str:
    """Standard output of a process of its own, which imports what it adds before all else."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FAMILY = """
from search_spaces.kernels.cpu_pointwise.kernel import CpuPointwise


class Doubled(CpuPointwise):
    name = "doubled"
"""
FIND_FAMILY = """
import sys
from search_spaces import kernels

kernels.__path__.append(sys.argv[1])
from search_spaces import registry

kernel = registry.load("doubled")
print(registry.available()["doubled"], kernel.name, *registry.kinds_by_name("doubled"))
"""


def test_a_folder_below_the_kernels_is_a_family(tmp_path):
    folder = tmp_path / "doubled"
    folder.mkdir()
    names = 'KERNELS = {"doubled": "kernel:Doubled"}\nKINDS = ("cpu",)\n'
    (folder / "__init__.py").write_text(names)
    (folder / "kernel.py").write_text(FAMILY)
    place = "search_spaces.kernels.doubled.kernel:Doubled"
    assert run(FIND_FAMILY, tmp_path) == f"{place} doubled cpu"


LONGER_RECORD = """
import sys
from dataclasses import dataclass, field, replace
from results_db import stored_records


@dataclass(frozen=True, slots=True)
class Longer(stored_records.{record}):
    joules: float | None = {default}


stored_records.{record} = Longer
import results_db
results_db.{record} = Longer  # as if the field were among those of the record
import sample_data
from results_db import Store

with Store.open(f"sqlite:///{{sys.argv[1]}}") as store:
    run_id = sample_data.new_task(store).run_id
    {write}
with Store.open(f"sqlite:///{{sys.argv[1]}}") as store:
    (task,) = store.tasks(run_id)
    print(*(each.joules for each in {read}))
"""
LISTED = "store.record_selection(1, sample_data.SELECTION, sample_data.BASELINES, {})"


@pytest.mark.parametrize(
    ("record", "default", "write", "read"),
    [
        (
            "FinalRecord",
            "None",
            LISTED.format("[replace(each, joules=1.5) for each in sample_data.FINALS[:2]]"),
            "task.finals",
        ),
        *(
            (
                "TrialRecord",
                default,
                "[store.record_trial(1, replace(each, joules=1.5)) for each in "
                "sample_data.TRIALS[:2]]",
                "store.trials(1)",
            )
            for default in ("None", "field(default=None, metadata={'table': 'measurement'})")
        ),
    ],
    ids=["finalist", "trial", "measurement"],
)
def test_a_field_of_a_record_is_a_column_that_is_written_and_read(
    tmp_path, record, default, write, read
):
    code = LONGER_RECORD.format(record=record, default=default, write=write, read=read)
    code = f"import sys; sys.path.append({str(Path(__file__).parent / 'store')!r})\n{code}"
    assert run(code, tmp_path / "results.db") == "1.5 1.5"


def test_a_line_of_the_commands_and_its_function_are_a_command(monkeypatch):
    module = ModuleType("tuner.cli.greeting")

    def greet(name: str) -> None:
        """Greet somebody."""
        typer.echo(f"hello {name}")

    module.greet = greet
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(application._COMMANDS, "greet", "greeting:greet")
    runner = CliRunner()
    assert "Greet somebody." in runner.invoke(application.make_app(), ["--help"]).output
    for app in (application.make_app(), application.make_app("greet")):
        assert runner.invoke(app, ["greet", "you"]).output == "hello you\n"


@pytest.mark.parametrize(
    ("group", "names"),
    [
        (tables.exporters.EXPORTERS, tables.available),
        (strategies.STRATEGIES, strategies.names),
        (backend_kinds.BACKENDS, backend_kinds.names),
    ],
    ids=["exporter", "strategy", "backend"],
)
def test_an_entry_of_the_mapping_is_built_in(group: PluginGroup, names, monkeypatch):
    monkeypatch.setitem(group._built_in, "another", "builtins:object")
    assert "another" in names()
    assert group.is_built_in("another")
    assert group.load("another") is object
