"""The writer of all files: whole or not at all, wherever it fails."""

from __future__ import annotations

import os
import stat

import pytest

from search_spaces.atomic_file import draft_of, write_atomic, write_output
from search_spaces.errors import TunerError


@pytest.mark.parametrize("durable", [True, False])
def test_the_content_is_replaced_and_nothing_else_is_left(tmp_path, durable):
    path = tmp_path / "file.json"
    for content in (b"first, and longer", b"second"):
        write_atomic(path, content, durable=durable)
        assert path.read_bytes() == content
        assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_a_new_file_has_the_permissions_that_the_umask_allows(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_link_is_replaced_and_its_target_kept(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("kept")
    link.symlink_to(target)
    write_atomic(link, b"new")
    assert target.read_text() == "kept"
    assert (link.is_symlink(), link.read_bytes()) == (False, b"new")


def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with draft_of(path) as draft:
            draft.write_text("half of the n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_output_makes_its_folder_and_names_the_remedy(tmp_path):
    path = tmp_path / "deep" / "er" / "file"
    assert write_output(path, b"text", "free some space") == path
    assert path.read_bytes() == b"text"
    with pytest.raises(TunerError, match="below: cannot be written") as caught:
        write_output(path / "below", b"", "choose another folder")
    assert caught.value.hint == "choose another folder"
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127, "\U0001f600" * 63])
def test_the_longest_name_that_a_file_can_have(tmp_path, name):
    write_atomic(tmp_path / name, b"text")
    assert (tmp_path / name).read_bytes() == b"text"
