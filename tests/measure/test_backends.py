"""Backends by name, and what a child process needs in its environment."""

from __future__ import annotations

import pytest

from search_spaces.errors import TunerError
from workers import backend_kinds


def test_an_unknown_kind_names_the_nearest(tmp_path):
    with pytest.raises(TunerError) as caught:
        backend_kinds.create("cuba", cache_dir=str(tmp_path))
    assert caught.value.message == "unknown backend 'cuba'; did you mean 'cuda'?"
    with pytest.raises(TunerError) as caught:
        backend_kinds.create("qqqq", cache_dir=str(tmp_path))
    assert "interpreter" in caught.value.hint


def test_an_unknown_option_is_named(tmp_path):
    with pytest.raises(TunerError) as caught:
        backend_kinds.create("cpu", cache_dir=str(tmp_path), corse="0")
    assert "corse" in caught.value.message
    assert "cpu" in caught.value.hint


@pytest.mark.parametrize("cores", ["", "zero", "0-", "-1", "999999"])
def test_bad_cores_are_refused(tmp_path, cores):
    with pytest.raises(TunerError, match="cores"):
        backend_kinds.create("cpu", cache_dir=str(tmp_path), cores=cores)


def test_the_interpreter_needs_its_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(TunerError, match="TRITON_INTERPRET"):
        backend_kinds.create("interpreter", cache_dir=str(tmp_path))


@pytest.mark.parametrize("kind", backend_kinds.names())
def test_every_kind_keeps_its_caches_in_the_given_folder(tmp_path, kind):
    variables = backend_kinds.environment(kind, str(tmp_path))
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert variables[name].startswith(str(tmp_path))
    assert (variables.get("TRITON_INTERPRET") == "1") == (kind == "interpreter")
