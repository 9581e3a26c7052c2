"""Which Triton is installed, and what the farm says of one that it does not know."""

from __future__ import annotations

import subprocess
import sys

import pytest

from search_spaces import triton_versions
from search_spaces.errors import TunerError


def test_the_version_is_read_without_an_import():
    import triton

    code = (
        "import sys; from search_spaces import triton_versions as v; "
        "print(v.format_version(v.read_installed())); assert 'triton' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert triton.__version__.startswith(done.stdout.strip() + ".")
    assert triton_versions.is_known(), "this suite runs with the versions that tuner supports"
    assert triton_versions.remark() == ""


def test_a_newer_version_is_named_in_one_line(monkeypatch):
    import triton

    monkeypatch.setattr(triton, "__version__", "3.10.1")
    assert not triton_versions.is_known()
    assert "Triton 3.10 is newer than 3.9" in triton_versions.remark()
    assert "\n" not in triton_versions.remark()


def test_an_older_version_is_refused_with_a_remedy(monkeypatch):
    import triton

    monkeypatch.setattr(triton, "__version__", "3.5.1")
    with pytest.raises(TunerError, match=r"Triton 3\.5 is older than 3\.6") as refused:
        triton_versions.remark()
    assert "install" in refused.value.hint
