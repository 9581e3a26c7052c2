from __future__ import annotations

import sys
from pathlib import Path

import pytest
from installed_plugins import install_plugins

from search_spaces.errors import TunerError
from search_spaces.plugins import PluginGroup

GROUP = "tuner.tests_of_plugins"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginGroup:
    """A group with one built-in plug-in, and `tmp_path` on the import path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return PluginGroup(GROUP, "colour", {"red": "colorsys:rgb_to_hls"})


def test_installed_plugins_stand_beside_the_built_in_ones(group, tmp_path):
    (tmp_path / "paint_of_test.py").write_text("class Paint:\n    blue = 'a plug-in'\n")
    install_plugins(tmp_path, "paint", GROUP, {"blue": "paint_of_test:Paint.blue"})
    assert group.names() == ("blue", "red")
    assert "paint_of_test" not in sys.modules
    assert group.load("blue") == "a plug-in"
    assert callable(group.load("red"))


def test_an_entry_point_does_not_replace_a_built_in_plugin(group, tmp_path):
    install_plugins(tmp_path, "paint", GROUP, {"red": "no_such_module:Red"})
    assert group.place("red") == "colorsys:rgb_to_hls"
    assert callable(group.load("red"))


def test_a_package_installed_during_the_process_is_seen_on_a_new_path(group, tmp_path, monkeypatch):
    assert group.names() == ("red",)
    install_plugins(tmp_path / "later", "paint", GROUP, {"blue": "no_such_module:Blue"})
    monkeypatch.setattr(sys, "path", [str(tmp_path / "later"), *sys.path])
    assert group.names() == ("blue", "red")


def test_an_unknown_name_is_answered_with_the_nearest_and_the_group(group):
    with pytest.raises(TunerError, match="unknown colour 'rad'; did you mean 'red'") as caught:
        group.load("rad")
    assert "red" in caught.value.hint
    assert GROUP in caught.value.hint


def test_a_plugin_that_cannot_be_imported_names_its_package(group, tmp_path):
    install_plugins(tmp_path, "broken-paint", GROUP, {"blue": "no_such_module:Blue"})
    with pytest.raises(TunerError, match="colour 'blue' cannot be loaded from no_such") as caught:
        group.load("blue")
    assert "no_such_module" in caught.value.message
    assert "broken-paint" in caught.value.hint
    assert GROUP in caught.value.hint


def test_two_packages_with_one_name_are_both_named(group, tmp_path):
    install_plugins(tmp_path, "first-paint", GROUP, {"blue": "first:Blue"})
    install_plugins(tmp_path, "second-paint", GROUP, {"blue": "second:Blue"})
    with pytest.raises(TunerError, match="registered 2 times") as caught:
        group.place("blue")
    assert "first-paint" in caught.value.message
    assert "second-paint" in caught.value.message
