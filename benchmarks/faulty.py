# mypy: ignore-errors
"""A kernel with variants that hang, crash, spill, corrupt the context or compute wrong results."""

import torch
import triton
import triton.language as tl

from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.params import Choice, PowerOfTwo
from search_spaces.records import TensorSpec, Workload
from search_spaces.space import SearchSpace

FAULTS = ("none", "hangs", "aborts", "illegal", "spills", "wrong", "nan", "raises")


@triton.jit
def doubled(X, Y, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(X + at, mask=mask, other=1.0)
    if FAULT == "hangs":
        seen = tl.load(X)
        while seen < 1e30:
            seen = tl.load(X, volatile=True)
    if FAULT == "illegal":
        at += 1 << 40
    if FAULT == "wrong":
        x += 0.5
    if FAULT == "nan":
        x = tl.where(at == 3, float("nan"), x)
    # Faulty variants need different code: the farm copies results between equal binaries.
    if FAULT == "aborts":
        x *= 1.0000001
    if FAULT == "raises":
        x *= 1.0000002
    if FAULT == "spills":
        rows = tl.arange(0, 64)
        many = x[None, :] * rows[:, None]
        for _ in range(4):
            many = many * 1.0001 + tl.sum(many, axis=0)[None, :] * 1e-9
        x += tl.sum(many, axis=0) * 0.0
    tl.store(Y + at, x * 2, mask=mask)


class Faulty(Kernel):
    """y = 2 x. `fault` selects the fault of a variant; `aborts` kills the launching process."""

    name = "faulty"
    kinds = ("cuda",)

    def workloads(self):
        return [Workload.of(n=1 << 22, dtype="float32")]

    def check_workload(self, workload):
        pass

    def small_workload(self, workload):
        return workload.with_dims(n=613)

    def make_inputs(self, workload, seed, device):
        drawn = torch.Generator().manual_seed(seed)
        return {"x": torch.rand(workload.size("n"), generator=drawn).to(device)}

    def outputs(self, workload):
        return {"y": TensorSpec((workload.size("n"),), "float32")}

    def reference(self, workload, inputs):
        return {"y": inputs["x"].double() * 2}

    def tolerance(self, workload):
        return Tolerance(1e-5, 1e-5)

    def cost(self, workload):
        return Cost(float(workload.size("n")), 8.0 * workload.size("n"))

    def space(self, workload):
        return SearchSpace(
            [
                Choice("fault", FAULTS),
                PowerOfTwo("BLOCK", 512, 2048),
                Choice("num_warps", (4,)),
            ],
            (),
            kernel=self.name,
        )

    def default_config(self, workload, device):
        return {"fault": "none", "BLOCK": 1024, "num_warps": 4}

    def launches(self, workload, config, tensors):
        n, fault = workload.size("n"), config["fault"]
        # A builder has no tensors on a device, so only the launching process dies.
        if fault == "aborts" and tensors["x"].is_cuda:
            import os

            os.abort()
        if fault == "raises" and tensors["x"].is_cuda:
            raise ValueError("no such tile")
        grid = (triton.cdiv(n, config["BLOCK"]),)
        constants = {"BLOCK": config["BLOCK"], "FAULT": fault, "num_warps": config["num_warps"]}
        return [Launch(doubled, grid, (tensors["x"], tensors["y"], n), constants)]

    def baselines(self, workload):
        return {"eager": lambda inputs: {"y": inputs["x"] * 2}}


FAULTY = Faulty()
