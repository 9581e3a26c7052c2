"""A kernel's identity: the text that it can reach, its state, its files; nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import identity_pairs
import pytest
from identity_pairs import LAYOUTS, SEEN, Folder

from search_spaces import registry
from search_spaces.errors import KernelError
from search_spaces.identity import COUNTED, EXCLUDED, identity_of, is_counted
from search_spaces.registry import BUILT_IN
from workers.compiling.job import build
from workers.device import offline
from workers.job_records import Artifact, BuildJob, KernelRef

ROOT = Path(__file__).parents[2]
CASES = [(kind, title) for kind, (titles, _) in SEEN.items() for title in titles]
PLAIN = "def scale(): return 1"


@pytest.fixture
def folder(tmp_path):
    found = Folder(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(("kind", "title"), CASES)
def test_an_edit_is_seen(folder, kind, title):
    first, again, edited = SEEN[kind][1](folder, title)
    assert first == again, "it is equal for equal code"
    assert edited != first


@pytest.mark.parametrize("title", LAYOUTS)
def test_layout_is_not_seen(folder, title):
    before, after = identity_pairs.layouts(folder, title)
    assert before == after


def test_files_that_no_text_names_do_not_count(folder):
    first = folder.identity(PLAIN)
    for name in ("README.md", "notes.txt", "tuner.db", "report.html", "x@NVIDIA_H200.json"):
        folder.write(name, "2")
    (folder.path / "unread.py").write_text("Z = 2")
    assert folder.identity(PLAIN) == first


def test_what_the_farm_writes_beside_a_kernel_does_not_count(folder):
    text = "def main(): tune(database='results.db', report='report.html', tables='a@b.json')"
    first = folder.identity(text)
    for name in ("results.db", "report.html", "a@b.json"):
        folder.write(name, "2")
    assert folder.identity(text) == first


def test_place_and_name_of_a_kernels_file_do_not_count(folder, tmp_path_factory):
    other = Folder(tmp_path_factory.mktemp("other"))
    other.name = folder.name
    assert folder.identity(PLAIN) == other.identity(PLAIN, name="renamed_NAME")
    other.close()


def test_two_modules_that_change_names_are_an_edit(folder):
    text = "import first_NAME, second_NAME\ndef scale(): return first_NAME.Z"
    found = []
    for first, second in [(2, 3), (3, 2)]:
        folder.write("first_NAME.py", f"Z = {first}")
        folder.write("second_NAME.py", f"Z = {second}")
        found.append(folder.identity(text))
    assert found[0] != found[1]


def test_environment_variables_that_the_text_names_count(folder, monkeypatch):
    text = "from os import getenv as g\nZ = int(g('OWN_SCALE', 1))\ndef scale(): return Z"
    found = [folder.identity(text)]
    for value in (2, 3):
        monkeypatch.setenv("OWN_SCALE", f"{value}")
        monkeypatch.setenv("OTHER", f"{value}")
        found.append(folder.identity(text))
    assert len(set(found)) == 3
    monkeypatch.setenv("OTHER", "4")
    assert folder.identity(text) == found[-1]


def test_the_program_that_a_shell_started_does_not_count(folder, monkeypatch):
    text = "import os\nPARTS = '_'.join(os.environ.get('OWN_PARTS', '').split())"
    found = set()
    for program in ("/usr/bin/python", "/usr/bin/timeout"):
        monkeypatch.setenv("_", program)
        found.add(folder.identity(text))
    assert len(found) == 1


def test_versions_of_distributions_count(folder, monkeypatch):
    """Also of one that is imported in a function only; the text of a library does not."""
    found = []
    for version, text in [("1.0", "Z = 1"), ("1.0", "Z = 2"), ("2.0", "Z = 2")]:
        site = folder.path / version / "site-packages"
        (site / f"lib_{folder.name}-{version}.dist-info").mkdir(parents=True, exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: lib_{folder.name}\nVersion: {version}\n"
        (site / f"lib_{folder.name}-{version}.dist-info" / "METADATA").write_text(metadata)
        (site / f"lib_{folder.name}.py").write_text(text)
        with monkeypatch.context() as patched:
            patched.syspath_prepend(f"{site}")
            from search_spaces import identity

            identity._version.cache_clear()
            identity._is_library.cache_clear()
            found.append(folder.identity(f"def scale():\n    import lib_{folder.name} as lib"))
    assert found[0] == found[1] != found[2]


def test_hash_seeds_do_not_count(folder):
    text = "def scale(): return 1\n\ndef held(): return make(z={'a', 'b', ('c', 1)}, y=print)"
    folder.identity(text)
    script = f"import kernel_{folder.name} as k; from search_spaces.identity import identity_of; "
    script += "print(identity_of(k.held()).digest)"
    paths = os.pathsep.join([f"{folder.path}", f"{ROOT}"])
    digests = {
        subprocess.run(
            [sys.executable, "-P", "-c", script],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ((number for number in [1]), "generator"),
        (memoryview(b"a"), "memoryview"),
        (open(__file__), "TextIOWrapper"),  # noqa: SIM115
    ],
    ids=["generator", "memory", "file"],
)
def test_a_value_without_a_digest_is_an_error_that_names_the_place(folder, value, named):
    folder.identity(PLAIN)
    kernel = sys.modules[f"kernel_{folder.name}"].make(held={"a": [value]})
    with pytest.raises(KernelError, match=rf"kernel own: held is a .*{named}") as caught:
        kernel.launch_hash()
    assert "build it inside the function" in caught.value.hint


def test_locks_streams_and_handles_have_an_identity(folder):
    folder.identity(PLAIN)
    make = sys.modules[f"kernel_{folder.name}"].make
    held = [threading.Lock(), sys.stderr, threading.local(), sys, os.path, print]
    assert make(z=held).launch_hash() == make(z=held).launch_hash()


def test_a_class_may_say_what_counts_of_its_instances(folder):
    text = """
    def scale(): return 1
    class Held:
        def __init__(self, z, log): self.z, self.log = z, log
        def identity_state(self): return (self.z,)
    """
    made = [folder.identity(text, f"make(held=Held({z}, '{log}'))") for z, log in
            [(2, "a"), (2, "b"), (3, "a")]]  # fmt: skip
    assert made[0] == made[1] != made[2]


def test_an_edit_after_the_import_gives_an_identity_of_its_own(folder):
    first = folder.identity(PLAIN)
    kernel = sys.modules[f"kernel_{folder.name}"].kernel
    assert kernel.launch_hash() == first
    path = folder.path / f"kernel_{folder.name}.py"
    path.write_text(path.read_text() + "\nZ = 2\n")
    assert kernel.launch_hash() not in (first, folder.identity(PLAIN + "\n\nZ = 2"))


def test_nothing_is_imported_that_a_script_alone_imports(folder):
    """Only modules with device code are, and those that functions name."""
    for name in ("script", "plain"):
        folder.write(f"{name}_NAME.py", "raise SystemExit('imported')")
    device = "import triton\nimport triton.language as tl\n@triton.jit\ndef fn(x): tl.store(x, {})"
    found = []
    for value in (2, 2, 3):
        folder.write("device_NAME.py", device.format(value))
        text = "def scale():\n    import device_NAME as d, plain_NAME\n    return d.fn[1]\n"
        folder.identity(text + "if __name__ == '__main__':\n    import script_NAME")
        found.append(identity_of(sys.modules[f"kernel_{folder.name}"].kernel).kernels)
        assert f"device_{folder.name}" in sys.modules
        assert f"plain_{folder.name}" not in sys.modules
    assert found[0] == found[1] != found[2]
    assert len(found[0]) == 1


# -- modules that no text names --------------------------------------------------------------------
UNNAMED = """
name = "hidden_" + "NAME"

@triton.jit
def one(y, n, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), 1.0)

class Late(Own):
    kinds = ("cuda",)
    def launches(self, workload, config, tensors):
        importlib.import_module(name)
        return [Launch(one, (1,), (tensors["y"], 64), {"BLOCK": 64})]

late = Late()
"""


def test_an_own_module_that_no_text_names_is_refused_by_a_builder(folder, tmp_path):
    folder.write("hidden_NAME.py", "Z = 2")
    folder.identity(UNNAMED)
    kernel = registry.load(f"kernel_{folder.name}:late")
    ref, device = KernelRef(kernel.spec, (f"{folder.path}",)), offline("cuda:90")
    job = BuildJob("a", ref, kernel.workloads()[0], {"way": 1}, device)
    file = folder.path / f"hidden_{folder.name}.py"
    with pytest.raises(KernelError, match=f"loaded {file}, which no import") as caught:
        build(job, tmp_path)
    assert caught.value.hint == f"write `import hidden_{folder.name}` in one of them"
    folder.identity(UNNAMED + "\nimport hidden_NAME\n")
    assert isinstance(build(job, tmp_path), Artifact)


# -- the farm's own kernels ------------------------------------------------------------------------
#: Modules of the farm, apart from kernel folders, that are part of identities.
SHARED = {"block_sizes", "edges", "fill", "shape_tensor", "tensors"}
SCRIPT = """
import json, os, sys
import torch, triton
import search_spaces.declaration.guarded_calls
from search_spaces import identity, registry
from search_spaces.registry import BUILT_IN
from workers.device import offline
from workers.host import cpu_device

for name in BUILT_IN:
    reading, writing = os.pipe()
    if not os.fork():
        before = set(sys.modules)
        kernel = registry.load(name)
        workload = kernel.workloads()[0]
        device = cpu_device() if "cpu" in kernel.kinds else offline("cuda:90")
        config = kernel.default_config(workload, device)
        small = kernel.small_workload(workload)
        kernel.reference(small, kernel.make_inputs(small, 1, "cpu"))
        kernel.baselines(small)
        if "cpu" in kernel.kinds:
            kernel.cpu_callable(workload, config)
        else:
            from search_spaces.tensors import empty_tensors
            specs = {**kernel.outputs(workload), **kernel.scratch(workload, config)}
            tensors = {**kernel.make_inputs(workload, 0, "meta"), **empty_tensors(specs, "meta")}
            kernel.launches(workload, config, tensors)
        loaded = {
            name: sys.modules[name].__file__
            for name in sys.modules
            if name.partition(".")[0] in ("search_spaces", "tuner") and identity.is_counted(name)
            and (name not in before or not name.startswith("search_spaces.kernels"))
        }
        files = set(identity.identity_of(kernel).files)
        missing = [n for n, file in loaded.items() if "kernels." in n and file not in files]
        os.write(writing, json.dumps([missing, sorted(files)]).encode())
        os._exit(0)
    os.close(writing)
    print(json.dumps([name, *json.load(os.fdopen(reading))]))
    os.wait()
"""


@pytest.fixture(scope="module")
def reached():
    """By family: the counted modules that it loaded and that do not count, the files that do."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}


def test_all_that_a_family_loads_is_in_its_identity(reached):
    assert reached.keys() == BUILT_IN.keys()
    assert {name: missing for name, (missing, _) in reached.items() if missing} == {}


def test_what_counts_of_the_farm_is_one_list(reached):
    """Each module of the farm that a family reaches is a kernel's, shared, or excluded."""
    names = {
        ".".join(Path(file).relative_to(ROOT).with_suffix("").parts)
        for _, files in reached.values()
        for file in files
    }
    outside = {name for name in names if not name.startswith("search_spaces.kernels.")}
    assert outside <= {f"search_spaces.{name}" for name in SHARED}
    for name in EXCLUDED | COUNTED:
        path = ROOT / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), f"{name} is no module"
    for path in (ROOT / "search_spaces").glob("*.py"):
        module = f"search_spaces.{path.stem}"
        if "\n@triton.jit" in path.read_text():
            assert is_counted(module), f"{module} has device code"


def test_an_edit_of_a_family_concerns_those_that_reach_it_alone(tmp_path):
    """In a copy of the farm: an edited helper, the base that is excluded, and nothing else."""
    for package in ("search_spaces", "tuner"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    script = "from search_spaces import registry; import json; print(json.dumps({n: "
    script += "registry.load(n).launch_hash() for n in ('softmax', 'rms_norm', 'cpu_softmax')}))"

    def hashes():
        done = subprocess.run(
            [sys.executable, "-P", "-B", "-c", script],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}"},
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    def edited(file):
        path = tmp_path / "search_spaces" / file
        before, text = hashes(), path.read_text()
        path.write_text(text + "\nEDITED = 1\n")
        after = hashes()
        path.write_text(text)
        return {name for name in before if before[name] != after[name]}

    assert hashes() == {name: registry.load(name).launch_hash() for name in hashes()}
    assert edited("kernels/softmax/triton_kernels.py") == {"softmax"}
    assert edited("kernels/rows.py") == {"softmax", "rms_norm"}
    assert edited("tensors.py") == {"softmax", "rms_norm", "cpu_softmax"}
    for excluded in ("kernel.py", "space.py", "registry.py", "records.py"):
        assert edited(excluded) == set()


# -- device code, which tables name ----------------------------------------------------------------
DEVICE = """
import triton, triton.language as tl
Z = tl.constexpr(@@)
@triton.jit
def inner(x): return x * Z
@triton.jit
def fn(x, BLOCK: tl.constexpr): tl.store(x, inner(1.0))
def host(): return OTHER
OTHER = 1
"""


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("constexpr(@@)", "constexpr(3)", True),
        ("return x * Z", "return x + Z", True),
        ("BLOCK: tl.constexpr", "BLOCK", True),
        ("inner(1.0)", "inner(2.0)", True),
        ("@triton.jit\ndef fn", "@triton.jit(noinline=True)\ndef fn", True),
        ("OTHER = 1", "OTHER = 2", False),
        ("def fn(x", "# A comment.\n\ndef fn(x", False),
    ],
)
def test_the_hash_of_device_code_covers_what_the_device_runs(folder, old, new, seen):
    def kernels(text):
        text = text.replace("@@", "2").replace("# A comment.\n\ndef fn", "def fn")
        folder.identity(text + "\ndef launched(): return fn[1]\n")
        return identity_of(sys.modules[f"kernel_{folder.name}"].kernel).kernels

    first = kernels(DEVICE)
    assert len(first) == 1, "a function that device code alone calls is part of its caller"
    assert (kernels(DEVICE.replace(old, new)) != first) == seen


def test_every_python_reads_the_same_text(tmp_path):
    """The normal form of a module is one in all Python versions: tables of one hold in another."""
    (tmp_path / "code.py").write_text(MODERN)
    script = "import ast, hashlib; from tuner.runtime.device_code import normal_form as n; "
    script += "print(hashlib.sha256(n(ast.parse(open('code.py').read())).encode()).hexdigest())"
    found = {}
    for version in ("3.11", "3.12", "3.13", "3.14"):
        python = shutil.which(f"python{version}")
        if python is None or subprocess.run([python, "-V"], check=False).returncode:
            continue
        done = subprocess.run(
            [python, "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}"},
            capture_output=True,
            text=True,
            check=True,
        )
        found[version] = done.stdout
    assert found
    assert len(set(found.values())) == 1, found


MODERN = '''
"""A module."""
import enum
from dataclasses import dataclass, field


class Mode(enum.Enum):
    FAST = "fast"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a block."""

    count: int
    extra: dict[str, int] = field(default_factory=dict)


def choose(value, *rest, key=None, **more):
    match value:
        case Rows(count=0) | None:
            return [f"{n:>{4}} of {key!r}" for n in range(3) if (half := n // 2)]
        case {"mode": Mode.FAST, **others}:
            return lambda x: x + len(others)
        case _:
            try:
                return {n: m for n, m in zip(rest, more)}
            except* ValueError as group:
                raise TypeError("no") from group
'''
