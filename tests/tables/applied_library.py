"""A library that imports nothing of ours, with kernels under all stackings of decorators."""

from __future__ import annotations

import importlib
import sys

import pytest
from table_documents import document, written
from table_library import HEAD

from tuner import runtime

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

NAME = "applied_library_kernels"
MODULE = '''
def configs(**options):
    return [triton.Config({"BLOCK": block}, **options) for block in (64, 128)]


def body(x_ptr, y_ptr, n, bias_ptr, FACTOR: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + at)
    else:
        x = tl.load(x_ptr + at, mask=at < n)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * FACTOR, mask=at < n)


even = {"EVEN": lambda args: args["n"] % args["BLOCK"] == 0}
factor = {"FACTOR": lambda args: 3}
plain = triton.jit(body)
computed = triton.heuristics({"BLOCK": lambda args: 64, **even})(triton.jit(body))
tuned = triton.autotune(configs(), key=["n"], do_bench=bench)(triton.jit(body))
inside = triton.autotune(configs(), key=["n"], do_bench=bench)(
    triton.heuristics(even)(triton.jit(body))
)
around = triton.heuristics(factor)(
    triton.autotune(configs(), key=["n"], do_bench=bench)(
        triton.heuristics(even)(triton.jit(body))
    )
)
hooked = triton.autotune(configs(pre_hook=hook), key=["n"], do_bench=bench)(triton.jit(body))


class Namespace:
    plain = triton.jit(body)


class Entry:
    """A launcher of the library's own around a kernel, as FlagGems has."""

    def __init__(self, fn):
        self.fn = fn

    def __getitem__(self, grid):
        return self.fn[grid]


entry = Entry(plain)
'''
#: The arguments that the caller of each kernel passes by name.
KEYWORDS = {
    "plain": {"FACTOR": 3, "BLOCK": 64, "EVEN": False, "num_warps": 4},
    "Namespace.plain": {"FACTOR": 3, "BLOCK": 64, "EVEN": False},
    "computed": {"FACTOR": 3},
    "tuned": {"FACTOR": 3, "EVEN": False},
    "inside": {"FACTOR": 3},
    "around": {},
    "hooked": {"FACTOR": 3, "EVEN": False},
    "ours": {"FACTOR": 3, "EVEN": False},
}
OURS = """
from tuner.runtime import autotune

ours = autotune(configs(), key=["n"], do_bench=bench)(triton.jit(body))
"""


class AppliedLibrary:
    """The library in a folder of the import path, with tables in another folder."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.tables = folder / "tables"

    def load(self, source: str = MODULE):
        written(self.folder / f"{NAME}.py", HEAD + source)
        sys.modules.pop(NAME, None)
        importlib.invalidate_caches()
        return importlib.import_module(NAME)

    def kernel(self, name):
        found = sys.modules[NAME]
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def table(self, name, *entries, file="", **facts):
        """Write a table of one kernel, keyed exactly; the digest is the library's."""
        facts.setdefault("toolchain", {"triton": triton.__version__})
        facts.setdefault("kernel_hash", hash_of_body())
        facts.setdefault("rule", "exact")
        content = document(entries, kernel=f"{NAME}:{name}", **facts)
        return written(self.tables / f"{file or name}.json", content)

    def launch(self, name, n=100, *, dtype=torch.float32, grid=None, bias=None, **more):
        """Launch, check the result, and give the block size of the launch."""
        x = torch.arange(n).to(dtype)
        y = torch.empty_like(x)
        blocks = []

        def by_block(meta):
            blocks.append(meta["BLOCK"])
            return (triton.cdiv(n, meta["BLOCK"]),)

        self.kernel(name)[grid or by_block](x, y, n, bias, **{**KEYWORDS[name], **more})
        assert torch.equal(y, (x if bias is None else x + bias) * 3)
        return blocks[-1] if blocks else None


def hash_of_body() -> str:
    """The digest of the library's kernels, which share their function."""
    return runtime.kernel_hash(sys.modules[NAME].plain)


def key(n=100, dtype="float32", **more):
    return {"n": n, "dtype": dtype, **more}
