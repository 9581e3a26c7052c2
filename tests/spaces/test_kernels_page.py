"""The page of all kernels is what the classes and the committed results give."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.registry import BUILT_IN

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "kernels.md"


def test_the_page_and_its_pictures_are_current():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "write_kernels_page.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", [PAGE, ROOT / "README.md"])
def test_every_kernel_is_named(page):
    text = page.read_text()
    assert [name for name in BUILT_IN if f"`{name}`" not in text] == []


def test_every_row_of_the_overview_has_a_section():
    text = PAGE.read_text()
    sections = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert re.findall(r"^\| \[`\w+`\]\(#(\w+)\)", text, re.MULTILINE) == sections
    assert sections == sorted(BUILT_IN)
