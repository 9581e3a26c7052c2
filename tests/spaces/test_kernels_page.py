"""The page of all kernels is what the classes and the committed results give."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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


def test_every_kernel_is_in_one_group():
    rows = re.findall(r"^\| [\w -]+ \| (\[`.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(re.findall(r"\[`(\w+)`\]\(#\1\)", " ".join(rows))) == sorted(BUILT_IN)


def test_every_row_of_the_overview_has_a_section():
    text = PAGE.read_text()
    sections = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert re.findall(r"^\| \[`\w+`\]\(#(\w+)\)", text, re.MULTILINE) == sections
    assert sections == sorted(BUILT_IN)
