"""A kernel library with a table in its folder, for tests of launches through the decorator."""

from __future__ import annotations

import gc
import importlib.util
import sys

import pytest
from table_documents import document, written

from tuner import runtime

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

# A jitted function needs a source file, and is interpreted if it is decorated while
# TRITON_INTERPRET is set; so every test imports a kernel module of its own.
#: What each begins with.
HEAD = '''
import functools

import triton
import triton.language as tl

BENCHED = []
HOOKED = []


def bench(call, quantiles):
    """A stand-in for Triton's timer, which needs a device: it counts, and prefers the first."""
    call()
    BENCHED.append(1)
    return [float(len(BENCHED))] * 3


def hook(args):
    HOOKED.append(args["BLOCK"])


'''
MODULE = """
from tuner.runtime import autotune


def prune(configs, args, **kwargs):
    return [config for config in configs if config.kwargs["BLOCK"] <= args["n"]]


@autotune(
    [triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=4)],
    key=["n"],
    do_bench=bench,
    OPTIONS
)
@triton.jit
def scale(x_ptr, y_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * FACTOR, mask=at < n)
"""
#: The same with a block of 256, and a hook, as the second config.
WITH_HOOK = MODULE.replace(
    'triton.Config({"BLOCK": 128}, num_warps=4)', "triton.Config({'BLOCK': 256}, pre_hook=hook)"
)


class Library:
    """A kernel library of one module, in a folder with its tables."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.tables = folder / "tables"
        self.module = None

    def load(self, options: str = "", source: str = MODULE):
        path = written(self.folder / "library.py", HEAD + source.replace("OPTIONS", options))
        spec = importlib.util.spec_from_file_location("scale_library", path)
        self.module = importlib.util.module_from_spec(spec)
        sys.modules["scale_library"] = self.module
        spec.loader.exec_module(self.module)
        return self.module.scale

    def table(self, *entries, **facts):
        """Write the library's table; its digest is the loaded kernel's."""
        facts.setdefault("toolchain", {"triton": triton.__version__})
        facts.setdefault("kernel_hash", runtime.kernel_hash(self.module.scale))
        content = document(entries, **facts)
        return written(self.tables / "scale@NVIDIA_H200.json", content)

    def launch(self, n=100, dtype=torch.float32, by_name=False):
        """Launch, check the result, and give the block sizes launched."""
        x = torch.arange(n).to(dtype)
        y = torch.empty_like(x)
        blocks = []

        def grid(meta):
            blocks.append(meta["BLOCK"])
            return (triton.cdiv(n, meta["BLOCK"]),)

        if by_name:
            self.module.scale[grid](x_ptr=x, y_ptr=y, n=n, FACTOR=3)
        else:
            self.module.scale[grid](x, y, n, FACTOR=3)
        assert torch.equal(y, x * 3)
        return blocks


def adopted(kernel, workload, **facts):
    """The library's kernel as `adopt` declares it."""
    from search_spaces.adoption.adopt import adopt
    from search_spaces.kernel import Cost
    from search_spaces.records import TensorSpec

    def specs(name):
        return lambda w: {name: TensorSpec((w.get("n", 64),), w.get("dtype", "float16"))}

    return adopt(
        kernel,
        name="scale",
        workloads=[workload],
        inputs=specs("x"),
        outputs=specs("y"),
        arguments=lambda w, t: {
            "x_ptr": t["x"], "y_ptr": t["y"], "n": w.get("n", 64), "FACTOR": 3
        },
        grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),),
        reference=lambda w, inputs: inputs["x"] * 3,
        cost=lambda w: Cost(1.0, 1.0),
        **facts,
    )  # fmt: skip


def count_tensors():
    """Tensors that something holds."""
    gc.collect()
    return sum(type(each) is torch.Tensor for each in gc.get_objects())


def key(n=100, dtype="float32"):
    return {"n": n, "dtype": dtype}


BIG = {"BLOCK": 128, "num_warps": 4}
