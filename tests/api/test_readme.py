"""The README is short, its Python examples run, and shells complete the names that they use."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tuner

ROOT = Path(__file__).parents[2]


def examples(page: str) -> list[str]:
    """The blocks of Python in a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


FIRST, OPERATORS, PATCHED, CAPTURED, DECORATED = examples("README.md")
_, SEVERAL, *_ = examples("docs/python.md")


def run(code: str, folder: Path) -> str:
    """What a program of that code prints; the code is a file, since workers import kernels."""
    (folder / "example.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_short_and_every_link_leads_to_a_file():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 900
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_documentation_is_short():
    """All pages but that of the kernels, which is generated."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "kernels.md"]
    assert len(pages) > 40
    assert sum(len(page.read_text().split()) for page in pages) <= 50_000


def test_operators_are_called(tmp_path):
    shown = run(OPERATORS, tmp_path)
    assert "rms_norm" in shown
    assert "add_rms_norm" in shown


def test_a_model_is_patched(tmp_path):
    shown = run(PATCHED, tmp_path)
    assert all(name in shown for name in ("LlamaRMSNorm", "LlamaMLP", "rotary", "add_rms_norm"))


@pytest.mark.slow
def test_the_first_example_runs_on_a_processor(tmp_path):
    small = (FIRST + SEVERAL).replace('"softmax"', '"cpu_softmax"').replace("8192", "64")
    quick = "budget=2, settings={'measure': {'baselines': ['eager']}}"
    small = small.replace("bfloat16", "float32").replace('budget="auto"', quick)
    small = small.replace("(1024, 4096)])", f"(100, 200)], {quick})")
    lines = [f"    {line}" if line else "" for line in small.splitlines()]
    # In a program that workers import, a call of tune stands under this line.
    code = "\n".join(["if __name__ == '__main__':", *lines, "    print(len(results), 'results')"])
    shown = run(code, tmp_path)
    assert "cpu_softmax" in shown
    assert "2 results" in shown
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.gpu
def test_the_first_example_runs_on_a_gpu(tmp_path):
    lines = [f"    {line}" if line else "" for line in FIRST.splitlines()]
    shown = run("\n".join(["if __name__ == '__main__':", *lines]), tmp_path)
    assert "softmax" in shown
    assert (tmp_path / "report.html").exists()


@pytest.mark.gpu
def test_a_captured_call_is_tuned(tmp_path):
    pytest.importorskip("liger_kernel")
    lines = [f"    {line}" for line in CAPTURED.replace('"auto"', "6").splitlines()]
    head = """import torch, tuner
if __name__ == '__main__':
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    x = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
    w = torch.ones(1024, device="cuda", dtype=torch.bfloat16)
    liger_rms_norm = lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6)
"""
    shown = run(head + "\n".join([*lines, "    print(result.verdict)"]), tmp_path)
    assert shown.strip()


def test_a_decorator_is_replaced_as_the_readme_says(tmp_path):
    code = DECORATED.replace("configs=[...]", 'configs=[triton.Config({"BLOCK": 64})]')
    code = code.replace("def my_kernel(...): ...", KERNEL)
    assert run(f"import triton\nimport triton.language as tl\n{code}", tmp_path) == "my_kernel\n"


KERNEL = """def my_kernel(x, n_cols, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0, tl.arange(0, BLOCK) < n_cols)

print(my_kernel.fn.__name__)
"""


# -- names -----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def complete():
    """What IPython offers for a text, as whole names."""
    from IPython.core.completer import provisionalcompleter
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.user_ns["tuner"] = tuner

    def offered(text: str) -> set[str]:
        with provisionalcompleter():
            found = list(shell.Completer.completions(text, len(text)))
        return {one.text.rpartition(".")[2] for one in found}

    return offered


@pytest.mark.parametrize(
    ("typed", "name"),
    [("tu", "tune"), ("Di", "Dims"), ("sess", "session"), ("KernelE", "KernelError")],
)
def test_a_shell_completes_public_names(complete, typed, name):
    assert name in complete(f"tuner.{typed}")


def test_a_shell_offers_what_is_public_and_nothing_else(complete):
    public = {name for name in tuner.__all__ if not name.startswith("_")}
    assert complete("tuner.") - {"runtime"} == public


def test_help_of_tune_lists_its_keywords():
    text = inspect.getdoc(tuner.tune) or ""
    parameters = inspect.signature(tuner.tune).parameters
    assert {"kernel", "workload", "budget", "seed"} <= set(parameters)
    assert "budget" in text
