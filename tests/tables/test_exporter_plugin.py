"""An exporter from an installed package, added in one file."""

from __future__ import annotations

import json
import sys

import pytest
from installed_plugins import install_plugins
from table_documents import WINNER, add_task, outcome

from search_spaces.errors import TunerError
from search_spaces.records import Workload
from tuner import tables

PLUGIN = """
import json
from collections.abc import Iterator

from tuner.tables import File, Results


class Winners:
    def files(self, results: Results) -> Iterator[File]:
        for task in results.tasks:
            text = json.dumps(task.selection.winner, sort_keys=True)
            yield File(f"{task.key.kernel}.winner.json", text.encode(), (task.task_id,))
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    packages = tmp_path / "site"
    places = {"winners": "winner_export:Winners", "broken": "winner_export:Absent"}
    install_plugins(packages, "winner-export", "tuner.exporters", places)
    (packages / "winner_export.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "winner_export", raising=False)


@pytest.fixture
def store(store, run_id):
    add_task(store, run_id, Workload.of(n=1024, dtype="float16"), selection=outcome())
    return store


def test_an_installed_exporter_writes_files_checks_them_and_is_recorded(plugin, store, tmp_path):
    assert tables.available()["winners"] == "winner_export:Winners"
    (path,) = tables.export(store, 1, tmp_path / "out", "winners")
    assert json.loads(path.read_text()) == WINNER
    (recorded,) = store.exports()
    assert (recorded.format, recorded.path) == ("winners", str(path))
    assert tables.check_export(store, 1, tmp_path / "out", "winners") == []
    path.write_text("{}")
    assert tables.check_export(store, 1, tmp_path / "out", "winners") != []


def test_an_exporter_that_cannot_be_loaded_names_its_package(plugin, store, tmp_path):
    with pytest.raises(TunerError, match="exporter 'broken' cannot be loaded") as caught:
        tables.export(store, 1, tmp_path / "out", "broken")
    assert "winner-export" in caught.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('no idea')", "fails: ValueError: no idea"),
        ("raise SystemExit(0)", "fails: SystemExit: 0"),
        ("import os; os._exit(0)", "fails: SystemExit: os._exit(0)"),
        ("return ['x']", "gives 'x', which is no File"),
        ("return None", "fails: TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_an_exporter_at_fault_is_named(plugin, store, tmp_path, body, words):
    text = f"class Winners:\n    def files(self, results):\n        {body}\n"
    (tmp_path / "site" / "winner_export.py").write_text(text)
    for act in (tables.export, tables.check_export):
        with pytest.raises(TunerError) as caught:
            act(store, 1, tmp_path / "out", "winners")
        assert caught.value.message == f"exporter 'winners' {words}"
        assert "winner-export" in caught.value.hint


@pytest.mark.parametrize("name", ["../out.json", "/tmp/out.json", "a/../../out.json", "a\nb", ""])
def test_no_exporter_writes_outside_the_output_folder(store, tmp_path, name):
    class Elsewhere:
        def files(self, results):
            yield tables.File("first.json", b"{}")
            yield tables.File(name, b"{}")

    with pytest.raises(TunerError, match="no name of a file in the output folder") as refused:
        tables.export(store, 1, tmp_path / "out", "elsewhere", exporter=Elsewhere())
    assert "\n" not in refused.value.message
    assert not (tmp_path / "out").exists()
