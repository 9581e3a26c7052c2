# mypy: ignore-errors
"""A kernel that creates tensor descriptors on the device, which needs global memory."""

import torch
import triton
import triton.language as tl

from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.records import TensorSpec, Workload

N = 256


@triton.jit
def shifted(X, Y, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(X, [n, n], [n, 1], [BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(Y, [n, n], [n, 1], [BLOCK, BLOCK])
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    target.store([row, column], source.load([row, column]) + 1)


class Described(Kernel):
    """y = x + 1 by tiles of `block`; with `planted`, with another number of warps than it was built
    for."""

    name = "described"

    def workloads(self):
        return [Workload.of(dtype="float32")]

    def check_workload(self, workload):
        pass

    def make_inputs(self, workload, seed, device):
        if device == "meta":
            return {"x": torch.empty(N, N, device=device)}
        source = torch.Generator(device).manual_seed(seed)
        return {"x": torch.randn(N, N, generator=source, device=device)}

    def outputs(self, workload):
        return {"y": TensorSpec((N, N), "float32")}

    def reference(self, workload, inputs):
        return {"y": inputs["x"].double() + 1}

    def tolerance(self, workload):
        return Tolerance(1e-5, 1e-5)

    def cost(self, workload):
        return Cost(1.0, 1.0)

    def space(self, workload):
        raise NotImplementedError

    def default_config(self, workload, device):
        return {"block": 64}

    def baselines(self, workload):
        return {}

    def launches(self, workload, config, tensors):
        block = config["block"]
        args = (tensors["x"], tensors["y"], N)
        other = config.get("planted") and tensors["x"].device.type != "meta"
        options = {"BLOCK": block, "num_warps": 8 if other else 4}
        return [Launch(shifted, (N // block, N // block), args, options)]
