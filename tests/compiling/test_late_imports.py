"""Actions that wait for the import of a module."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from search_spaces.absent_device.fake_driver import once_imported


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that can be imported and is not."""
    (tmp_path / "waited_for.py").write_text("values = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield "waited_for"
    sys.modules.pop("waited_for", None)
    assert sys.meta_path == finders


def test_a_module_that_is_imported_needs_no_waiting(module):
    importlib.import_module(module)
    seen = []
    with once_imported(module, lambda: seen.append("now")):
        assert seen == ["now"]
    assert seen == ["now"]


def test_the_action_follows_the_import(module):
    seen = []
    with once_imported(module, lambda: seen.append(sys.modules[module].values)):
        assert module not in sys.modules
        importlib.import_module("json")
        assert not seen
        loaded = importlib.import_module(module)
        assert seen == [loaded.values]
        importlib.import_module(module)
    assert len(seen) == 1


def test_an_import_after_the_block_causes_nothing(module):
    seen = []
    with once_imported(module, lambda: seen.append(1)):
        spec = importlib.util.find_spec(module)
    assert spec is not None
    importlib.import_module(module)
    assert not seen


def test_blocks_inside_each_other_all_see_the_import(module):
    seen = []
    with (
        once_imported(module, lambda: seen.append("outer")),
        once_imported(module, lambda: seen.append("inner")),
    ):
        importlib.import_module(module)
    assert sorted(seen) == ["inner", "outer"]


def test_a_module_that_is_absent_or_fails_is_reported_as_ever(module, tmp_path):
    seen = []
    with once_imported("no_such_module", lambda: seen.append(1)), pytest.raises(ImportError):
        importlib.import_module("no_such_module")
    (tmp_path / "waited_for.py").write_text("1 / 0\n")
    with once_imported(module, lambda: seen.append(1)):
        with pytest.raises(ZeroDivisionError):
            importlib.import_module(module)
        assert not seen
        (tmp_path / "waited_for.py").write_text("values = [1, 2, 3]\n")
        importlib.invalidate_caches()
        importlib.import_module(module)
        assert seen == [1]
