"""Kernels are loaded from their files as they are now, in a process that lives long."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time

import pytest

from search_spaces import registry, source_changes
from search_spaces.errors import KernelError
from search_spaces.records import Workload

KERNEL = """
from tuner import Choice, Cost, Kernel, SearchSpace, TensorSpec, Tolerance, Workload
{imports}

WIDTHS = [1, 2]
SIZES = tuple(8 * width for width in WIDTHS)

class Small(Kernel):
    name = "small"
    kinds = ("cpu",)
    def workloads(self): return [Workload.of(n=SIZES[-1])]
    def check_workload(self, workload): pass
    def make_inputs(self, workload, seed, device): return {{}}
    def outputs(self, workload): return {{}}
    def reference(self, workload, inputs): return {{}}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(1.0, {value})
    def space(self, workload): return SearchSpace([Choice("way", [1, 2])], [], kernel=self.name)
    def default_config(self, workload, device): return {{"way": 1}}
    def baselines(self, workload): return {{}}
    def cpu_callable(self, workload, config): return lambda inputs: {{}}

INSTANCE = Small()
"""
_NUMBERS = itertools.count()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder on the import path, with a helper of a new name: `write(value)` edits it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Place(tmp_path, f"helper_{next(_NUMBERS)}")
    for name in sys.modules.keys() - before:
        if name.startswith(("helper_", "kernel_of_", "tuner_kernels_")):
            del sys.modules[name]


class Place:
    def __init__(self, folder, helper) -> None:
        self.folder, self.helper = folder, helper
        self.kernel = folder / f"kernel_of_{helper}.py"
        self.spec = f"{self.kernel}:Small"

    def write_kernel(self, value: str, imports: str = "") -> None:
        self.kernel.write_text(KERNEL.format(imports=imports, value=value))
        earlier(self.kernel, 5)

    def write_helper(self, text: str, name: str = "") -> None:
        path = self.folder / f"{name or self.helper}.py"
        path.write_text(text)
        earlier(path, 5)


def earlier(path, seconds: float) -> None:
    """Date a file back, so that its import does not look as if it was edited meanwhile."""
    when = time.time() - seconds
    os.utime(path, (when, when))


def moved(kernel) -> float:
    return kernel.cost(Workload.of(n=1)).bytes


@pytest.mark.parametrize("by", ["file", "module"])
def test_an_edited_kernel_is_imported_again(place, by):
    spec = place.spec if by == "file" else f"{place.kernel.stem}:Small"
    place.write_kernel("1.0")
    first = source_changes.current(spec)
    assert moved(first) == 1.0
    assert type(source_changes.current(spec)) is type(first), "not imported again without an edit"
    place.write_kernel("2.0")
    assert moved(source_changes.current(spec)) == 2.0


def test_an_edit_of_the_same_size_and_second_counts(place):
    place.write_kernel("1.0")
    assert moved(source_changes.current(place.spec)) == 1.0
    when = place.kernel.stat().st_mtime_ns
    place.kernel.write_text(place.kernel.read_text().replace("1.0, 1.0", "1.0, 3.0"))
    os.utime(place.kernel, ns=(when + 1000, when + 1000))
    assert moved(source_changes.current(place.spec)) == 3.0


@pytest.mark.parametrize(
    ("imports", "value"),
    [
        ("import {0}", "{0}.VALUE"),
        ("from {0} import VALUE", "VALUE"),
        ("import through_{0}", "through_{0}.{0}.VALUE"),
        ("def late():\n    import {0}\n    return {0}.VALUE", "late()"),
    ],
)
def test_an_edited_helper_is_imported_again(place, imports, value):
    place.write_helper(f"import {place.helper}\n", f"through_{place.helper}")
    place.write_helper("VALUE = 1.0\n")
    place.write_kernel(value.format(place.helper), imports.format(place.helper))
    assert moved(source_changes.current(place.spec)) == 1.0
    files = source_changes.files_of(source_changes.current(place.spec))
    assert f"{place.folder / place.helper}.py" in files
    place.write_helper("VALUE = 25.0\n")
    assert moved(source_changes.current(place.spec)) == 25.0
    changed = source_changes.files_of(source_changes.current(place.spec))
    assert {f for f in files if files[f] != changed[f]} == {f"{place.folder / place.helper}.py"}


def test_modules_that_the_kernel_does_not_reach_stay(place):
    place.write_helper("VALUE = 1.0\n")
    place.write_kernel("1.0")
    other = importlib.import_module(place.helper)
    source_changes.current(place.spec)
    place.write_helper("VALUE = 25.0\n")
    place.write_kernel("2.0")
    assert moved(source_changes.current(place.spec)) == 2.0
    assert sys.modules[place.helper] is other


def test_a_helper_that_was_imported_before_the_kernel_and_edited_since_is_imported_again(place):
    path = place.folder / f"{place.helper}.py"
    path.write_text("def value(): return 1.0\n")
    importlib.import_module(place.helper)
    path.write_text("def value(): return 2.0\n")
    os.utime(path, (time.time() + 5, time.time() + 5))
    place.write_kernel(f"{place.helper}.value()", f"import {place.helper}")
    assert moved(source_changes.current(place.spec)) == 2.0


def test_an_object_that_is_older_than_its_file_is_refused(place):
    place.write_kernel("1.0")
    module = importlib.import_module(place.kernel.stem)
    kernel = source_changes.current(module.INSTANCE)
    assert kernel is module.INSTANCE
    assert source_changes.current(kernel) is kernel
    place.write_kernel("2.0")
    os.utime(place.kernel)
    with pytest.raises(KernelError, match=f"{place.kernel.name} has changed since") as caught:
        source_changes.current(kernel)
    assert f"pass '{place.kernel.stem}:INSTANCE'" in caught.value.hint
    importlib.invalidate_caches()
    importlib.reload(module)
    assert moved(source_changes.current(module.INSTANCE)) == 2.0


@pytest.mark.parametrize(
    "edit", [("[1, 2]", "[1, 4]"), ("8 * width", "9 * width"), ('"cpu",', '"cpu", "cuda",')]
)
def test_an_edit_of_a_constant_counts_after_a_first_use(place, edit):
    place.write_kernel("1.0")
    module = importlib.import_module(place.kernel.stem)
    source_changes.current(module.INSTANCE)
    place.kernel.write_text(place.kernel.read_text().replace(*edit))
    with pytest.raises(KernelError, match="has changed since"):
        source_changes.current(module.INSTANCE)


def test_a_file_that_was_only_touched_before_its_first_use_is_not_edited(place):
    place.write_kernel("1.0")
    module = importlib.import_module(place.kernel.stem)
    os.utime(place.kernel)
    assert source_changes.current(module.INSTANCE) is module.INSTANCE


def test_a_file_that_cannot_be_imported_leaves_the_older_module_and_is_tried_again(place):
    place.write_kernel("1.0")
    kernel = source_changes.current(place.spec)
    older = sys.modules[type(kernel).__module__]
    place.kernel.write_text("this is no Python")
    for _ in range(2):
        with pytest.raises(KernelError, match="SyntaxError"):
            source_changes.current(place.spec)
        assert sys.modules[type(kernel).__module__] is older
    place.write_kernel("2.0")
    assert moved(source_changes.current(place.spec)) == 2.0


def test_built_in_families_and_missing_files_are_loaded_as_ever():
    assert source_changes.current("softmax").name == "softmax"
    assert source_changes.files_of(registry.load("softmax")) == {}
    with pytest.raises(KernelError, match="there is no file"):
        source_changes.current("absent.py:Kernel")
    with pytest.raises(KernelError, match="unknown kernel"):
        source_changes.current("softmaxx")
