"""Installed packages in any folder are told from the user's own code in the same folder."""

from __future__ import annotations

import pytest
from identity_pairs import Folder

from search_spaces import identity
from search_spaces.source_positions import is_own
from search_spaces.source_reach import reach_of

COUNT = 300
KERNEL = """
import triton, triton.language as tl
from . import module_0
@triton.jit
def scale(x): tl.store(x, 2)
"""
USER = "import helper\nfrom manylib.kernel import scale"
NAMED = {"manylib/__init__", "manylib/kernel"}
ALL = NAMED | {f"manylib/module_{at}" for at in range(COUNT)}
#: How the package came into its folder: where it is, what tells of it, and what the walk reaches.
LAYOUTS = {
    "pip": ("lib/site-packages", "manylib-1.0.dist-info/RECORD", NAMED),
    "Debian": ("dist-packages", "", NAMED),
    "pip --target": ("lib", "manylib-1.0.dist-info/RECORD", NAMED),
    "pip --target .": (".", "manylib-1.0.dist-info/RECORD", NAMED),
    "a module beside installed ones": (".", "other-1.0.dist-info/RECORD", ALL),
    "pip --editable": (".", "manylib.egg-info/SOURCES.txt", ALL),
    "setup.py dist_info": ("src", "manylib-1.0.dist-info/METADATA", ALL),
}


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_package(folder, facts):
    """A package whose modules all reach each other."""
    modules = {
        f"manylib/module_{at}.py": f"from manylib import module_{(at + 1) % COUNT}\n"
        for at in range(COUNT)
    }
    start = {"manylib/__init__.py": "from . import module_0", "manylib/kernel.py": KERNEL}
    write(folder, {**start, **modules})
    if facts:
        name = facts.partition("-")[0]
        write(folder, {facts: f"../../bin/{name},,\n{name}/__init__.py,sha256=0,0\n{facts},,\n"})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_installed_packages_the_walk_reaches_what_own_files_name(tmp_path, monkeypatch, layout):
    place, facts, reached = LAYOUTS[layout]
    write_package(tmp_path / place, facts)
    write(tmp_path, {"user.py": USER, "helper.py": "import second", "second.py": ""})
    for folder in {tmp_path / place, tmp_path}:
        monkeypatch.syspath_prepend(folder)
    found = reach_of(tmp_path / "user.py", "user").modules
    own = {f"{tmp_path / name}.py" for name in ("user", "helper", "second")}
    assert set(found) == own | {f"{(tmp_path / place / name).resolve()}.py" for name in reached}


def test_a_kernel_of_an_installed_package_reaches_itself_alone(tmp_path, monkeypatch):
    write_package(tmp_path, "manylib-1.0.dist-info/RECORD")
    monkeypatch.syspath_prepend(tmp_path)
    kernel = tmp_path / "manylib" / "kernel.py"
    assert set(reach_of(kernel, "manylib.kernel").modules) == {f"{kernel}"}


def test_torch_is_nobodys_own_code_wherever_it_is_installed(tmp_path):
    files = ("torch/nn.py", "torch/copies/rope.py", "rope.py", "user.py")
    write(tmp_path, dict.fromkeys(files, ""))
    for name, folder in [("torch", "."), ("rope", "."), ("rope", "torch/copies")]:
        write(tmp_path / folder, {f"{name}-1.0.dist-info/RECORD": f"{name}.py,,\n{name}/a.py,,\n"})
    assert [is_own(f"{tmp_path / file}") for file in files] == [False, False, True, True]


def test_an_identity_has_the_version_of_what_is_beside_own_files_and_the_text_of_these(tmp_path):
    folder = Folder(tmp_path)
    facts = "lib_NAME-1.0.dist-info/"
    folder.write(f"{facts}RECORD", folder.fill("lib_NAME.py,,\n"))
    found = []
    for version, installed, own in [(1, 1, 1), (1, 2, 1), (1, 2, 2), (2, 2, 2)]:
        metadata = f"Metadata-Version: 2.1\nName: lib_NAME\nVersion: {version}\n"
        folder.write(f"{facts}METADATA", folder.fill(metadata))
        folder.write("lib_NAME.py", f"Z = {installed}")
        folder.write("own_NAME.py", f"Z = {own}")
        identity._version.cache_clear()
        identity._is_library.cache_clear()
        found.append(folder.identity("import lib_NAME, own_NAME\ndef scale(): return own_NAME.Z"))
    folder.close()
    assert found[0] == found[1]
    assert len(set(found)) == 3
