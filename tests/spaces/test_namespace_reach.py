"""Source files in namespace packages: folders without `__init__.py`."""

from __future__ import annotations

import sys

import pytest

from search_spaces.source_reach import module_file, reach_of

#: `one` and `two` are folders of the import path; `split` is a namespace package in both.
FILES = {
    "one/outer/__init__.py": "",
    "one/outer/plain.py": "",
    "one/outer/spread/deep.py": "from . import beside",
    "one/outer/spread/beside.py": "",
    "one/outer/spread/nested/leaf.py": "from ...plain import x",
    "one/outer/spread/whole/__init__.py": "from . import inner",
    "one/outer/spread/whole/inner.py": "",
    "one/split/first.py": "",
    "two/split/second.py": "",
    "two/outer/spread/other.py": "",
}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("two", "one"):
        monkeypatch.syspath_prepend(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("outer.spread", None),
        ("outer.spread.nested", None),
        ("split", None),
        ("outer.spread.deep", "one/outer/spread/deep.py"),
        ("outer.spread.nested.leaf", "one/outer/spread/nested/leaf.py"),
        ("outer.spread.whole", "one/outer/spread/whole/__init__.py"),
        ("outer.spread.whole.inner", "one/outer/spread/whole/inner.py"),
        ("split.first", "one/split/first.py"),
        ("split.second", "two/split/second.py"),
        ("outer.spread.other", None),  # `outer` is the package of `one` alone
        ("outer.spread.missing", None),
        ("outer.missing.leaf", None),
        ("outer.plain.leaf", None),
        ("missing.spread.leaf", None),
    ],
)
def test_a_module_is_found_below_namespace_packages_without_an_import(folders, name, file):
    assert module_file(name) == (file and f"{(folders / file).resolve()}")
    assert not {each for each in sys.modules if each.partition(".")[0] in ("outer", "split")}


@pytest.mark.parametrize(
    ("statement", "reached"),
    [
        ("from outer import spread", ["outer/__init__"]),
        ("import outer.spread", ["outer/__init__"]),
        ("from outer.spread import deep", ["outer/__init__", "spread/beside", "spread/deep"]),
        ("import outer.spread.deep", ["outer/__init__", "spread/beside", "spread/deep"]),
        (
            "from outer.spread.nested.leaf import x",
            ["outer/__init__", "outer/plain", "nested/leaf"],
        ),
        ("import outer.spread.nested.leaf", ["outer/__init__", "outer/plain", "nested/leaf"]),
        ("from outer.spread import whole", ["outer/__init__", "whole/__init__", "whole/inner"]),
        ("from split import first, second", ["split/first", "split/second"]),
    ],
)
def test_the_walk_goes_through_namespace_packages(folders, statement, reached):
    kernel = folders / "kernel.py"
    kernel.write_text(statement)
    found = sorted(reach_of(kernel, "kernel", lambda file: file.startswith(f"{folders}")).modules)
    assert [each for each in found if each != f"{kernel}"] == [
        each for each in found if each.endswith(tuple(f"{name}.py" for name in reached))
    ]
    assert len(found) == 1 + len(reached)
