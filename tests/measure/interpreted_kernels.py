# mypy: ignore-errors
"""Kernels that Triton compiles, but its interpreter runs only with extensions, or never."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.params import Choice
from search_spaces.records import TensorSpec, Workload
from search_spaces.space import SearchSpace

N = 16


@triton.jit
def tile(A, B, C, N: tl.constexpr, WAY: tl.constexpr):  # noqa: C901
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    a = tl.load(A + at, mask=at < N * N - 1, other=1.5)
    b = tl.load(B + at)
    if WAY == "dot":
        c = tl.dot(a, b)
    elif WAY == "arithmetic":
        c = (tl.full((N, N), 2.5, a.dtype) + b) / a - tl.maximum(a, b) * tl.where(a > b, a, b)
    elif WAY == "reductions":
        c = tl.sum(a * b, 1)[:, None] + tl.cumsum(b, 1) + tl.max(a, 0)[None, :]
    elif WAY == "counter":
        c = tl.zeros((N, N), tl.float32)
        for j in range(3):
            c += a * j.to(tl.float32)
    elif WAY == "float8":
        c = tl.dot((a * 300).to(tl.float8e4nv), b.to(tl.float8e4nv))
    elif WAY == "overflow":
        # Integers wrap around on devices: 2**31 - 1 + 2 is -2**31 + 1.
        low = i[:, None] * 0 + (i[None, :] * 0 + 2147483647) + 2
        c = tl.where(low == -2147483647, a, b)
    elif WAY == "fma":
        c = tl.fma(a, b, -(a * b))
    elif WAY == "libdevice":
        c = libdevice.tanh(a.to(tl.float32))
    elif WAY == "cuda libdevice":
        c = cuda_libdevice.tanh(a.to(tl.float32))
    elif WAY == "assembly":
        c = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [b], tl.float32, True, 1)
    elif WAY == "wrong":
        c = tl.dot(a, b) + 1
    elif WAY == "atomic":
        tl.atomic_add(C + at, a)
        c = a
    tl.store(C + at, c.to(C.dtype.element_ty))


class Interpreted(Kernel):
    """One tile of 16 x 16; `way` selects the operation."""

    name = "interpreted"

    def workloads(self):
        return [Workload.of(dtype="bfloat16")]

    def check_workload(self, workload):
        pass

    def make_inputs(self, workload, seed, device):
        dtype = getattr(torch, workload.text("dtype"))
        if device == "meta":
            return {name: torch.empty(N, N, dtype=dtype, device=device) for name in "ab"}
        source = torch.Generator().manual_seed(seed)
        return {name: torch.rand(N, N, generator=source).add(1).to(dtype) for name in "ab"}

    def outputs(self, workload):
        return {"c": TensorSpec((N, N), workload.text("dtype"))}

    def reference(self, workload, inputs):
        a, b = inputs["a"].double(), inputs["b"].double()
        a.view(-1)[-1] = 1.5
        way = workload.get("way", "dot")
        if way == "arithmetic":
            return {"c": (2.5 + b) / a - torch.maximum(a, b) ** 2}
        if way == "reductions":
            return {"c": (a * b).sum(1)[:, None] + b.cumsum(1) + a.max(0).values}
        if way == "float8":
            a = (a * 300).clamp_max(448).to(torch.float8_e4m3fn).double()
            return {"c": a @ b.to(torch.float8_e4m3fn).double()}
        if way == "fma":
            return {"c": a * b - (a * b).float()}
        if way == "overflow":
            return {"c": a}
        return {"c": 3 * a if way == "counter" else a @ b}

    def tolerance(self, workload):
        return Tolerance(1e-2, 8e-2)

    def cost(self, workload):
        return Cost(1.0, 1.0)

    def space(self, workload):
        return SearchSpace([Choice("way", ("dot", "libdevice", "wrong"))], kernel=self.name)

    def default_config(self, workload, device):
        return {"way": "dot"}

    def baselines(self, workload):
        return {}

    def launches(self, workload, config, tensors):
        args = (tensors["a"], tensors["b"], tensors["c"])
        return [Launch(tile, (1,), args, {"N": N, "WAY": config["way"]})]
