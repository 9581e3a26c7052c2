"""Devices tests tune for without having them, and the way to compile for one."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from search_spaces.kernel import Kernel, Launch
from search_spaces.records import Config, Device, Workload
from search_spaces.registry import BUILT_IN, compiles_without_torch
from search_spaces.shape_tensor import torch_dtype
from workers.compiling.binary import cubin_resources

H200 = Device("cuda", "NVIDIA H200", "cuda:90", 132, 141 << 30, 232448, 65536)
MI300X = Device("hip", "AMD Instinct MI300X", "hip:gfx942", 304, 192 << 30, 65536, 131072, 64)
#: The built-in families that run on GPUs.
GPU_FAMILIES = sorted(filter(compiles_without_torch, BUILT_IN))
CPU = Device("cpu", "EPYC", "cpu:x86-64-avx512", 2, 8 << 30)
CPU_AVX2 = Device("cpu", "EPYC", "cpu:x86-64-avx2", 2, 8 << 30)


class Offline:
    """A Triton driver for an absent device; each target has separate caches."""

    def __init__(self, target: str) -> None:
        from triton.backends.compiler import GPUTarget

        kind, _, arch = target.partition(":")
        hip = kind == "hip"
        self.target = GPUTarget(kind, arch if hip else int(arch), 64 if hip else 32)
        # Compiled code is kept by device number: stay clear of those of real devices.
        self.device = 901 if hip else 900

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


def meta_tensors(kernel: Kernel, workload: Workload, config: Config) -> dict[str, torch.Tensor]:
    tensors = dict(kernel.make_inputs(workload, 0, "meta"))
    for name, spec in {**kernel.outputs(workload), **kernel.scratch(workload, config)}.items():
        tensors[name] = torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="meta")
    return tensors


def build(launch: Launch, device: Device) -> Any:
    from triton.runtime import driver

    before = driver._active
    driver.set_active(Offline(device.target))
    try:
        return launch.fn.warmup(*launch.args, grid=launch.grid, **launch.kwargs)
    finally:
        driver._active = before


def assemble(kernel: Kernel, workload: Workload, config: Config | None = None) -> str:
    """The PTX of a config's first launch for an H200; it is feasible, fits and does not spill.

    config: None is the default config.
    """
    if config is None:
        config = kernel.default_config(workload, H200)
    assert kernel.space(workload).bind(workload, H200).why_not(config) is None, workload.key
    launch = kernel.launches(workload, config, meta_tensors(kernel, workload, config))[0]
    built = build(launch, H200)
    assert spilled_bytes(built) == 0, (workload.key, config)
    assert built.metadata.shared <= H200.shared_bytes
    return str(built.asm["ptx"])


#: The factor on the tolerance of families whose baselines round between operations; 1 of others.
_ROUNDED = {
    "activation": 2,
    "activation_backward": 4,
    "causal_convolution": 2,
    "cpu_attention": 2,
    "int8_matmul": 2,
    "online_softmax": 2,
    "recurrent_cell": 2,
    "rotary": 2,
}


def check_baseline(kernel: Kernel, workload: Workload, name: str = "eager") -> None:
    """Check that a baseline computes the outputs as they are declared, on the CPU."""
    inputs, tolerance = kernel.make_inputs(workload, 1, "cpu"), kernel.tolerance(workload)
    factor = _ROUNDED.get(kernel.name, 1)
    before = {key: tensor.clone() for key, tensor in inputs.items()}
    got = kernel.baselines(workload)[name](inputs)
    assert all(torch.equal(before[key], inputs[key]) for key in before)
    for output, exact in kernel.reference(workload, inputs).items():
        spec, found = kernel.outputs(workload)[output], got[output]
        assert (tuple(found.shape), found.dtype) == (spec.shape, torch_dtype(spec.dtype))
        off = (found.double() - exact.double()).abs()
        assert float(off.norm()) <= factor * tolerance.relative * float(exact.double().norm())
        assert bool((off <= factor * tolerance.elementwise * (1 + exact.double().abs())).all())


def resources(built: Any) -> dict[str, int]:
    """REG (registers), STACK and LOCAL (bytes) of a cubin."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}


def spilled_bytes(built: Any) -> int:
    """Bytes of a thread's values that a cubin keeps in memory; ptxas counts them as stack."""
    return cubin_resources(built.asm["cubin"]).spill_bytes
