"""Bundles are built without a GPU. In fresh processes, whose driver launches nothing, they have all
that launches look up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from spaces_forks import Forks

from search_spaces.errors import TunerError
from tuner.bundling.range_sizes import list_sizes
from tuner.bundling.writing import write_wheel
from tuner.cli import invoke
from tuner.runtime import Span

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ALL = ("plain", "tuned", "decorated", "softmax")


PROCESSES = HERE / "bundle_processes.py"
_FORKS = Forks(
    f"{HERE / 'forked_processes.py'}",
    PYTHONPATH=os.pathsep.join([f"{ROOT}", f"{HERE.with_name('spaces')}"]),
)


def make_environment(folder: Path, **variables: object) -> dict[str, str]:
    """A new home, empty caches and no C compiler in its PATH."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    kept = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "HOME": f"{home}", "PATH": "/nonexistent",
        "PYTHONPATH": os.pathsep.join([f"{ROOT}", f"{HERE}", *filter(None, sys.path)]),
        "TUNER_DEVICE": "NVIDIA H200", **{name: f"{value}" for name, value in variables.items()},
    }  # fmt: skip


def start(
    folder: Path, *arguments: object, **variables: object
) -> subprocess.CompletedProcess[str]:
    """A process with such an environment."""
    command = [sys.executable, *map(str, arguments)]
    environment = make_environment(folder, **variables)
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def launch(folder: Path, *names: str, target: str = "cuda:90", **variables: object) -> dict:
    """What launches find, in a process that has imported torch and nothing else."""
    request = [f"{folder}", [target, *names], make_environment(folder, **variables)]
    found, said = map(json.loads, _FORKS.run(json.dumps(request)).splitlines())
    return {**found, "said": said.splitlines()}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with captured calls, tables, a record, and a bundle of all of them."""
    folder = tmp_path_factory.mktemp("made")
    done = start(
        folder, PROCESSES, "record", folder, TRITON_INTERPRET="1", TUNER_TABLES=folder / "tables"
    )
    assert done.returncode == 0, done.stderr
    command = ["-m", "tuner", "bundle", "calls.json", "tables", "record.json", "--for", "cuda:90"]
    done = start(folder, *command, "--processes", "2", PATH=os.environ["PATH"])
    assert done.returncode == 0, done.stderr
    assert "kernels and 3 tables" in done.stdout
    return folder


@pytest.fixture
def bundle(made, tmp_path) -> Path:
    """A copy, so at another path."""
    return shutil.copytree(made / "bundle", tmp_path / "moved")


def test_nothing_compiles_and_nothing_is_tuned(bundle, tmp_path):
    for path in [*bundle.rglob("*"), bundle]:
        path.chmod(path.stat().st_mode & ~0o222)
    done = start(tmp_path, PROCESSES, "cuda:90", *ALL, TUNER_BUNDLE=bundle)
    for path in [bundle, *bundle.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "looked_up": 4, "compiled": [], "failed": {}, "tuned": 0,
        "blocks": {"tuned": 128, "decorated": 256},
    }  # fmt: skip


def test_a_bundle_has_no_path_of_the_machine_and_the_host_modules(bundle, made):
    manifest = json.loads((bundle / "manifest.json").read_text())
    names = {name.partition(".")[0] for files in manifest["modules"].values() for name in files}
    assert "cuda_utils" in names
    for file in bundle.rglob("*"):
        assert file.is_dir() or f"{made}".encode() not in file.read_bytes()


def test_keys_of_host_modules_do_not_depend_on_the_programs_of_a_machine(bundle, tmp_path):
    """Triton asks the program `file`, which containers lack, what Python is."""
    code = "import tuner; from triton.runtime import build; print(build.platform_key())"
    paths = ("/nonexistent", os.environ["PATH"])
    keys = [start(tmp_path, "-c", code, TUNER_BUNDLE=bundle, PATH=path).stdout for path in paths]
    assert keys[0] == keys[1] != ""


def test_a_zip_file_is_a_bundle_too(bundle, tmp_path):
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for file in bundle.rglob("*"):
            archive.write(file, file.relative_to(bundle))
    assert launch(tmp_path, *ALL, TUNER_BUNDLE=packed)["compiled"] == []


def test_a_wheel_of_it_is_installed_by_pip(bundle, tmp_path):
    wheel, there = write_wheel(bundle, "1.2"), tmp_path / "site"
    words = ["pip", "install", "-q", "--no-deps", "--no-index", "--target", there, wheel]
    subprocess.run([sys.executable, "-m", *words], check=True)
    assert (there / "moved-1.2.dist-info").is_dir()
    assert launch(tmp_path, *ALL, TUNER_BUNDLE=there / "moved")["compiled"] == []
    with pytest.raises(TunerError, match="not a version"):
        write_wheel(bundle, "next/one")


def test_what_a_process_has_compiled_goes_into_a_bundle(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    assert len(launch(before, "plain", "decorated")["compiled"]) == 2
    cache = before / "home" / ".triton" / "cache"
    command = ["-m", "tuner", "bundle", cache, "--for", "cuda:90"]
    assert "bundle: 2 kernels and 0 tables" in start(before, *command).stdout
    found = launch(after, "plain", "decorated", TUNER_BUNDLE=before / "bundle")
    assert (found["looked_up"], found["compiled"]) == (2, [])
    refused = start(before, *command[:-1], "cuda:80")
    assert (refused.returncode, "nothing to compile for cuda:80" in refused.stderr) == (2, True)


def test_all_sizes_of_a_range_are_compiled(bundle, tmp_path):
    sizes = [f"softmax:{rows}" for rows in range(1, 101)]
    found = launch(tmp_path, *sizes, TUNER_BUNDLE=bundle)
    assert (found["looked_up"], found["compiled"]) == (100, [])


def edit(bundle: Path, **fields: object) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest |= {name: change(manifest[name]) for name, change in fields.items()}
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def flip(path: Path, at: int = 9) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 255
    path.write_bytes(data)


DAMAGES = {
    "there is none": (shutil.rmtree, "cannot be read"),
    "no manifest": (lambda b: (b / "manifest.json").unlink(), "cannot be read"),
    "half a manifest": (lambda b: os.truncate(b / "manifest.json", 99), "is damaged"),
    "half a pack": (lambda b: os.truncate(b / "kernels.pack", 99), "is damaged"),
    "a table was edited": (lambda b: flip(next(b.glob("tables/softmax@*"))), "another digest"),
    "a table was added": (lambda b: (b / "tables" / "x@H200.json").write_text("{}"), "is damaged"),
    "newer": (lambda b: edit(b, schema=lambda s: s + 1), "of schema 2, this tuner reads 1"),
    "Python": (
        lambda b: edit(b, made_with=lambda m: {**m, "Python": ".cpython-27.so"}), "with Python",
    ),
    "Triton": (lambda b: edit(b, made_with=lambda m: {**m, "Triton": "2.0"}), "with Triton 2.0"),
    "torch": (lambda b: edit(b, made_with=lambda m: {**m, "torch": "1.0"}), "with torch 1.0"),
    "another build": (lambda b: edit(b, triton_digest=lambda t: "ab"), "another build"),
    "assembler": (
        lambda b: edit(b, targets=lambda t: {"cuda:90": "release 1.0, V1.0.1"}), "V1.0.1",
    ),
    "outside": (lambda b: edit(b, kernels=lambda k: {"../..": {}}), "is damaged"),
    "not a dict": (lambda b: edit(b, kernels=lambda k: [1]), "is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_is_one_line_and_kernels_compile(name, bundle, tmp_path):
    damage, text = DAMAGES[name]
    damage(bundle)
    found = launch(tmp_path, "plain", "softmax", TUNER_BUNDLE=bundle)
    assert len(found["compiled"]) == 2
    (line,) = found["said"]
    assert text in line
    assert line.startswith(f"tuner: bundle {bundle}")
    assert line.endswith("kernels compile as usual")


def test_a_damaged_kernel_is_compiled_and_the_others_are_not(bundle, tmp_path):
    kernels = json.loads((bundle / "manifest.json").read_text())["kernels"].values()
    (place,) = (files["plain.cubin"] for files in kernels if "plain.cubin" in files)
    flip(bundle / "kernels.pack", place[0] + place[1] // 2)
    found = launch(tmp_path, *ALL, TUNER_BUNDLE=bundle)
    assert found["compiled"] == ["plain"]
    assert len(found["said"]) == 1


def test_another_card_is_named(bundle, tmp_path):
    found = launch(tmp_path, "plain", "softmax", target="cuda:80", TUNER_BUNDLE=bundle)
    assert len(found["compiled"]) == 2
    (line,) = found["said"]
    assert "is for cuda:90, this card is cuda:80" in line


def test_never_runs_the_next_best_config_that_is_compiled(bundle, made, tmp_path):
    given = {"TUNER_BUNDLE": bundle, "TUNER_COMPILE": "never", "TUNER_APPLY": made / "other"}
    found = launch(tmp_path, "tuned", "tuned", "plain", **given)
    assert (found["compiled"], found["failed"], found["tuned"]) == ([], {}, 0)
    assert found["blocks"]["tuned"] in (64, 128)
    (line,) = found["said"]
    assert "'BLOCK': 256" in line
    assert "is not compiled" in line


def test_never_raises_where_nothing_is_compiled_and_leaves_other_kernels_alone(bundle, tmp_path):
    given = {"TUNER_BUNDLE": bundle, "TUNER_COMPILE": "never"}
    found = launch(tmp_path, "tuned:4097", "decorated:4097", "plain:4097", **given)
    assert found["failed"].keys() == {"tuned:4097", "decorated:4097"}
    assert found["compiled"] == ["plain"]


def specialisations(size: int) -> set[object]:
    """What Triton and kernels make of a size: of it, of multiples, of numbers of blocks."""
    derived = (size, size * 3, size * 64, -(-size // 128), -(-size // 16))
    kinds = [(v == 1, v % 16 == 0, v >= 2**31) for v in derived]
    return {*zip(derived and range(5), kinds, strict=True), (size - 1).bit_length()}


@pytest.mark.parametrize("span", [Span(1, 5000), Span(100, 3000), Span(16, 4096, 16), Span(7, 7)])
def test_sizes_of_a_range_reach_every_specialisation(span):
    every = [size for size in range(span.low, span.high + 1) if size in span]
    chosen = list_sizes(span)
    assert set(chosen) <= set(every)
    assert set().union(*map(specialisations, chosen)) == set().union(*map(specialisations, every))
    assert len(chosen) < 100


def test_a_builder_needs_a_c_compiler(made, tmp_path):
    done = start(tmp_path, "-m", "tuner", "bundle", made / "record.json", "--for", "cuda:90")
    assert done.returncode == 2
    assert "there is no C compiler here" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.json", "--for", "cuda:90"], "nowhere.json"),
        (["softmax", "--for", "coda:90"], "bundles are for NVIDIA's GPUs alone"),
        (["softmax", "--for", "cuda:x"], "cuda:x"),
        (["empty", "--for", "cuda:90"], "nothing to compile for cuda:90"),
        (["bad.json", "--for", "cuda:90"], "bad.json"),
        (["record.json", "--for", "cuda:90", "-o", "empty/.."], "holds other files"),
    ],
)
def test_bad_input_is_one_line(arguments, said, made, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text("[")
    shutil.copy(made / "record.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert invoke(["bundle", "--quiet", *arguments]) == 2
    error, hint = capsys.readouterr().err.strip().splitlines()[-2:]
    assert said in error
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
