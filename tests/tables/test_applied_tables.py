"""The tables that kernels of a library are launched from: imports, order, faults, processes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest
from applied_library import MODULE, NAME, key
from table_documents import document, written

import tuner
from tuner import runtime

torch = pytest.importorskip("torch")

CONFIG = {"BLOCK": 32, "num_warps": 1}


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_kernel_that_is_imported_later_is_patched_then(applied_library):
    path = applied_library.table("tuned", (key(), CONFIG))
    sys.modules.pop(NAME)
    with tuner.applied(path) as application:
        assert NAME not in sys.modules
        assert application.kernels[0].state == "not imported"
        module = importlib.import_module(NAME)
        assert application.kernels[0].state == "applied"
        assert applied_library.launch("tuned") == 32
        assert module.__spec__.loader is module.__loader__
        assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert applied_library.launch("tuned") == 64


def test_a_kernel_that_others_imported_before_is_launched_from_the_table(applied_library):
    kernel = applied_library.kernel("tuned")
    launch = kernel[lambda meta: (100 // meta["BLOCK"] + 1,)]
    x = torch.ones(100)
    with tuner.applied(applied_library.table("tuned", (key(), CONFIG))):
        kernel[lambda meta: (100 // meta["BLOCK"] + 1,)](x, torch.empty(100), 100, None, 3, EVEN=0)
        assert kernel.best_config.kwargs == {"BLOCK": 32}
    launch(x, torch.empty(100), 100, None, 3, EVEN=0)
    assert kernel.best_config.kwargs == {"BLOCK": 64}


def test_a_module_that_is_imported_again_is_patched_again(applied_library):
    with tuner.applied(applied_library.table("tuned", (key(), CONFIG))):
        old = applied_library.kernel("tuned")
        applied_library.load()
        assert applied_library.kernel("tuned") is not old
        assert applied_library.launch("tuned") == 32


def test_a_library_that_imports_tuner_half_way_is_patched(applied_library, monkeypatch):
    """TUNER_APPLY is read while the library's module lacks the kernels that follow."""
    path = applied_library.table("tuned", (key(), CONFIG))
    monkeypatch.setenv("TUNER_APPLY", str(path))
    read = "\nfrom tuner.runtime import apply_environment\nUSED = apply_environment()\n"
    applied_library.load(read + MODULE)
    import colorsys  # any import after it

    importlib.reload(colorsys)
    assert applied_library.launch("tuned") == 32


def test_the_kernels_of_others_are_not_touched(applied_library):
    """An autotuner around a patched function tunes its own configs; only the name is patched."""
    import triton

    bench = sys.modules[NAME].bench
    configs = [triton.Config({"BLOCK": block}) for block in (16, 8)]
    tune = triton.autotune(configs, key=["n"], do_bench=bench)
    around = tune(applied_library.kernel("plain"))
    x, y = torch.ones(100), torch.empty(100)
    with tuner.applied(applied_library.table("plain", (key(), CONFIG))) as application:
        around[lambda meta: (100 // meta["BLOCK"] + 1,)](x, y, 100, None, FACTOR=3, EVEN=False)
        assert around.best_config.kwargs == {"BLOCK": 16}
        assert (application.kernels[0].hits, application.kernels[0].misses) == (0, 0)
    assert torch.equal(y, x * 3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone", f"{NAME} has no gone"),
        ("Namespace.gone", f"{NAME} has no Namespace.gone"),
        ("even", "dict is no kernel under Triton's decorators"),
        ("entry", "Entry is no kernel under Triton's decorators"),
        ("body", "function is no kernel under Triton's decorators"),
    ],
)
def test_a_name_that_is_no_kernel_is_said_once(applied_library, caplog, name, reason):
    path = applied_library.table(name, (key(), CONFIG))
    for _ in range(2):
        with tuner.applied(path) as application:
            (use,) = application.kernels
            assert (use.state, use.note) == ("not applied", reason)
    assert messages(caplog) == [
        f"tuner: kernel {NAME}:{name}: {reason}; its tables are not applied"
    ]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"device": "NVIDIA H100"}, "is for NVIDIA H100, this device is NVIDIA H200"),
        ({"toolchain": {"triton": "2.0.0"}}, "was made with triton 2.0.0, this is"),
        ({"kernel_hash": "feed"}, "was made for other source code of this kernel"),
    ],
)
def test_a_stale_table_is_not_applied_and_says_so_once(applied_library, caplog, facts, reason):
    with tuner.applied(applied_library.table("tuned", (key(), CONFIG), **facts)) as application:
        assert [applied_library.launch("tuned", n) for n in (100, 100, 200)] == [64, 64, 64]
        (use,) = application.kernels
        assert use.state == "not applied"
        assert reason in use.note
        assert (use.hits, use.misses) == (0, 3)
    (message,) = messages(caplog)
    assert reason in message
    assert message.endswith("launching as the library does")


def test_of_two_devices_the_fitting_table_is_taken_without_a_word(applied_library, caplog):
    other = {"BLOCK": 16}
    applied_library.table("tuned", (key(), other), file="a", device="NVIDIA H100")
    applied_library.table("tuned", (key(), CONFIG), file="b")
    with tuner.applied(applied_library.tables) as application:
        assert applied_library.launch("tuned") == 32
        assert application.kernels[0].state == "applied"
    assert not messages(caplog)


def test_of_two_tables_an_exact_entry_beats_a_near_one_and_the_first_the_second(applied_library):
    near = applied_library.table("tuned", (key(), {"BLOCK": 16}), file="a", rule="nearest_log2")
    exact = applied_library.table("tuned", (key(110), {"BLOCK": 8}), (key(), CONFIG), file="b")
    with tuner.applied([near, exact]):
        assert applied_library.launch("tuned", 110) == 8
        assert applied_library.launch("tuned", 100) == 16
        assert applied_library.launch("tuned", 120) == 16
    with tuner.applied([exact, near]):
        assert applied_library.launch("tuned", 100) == 32


def test_the_tables_that_came_last_are_asked_first(applied_library):
    first = applied_library.table("tuned", (key(), CONFIG), (key(50), CONFIG), file="a")
    second = applied_library.table("tuned", (key(), {"BLOCK": 16}), file="b")
    with tuner.applied(first):
        with tuner.applied(second):
            assert applied_library.launch("tuned") == 16
            assert applied_library.launch("tuned", 50) == 32
        with pytest.raises(ZeroDivisionError), tuner.applied(second):
            _ = 1 / 0
        assert applied_library.launch("tuned") == 32
    outer, inner = tuner.apply(first), tuner.apply(second)
    outer.remove()
    outer.remove()
    assert applied_library.launch("tuned") == 16
    assert applied_library.launch("tuned", 50) == 64
    inner.remove()
    assert applied_library.launch("tuned") == 64


def test_applying_twice_is_undone_twice(applied_library):
    path = applied_library.table("tuned", (key(), CONFIG))
    first, second = tuner.apply(path), tuner.apply(path)
    assert applied_library.launch("tuned") == 32
    first.remove()
    assert applied_library.launch("tuned") == 32
    assert tuner.applications() == (second,)
    second.remove()
    assert applied_library.launch("tuned") == 64
    assert [application.kernels[0].hits for application in (first, second)] == [1, 2]


@pytest.mark.parametrize("content", ["", "{", b"\xff", {"schema": "tuner-table/9"}, None])
def test_a_bad_file_is_said_once_and_changes_nothing(applied_library, caplog, content):
    path = applied_library.tables / "bad.json"
    if content is not None:
        written(path, content)
    for _ in range(2):
        with tuner.applied(path) as application:
            assert application.kernels == ()
    assert applied_library.launch("tuned") == 64
    (message,) = messages(caplog)
    assert str(path) in message


def test_a_table_for_a_decorator_of_ours_is_refused_with_the_remedy(applied_library, caplog):
    path = written(applied_library.tables / "scale.json", document([(key(), CONFIG)]))
    with tuner.applied(path) as application:
        assert application.kernels == ()
    with tuner.applied(applied_library.tables):
        pass
    refused, empty = messages(caplog)
    assert 'apply({"module:object": path})' in refused
    assert "has no table that names the module:object of its kernel" in empty


def test_a_table_may_name_the_place_of_its_kernel_in_its_provenance(applied_library):
    """As tables of adopted and captured kernels do, which have names of their own."""
    path = applied_library.table("tuned", (key(), CONFIG))
    content = json.loads(path.read_text())
    content["provenance"]["place"] = content["kernel"]["name"]
    content["kernel"]["name"] = "scale"
    written(path, content)
    for tables in (path, applied_library.tables):
        with tuner.applied(tables):
            assert applied_library.launch("tuned") == 32


def test_a_kernel_may_be_named_by_the_file_of_its_module(applied_library):
    """As capture names kernels of the running script; the module must be imported already."""
    path = applied_library.table("tuned", (key(), CONFIG))
    place = f"{applied_library.folder / f'{NAME}.py'}:tuned"
    with tuner.applied({place: path}) as application:
        assert applied_library.launch("tuned") == 32
        assert application.kernels[0].kernel == place
    assert applied_library.launch("tuned") == 64


def test_one_kernel_under_two_names_has_the_tables_of_both(applied_library):
    module = sys.modules[NAME]
    module.alias = module.tuned
    first = applied_library.table("tuned", (key(), CONFIG))
    second = applied_library.table("alias", (key(50), CONFIG))
    with tuner.applied([first, second]):
        assert applied_library.launch("tuned") == applied_library.launch("tuned", 50) == 32
    assert applied_library.launch("tuned") == 64
    assert type(module.tuned).__name__ == "Autotuner"


def test_the_report_lists_kernels_and_launches(applied_library):
    applied_library.table("tuned", (key(), CONFIG))
    applied_library.table("gone", (key(), CONFIG))
    with tuner.applied(applied_library.tables) as application:
        applied_library.launch("tuned")
        applied_library.launch("tuned", 200)
    lines = str(application).splitlines()
    assert lines[0].split() == ["kernel", "state", "hits", "misses", "note"]
    assert lines[1].split()[1:5] == ["not", "applied", "0", "0"]
    assert lines[2].split() == [f"{NAME}:tuned", "applied", "1", "1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_launches_from_the_tables(applied_library):
    with tuner.applied(applied_library.table("tuned", (key(), CONFIG))) as application:
        with runtime._applications._REGISTRY.lock:  # as another thread may, at the fork
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    application.remove()
                    again = tuner.apply(applied_library.tables)
                    status = 0 if applied_library.launch("tuned") == 32 else 2
                    again.remove()
                finally:
                    os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert application.kernels[0].hits == 0


def python(folder, *arguments, **environment):
    """A Python process in the folder of a library: its exit code and streams."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
    )


def run(folder, code, **environment):
    """The output of a program in a process of its own."""
    done = python(folder, written(folder / "program.py", code), **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LAUNCH = f"""
import torch
import {NAME} as library

x, y = torch.ones(100), torch.empty(100)
library.tuned[lambda meta: (100 // meta["BLOCK"] + 1,)](x, y, 100, None, FACTOR=3, EVEN=False)
print(library.tuned.best_config.kwargs["BLOCK"])
"""


def test_the_environment_variable_applies_when_tuner_is_imported(applied_library):
    path = applied_library.table("tuned", (key(), CONFIG))
    variable = f"{applied_library.folder / 'none.json'}{os.pathsep}{path}"
    code = f"import tuner.runtime\n{LAUNCH}"
    assert run(applied_library.folder, code, TUNER_APPLY=variable) == "32"


def test_workers_of_the_farm_ignore_the_variable(applied_library):
    """What they measure is not replaced by what was measured before."""
    path = applied_library.table("tuned", (key(), CONFIG))
    code = "import tuner\nprint(len(tuner.applications()))"
    assert run(applied_library.folder, code, TUNER_APPLY=str(path)) == "1"
    environment = {"TUNER_APPLY": str(path), "TUNER_IN_WORKER": "1"}
    assert run(applied_library.folder, code, **environment) == "0"
    assert run(applied_library.folder, code, TUNER_APPLY="") == "0"


def test_a_script_that_uses_tables_keeps_its_own_modules(applied_library):
    """`tuner.apply` reserves none of the farm's import names."""
    written(applied_library.folder / "workers.py", "MINE = 1\n")
    code = "import tuner, workers\ntuner.apply([])\nimport workers\nprint(workers.MINE)\n"
    assert run(applied_library.folder, code) == "1"


def command(folder, *arguments):
    """Run `tuner apply` in a folder."""
    return python(folder, "-m", "tuner", "apply", *arguments)


def test_the_command_applies_tables_in_every_python_process(applied_library):
    """Also where the user has a `sitecustomize`; the exit code is the program's."""
    folder = applied_library.folder
    applied_library.table("tuned", (key(), CONFIG))
    written(folder / "sitecustomize.py", "import sys\nsys.MINE = 5\n")
    written(folder / "launch.py", LAUNCH)
    written(
        folder / "start.py",
        "import subprocess, sys\nsubprocess.run([sys.executable, 'launch.py'], check=True)\n"
        "sys.exit(sys.MINE)\n",
    )
    done = command(folder, "--report", "--", "start.py")
    assert done.stdout.split() == ["32"], done.stderr
    assert done.returncode == 5
    (line,) = [line for line in done.stderr.splitlines() if NAME in line]
    assert line.split() == [f"{NAME}:tuned", "applied", "1", "0"]


def test_a_program_may_be_kept_from_tuning(applied_library):
    applied_library.table("tuned", (key(7), CONFIG))
    code = f"{LAUNCH}print(len(library.BENCHED))"
    written(applied_library.folder / "launch.py", code)
    found = [command(applied_library.folder, *more, "--", "launch.py") for more in
             ([], ["--miss", "default"], ["--miss", "tune"])]  # fmt: skip
    assert [done.stdout.split() for done in found] == [["64", "2"], ["64", "0"], ["64", "2"]]
    assert "launching the default config" in found[1].stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--", "start.py"], "tables: there is no such table or folder"),
        (["-t", ".", "--miss", "never", "--", "start.py"], "--miss is 'never'"),
        (["-t", ".", "--", "no_such_program"], "no_such_program: there is no such program"),
    ],
)
def test_the_command_refuses_what_is_not_there(applied_library, arguments, error):
    done = command(applied_library.folder, *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"error: {error}"
    assert done.stderr.splitlines()[1].startswith("hint: ")
