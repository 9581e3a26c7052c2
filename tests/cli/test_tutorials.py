"""The kernels of the tutorials are declared, built and verified as their text says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
KERNELS = {
    "autotune.md": "kernels/silu.py:silu",
    "declare.md": "kernels/row_sum.py:RowSum",
    "cpu.md": "kernels/softplus.py:Softplus",
}


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a tutorial in one language."""
    return re.findall(rf"```{language}\n(.*?)```", (TUTORIALS / page).read_text(), re.DOTALL)


@pytest.fixture
def kernel(folder):
    """Writes the kernel of a tutorial as its text says, and returns its spec."""

    def written(page: str) -> str:
        file = folder / KERNELS[page].partition(":")[0]
        file.parent.mkdir(exist_ok=True)
        file.write_text(blocks(page, "python")[0])
        assert f"`{KERNELS[page].partition(':')[0]}`" in (TUTORIALS / page).read_text()
        return KERNELS[page]

    return written


@pytest.mark.parametrize("page", KERNELS)
def test_the_declaration_passes_its_checks(tuner, kernel, page):
    shown = tuner("spaces", "show", kernel(page), "--validate")
    assert shown.code == 0, shown.err
    assert "workloads are fine" in shown.err


@pytest.mark.parametrize("page", KERNELS)
def test_the_campaign_of_a_tutorial_has_a_plan(tuner, kernel, folder, page):
    configuration = blocks(page, "yaml") or blocks("autotune.md", "yaml")
    text = re.sub(r"kernel: \S+", f"kernel: {kernel(page)}", configuration[0])
    (folder / "config.yaml").write_text(text)
    (name,) = re.findall(r"campaigns:\n  (\w+):", text)
    planned = tuner("run", name, "--dry-run", "--format", "json")
    assert planned.code == 0, planned.err
    assert json.loads(planned.out)


def test_variants_with_one_launch_and_with_two_are_correct(tuner, kernel):
    configs = re.findall(r"--config '(\{.*?\})'", (TUTORIALS / "declare.md").read_text())
    options = [part for config in configs for part in ("--config", config)]
    checked = tuner(
        "verify", kernel("declare.md"), "--target", "cuda:90", "--config", "default", *options,
        "--format", "json",
    )  # fmt: skip
    assert checked.code == 0, checked.err
    assert [row["status"] for row in json.loads(checked.out)] == ["correct"] * (1 + len(configs))


def test_the_fleet_of_the_tutorial_is_a_valid_configuration(tuner, folder):
    text = blocks("fleet.md", "yaml")[0].replace("      - kernel: my_library.kernels:rope\n", "")
    (folder / "config.yaml").write_text(text)
    checked = tuner("config", "check")
    assert checked.code == 0, checked.err


def test_the_family_of_the_tutorial_is_the_built_in_one():
    folder = "search_spaces/kernels/embedding"
    text = (TUTORIALS / "family.md").read_text()
    files = re.findall(r"^<!-- file: (\S+) -->$", text, re.MULTILINE)
    present = [f"{path.relative_to(ROOT)}" for path in ROOT.glob(f"{folder}/*.py")]
    assert sorted(files) == sorted(present)
    (test,) = blocks("family.md", "python")
    assert test in (ROOT / "tests" / "spaces" / "test_moved_elements.py").read_text()


def test_the_site_shows_the_files_that_a_page_names():
    sys.path.insert(0, f"{ROOT / 'scripts'}")
    import site_hooks

    page = SimpleNamespace(file=SimpleNamespace(src_uri="tutorials/family.md"))
    shown = site_hooks.on_page_markdown((TUTORIALS / "family.md").read_text(), page)
    kernel = (ROOT / "search_spaces" / "kernels" / "embedding" / "kernel.py").read_text()
    assert f"```python\n{kernel}```" in shown
    assert "<!-- file" not in shown
