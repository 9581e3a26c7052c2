from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from installed_plugins import install_plugins

from search_spaces import plugins
from search_spaces.errors import KernelError
from search_spaces.registry import available, load, spec_of

ROOT = Path(__file__).parent.parent.parent

SOURCE = """
from tuner import Boolean, Cost, Kernel, SearchSpace, Tolerance, Workload

LOADED = []
LOADED.append(1)


class Mine(Kernel):
    name = "mine"
    def workloads(self): return [Workload.of(n=1)]
    def check_workload(self, workload): pass
    def make_inputs(self, workload, seed, device): return {}
    def outputs(self, workload): return {}
    def reference(self, workload, inputs): return {}
    def tolerance(self, workload): return Tolerance(1, 1)
    def cost(self, workload): return Cost(1, 1)
    def space(self, workload): return SearchSpace([Boolean("flag")])
    def default_config(self, workload, device): return {"flag": False}
    def baselines(self, workload): return {}


class Half(Kernel):
    name = "half"


class Holder:
    inner = Mine


instance = Mine()
number = 3
def factory(): return Mine()
def failing(): raise ValueError("two\\nlines")

if __name__ == "__main__":
    from search_spaces.registry import spec_of
    print(spec_of(instance))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my-kernels.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("attribute", ["Mine", "instance", "factory", "Holder.inner"])
def test_a_file_gives_a_class_an_instance_or_a_factory(file, attribute):
    kernel = load(f"{file}:{attribute}")
    assert kernel.name == "mine"
    assert kernel.spec == f"{file.resolve()}:{attribute}"
    assert spec_of(kernel) == kernel.spec
    # The module is imported once, from a real file: Triton reads its source.
    assert sys.modules[type(kernel).__module__].LOADED == [1]
    assert kernel.launch_hash()


def test_files_and_modules_are_found_on_the_given_paths(file, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_module_of_test.py").write_text(SOURCE)
    assert load("my-kernels.py:Mine", paths=[str(tmp_path)]).name == "mine"
    kernel = load("own_module_of_test:instance", paths=[str(tmp_path)])
    kernel.spec = ""
    assert spec_of(kernel) == "own_module_of_test:instance"
    # A kernel found by its class alone: any instance equals any other.
    fresh = type(kernel)()
    assert spec_of(fresh) == "own_module_of_test:Mine"


def test_a_running_script_is_found_by_its_file(file):
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == f"{file.resolve()}:instance"


def test_what_no_other_process_can_find_is_refused(file):
    kernel = type(load(f"{file}:Mine"))()
    namespace: dict = {}
    exec(SOURCE.split("class Half")[0], {"__name__": "a_notebook_cell"}, namespace)
    with pytest.raises(KernelError, match="no other process can find it") as caught:
        spec_of(namespace["Mine"]())
    assert ".py file" in caught.value.hint
    kernel.extra = "state no class can give back"
    with pytest.raises(KernelError, match="no other process"):
        spec_of(kernel)


BAD = [
    ("softmx", "did you mean 'softmax'"),
    ("nothing_like_it", "unknown kernel 'nothing_like_it'"),
    ("no_such_module_here:Kernel", "ModuleNotFoundError"),
    ("{file}:Min", "did you mean 'Mine'"),
    ("{file}:Half", "does not define space"),
    ("{file}:number", "it is a int, not a Kernel"),
    ("{file}:failing", "ValueError: two lines"),
    ("{folder}/absent.py:Kernel", "there is no file"),
    ("{folder}/broken.py:Kernel", "SyntaxError"),
    ("{folder}/leaving.py:Kernel", "SystemExit"),
]


@pytest.mark.parametrize(("spec", "complaint"), BAD)
def test_what_cannot_be_loaded_is_one_line(file, tmp_path, spec, complaint):
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit('bye')\n")
    with pytest.raises(KernelError) as caught:
        load(spec.format(file=file, folder=tmp_path))
    assert complaint in caught.value.message
    assert "\n" not in caught.value.message
    assert "Traceback" not in caught.value.message
    assert caught.value.hint


def test_an_autotuned_function_is_told_to_be_adopted():
    with pytest.raises(KernelError, match="not a Kernel") as caught:
        load("spaces_adopted:scale_add_kernel")
    assert "adopt" in caught.value.hint


def test_entry_points_are_listed_without_being_imported(file, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "plugin_of_test.py").write_text(SOURCE)
    (tmp_path / "broken_plugin.py").write_text("import not_installed_anywhere\n")
    places = {
        "mine": "plugin_of_test:Mine",
        "broken": "broken_plugin:Kernel",
        "softmax": "broken_plugin:Kernel",
    }
    install_plugins(tmp_path, "kernels-of-test", "tuner.kernels", places)
    listed = available()
    assert listed["mine"] == "plugin_of_test:Mine"
    assert listed["softmax"] == "search_spaces.kernels.softmax.kernel:Softmax"
    assert "plugin_of_test" not in sys.modules
    assert load("mine").spec == "mine"
    with pytest.raises(KernelError, match="kernel broken: importing it fails") as caught:
        load("broken")
    assert caught.value.hint.startswith("install not_installed_anywhere")


def test_built_in_kernels_are_found_by_name():
    assert set(available()) >= {"softmax", "matmul", "cpu_pointwise"}
    kernel = load("cpu_pointwise")
    assert kernel.spec == "cpu_pointwise"
    assert spec_of(type(kernel)()) == "cpu_pointwise"


def test_a_built_in_kernel_is_loaded_whatever_else_is_installed(monkeypatch):
    def unreadable(group):
        raise OSError("a package whose metadata cannot be read")

    monkeypatch.setattr(plugins, "entry_points", unreadable)
    assert load("cpu_pointwise").spec == "cpu_pointwise"


def test_listing_and_declaring_need_neither_torch_nor_triton():
    code = (
        "import sys, search_spaces.registry\n"
        "search_spaces.registry.available()\n"
        "import search_spaces.dims, search_spaces.kernels.cudnn, "
        "search_spaces.kernels.matmul.space\n"
        "print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
