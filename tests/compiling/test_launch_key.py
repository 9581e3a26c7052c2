"""A launch finds its binary in the cache, or a note names the part of the key that differs."""

from __future__ import annotations

import build_kernels
import pytest
import torch
import triton
import triton.language as tl

from search_spaces.kernel import Launch
from search_spaces.records import TensorSpec, Workload
from search_spaces.triton_versions import settle_cache_keys
from workers.compiling import count_compilations, install
from workers.compiling.absent_target import use_target
from workers.compiling.job import build_kernel
from workers.compiling.launch_key import difference
from workers.device import offline
from workers.job_records import Artifact, BuildJob, KernelRef

WORKLOAD = Workload.of(n=1024)


@triton.jit
def cast(X, Y, stride, dtype: tl.constexpr, n: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at * stride, at < n).to(Y.dtype.element_ty), at < n)


class Cast(build_kernels._Base):
    """Takes a dtype by position as a constant, like kernels of torchao."""

    name = "cast"

    def make_inputs(self, workload, seed, device):
        return {"x": torch.empty(workload.size("n"), device=device)}

    def outputs(self, workload):
        return {"y": TensorSpec((workload.size("n"),), "float16")}

    def launches(self, workload, config, tensors):
        n, block = workload.size("n"), config["block"]
        args = (tensors["x"], tensors["y"], config.get("stride", 1), torch.float16, n)
        return [Launch(cast, (n // block,), args, {"BLOCK": block, "num_warps": 4})]


def built(cache):
    job = BuildJob("job", KernelRef("cast"), WORKLOAD, {"block": 128}, offline("cuda:90"))
    artifact = build_kernel(Cast(), job, cache)
    assert isinstance(artifact, Artifact), artifact
    return artifact


def launched(artifact, cache, *, offset=0, **config):
    """What a device worker compiles for the artifact, without the launch itself."""
    install(artifact, cache)
    tensors = {"x": torch.empty(1024 + offset)[offset:], "y": torch.empty(1024).half()}
    cast.device_caches.clear()
    with use_target("cuda:90"), count_compilations(import_inductor=False) as seen:
        for launch in Cast().launches(WORKLOAD, {"block": 128, **config}, tensors):
            launch.fn.run(*launch.args, grid=launch.grid, warmup=True, **launch.kwargs)
    return seen


def test_a_dtype_by_position_is_a_constant_when_built_as_when_launched(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    artifact = built(tmp_path / "builder")
    assert artifact.keys[0]["constant dtype"] == "torch.float16"
    seen = launched(artifact, tmp_path / "runner")
    assert (seen.names, seen.missed) == ([], [])
    assert seen.keys == list(artifact.keys)


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        (
            {"offset": 1},
            "alignment of X was [['tt.divisibility', 16]] when built, is nothing when launched",
        ),
        (
            {"stride": 3},
            "type of stride was constexpr when built, is i32 when launched; "
            "constant stride was 1 when built, is nothing when launched",
        ),
        ({"block": 256}, "constant BLOCK was 128 when built, is 256 when launched"),
    ],
)
def test_a_difference_is_named(tmp_path, monkeypatch, planted, named):
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    artifact = built(tmp_path / "builder")
    seen = launched(artifact, tmp_path / "runner", **planted)
    assert seen.names == ["cast"]
    assert difference(artifact.keys, seen.missed[0]) == f"`cast`: {named}"


def test_a_kernel_that_was_not_built_is_named(tmp_path):
    keys = built(tmp_path).keys
    assert difference(keys, {**keys[0], "kernel": "other"}) == (
        "`other` was not built for this variant (cast was)"
    )
    assert difference(keys, keys[0]) == (
        "the key of `cast` is the same; its files were not in the cache"
    )
    many = {**keys[0], "Triton": "x", "assembler": "y", "source code": "z", "option maxnreg": "8"}
    assert difference(keys, many).endswith("; 1 more parts")


SCALE = tl.constexpr(2.0)


@triton.jit
def scaled(x):
    return x * SCALE


@triton.jit
def both_scaled(x):
    return scaled(x) + 1.0


@triton.jit
def scale_rows(X, Y, n: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, both_scaled(tl.load(X + at, at < n)), at < n)


@triton.jit
def scale_once(X, Y, n: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, scaled(tl.load(X + at, at < n)), at < n)


def source_hash(*kernels):
    """The hash of `scale_rows` in a process that hashes these kernels one after the other."""
    for function in (scaled, both_scaled, scale_rows, scale_once):
        function.hash, function.used_global_vals = None, {}
        function.device_caches.clear()
    x, y = torch.empty(1024), torch.empty(1024)
    with use_target("cuda:90"), count_compilations(import_inductor=False) as seen:
        for kernel in kernels:
            kernel.warmup(x, y, n=1024, BLOCK=128, grid=(8,))
    return {key["kernel"]: key["source code"] for key in seen.keys}["scale_rows"]


def test_a_source_hash_does_not_depend_on_what_was_hashed_before():
    assert source_hash(scale_rows) == source_hash(scale_once, scale_rows)


def test_a_device_worker_settles_hashes_before_it_launches_a_reference():
    """As of a captured kernel, whose reference launches it where no compilations are counted."""
    settle_cache_keys()
    settle_cache_keys()
    first = source_hash(scale_rows)
    for function in (scaled, both_scaled, scale_rows):
        function.hash, function.used_global_vals = None, {}
    assert scale_rows.cache_key
    hashed = scale_rows.hash
    for function in (scaled, both_scaled, scale_rows):
        function.hash, function.used_global_vals = None, {}
    _ = scaled.cache_key, both_scaled.cache_key
    assert scale_rows.cache_key
    assert scale_rows.hash == hashed
    assert first == source_hash(scale_once, scale_rows)
