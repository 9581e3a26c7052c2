"""Linear layers: out = epilogue(a @ w^T + bias), one launch or two.

Two launches write the product and read it again. Where M or N is small, that costs little and
permits splits of K; where K is small, it is most of the traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import alignment, ceil_div, next_power_of_two
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.limits import MAX_SIZE, integer
from search_spaces.kernels.linear.baselines import baselines_of, exact_layer
from search_spaces.kernels.linear.space import (
    default_config,
    is_gated,
    linear_space,
    product_of,
    splits,
    width,
)
from search_spaces.kernels.linear.triton_kernels import (
    descriptor_linear_kernel,
    epilogue_kernel,
    linear_kernel,
)
from search_spaces.kernels.products import product_tolerance, tiles
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, sm_count

EPILOGUES = ("none", "relu1", "gelu", "silu", "swiglu", "residual")
#: Rows of tiles at the edge end up to one block beyond the matrix; gated weights have 2 N rows.
_LARGEST_BLOCK = 256
_LARGEST, _LARGEST_N = MAX_SIZE - _LARGEST_BLOCK, MAX_SIZE // 2 - _LARGEST_BLOCK
#: Elements of a program of the second launch, and the longest part of a row.
_ELEMENTS, _LONGEST, _EPILOGUE_WARPS = 4096, 1024, 8
#: Operations of one output besides the product, roughly.
_EPILOGUE_FLOPS = 10.0


class Linear(Kernel):
    """epilogue(a[M, K] @ w^T + bias); dims M, N, K, epilogue, bias, dtype and, optionally,
    tolerance (relative error).

    Weights w are [N, K], as `torch.nn.Linear` holds them. epilogue: none, relu1 (clamped to 0 and
    1), gelu (erf), silu, residual (adds residual[M, N]) or swiglu, whose weights are [2 N, K]: the
    gate's rows first, then the value's. bias: whether there is one; `none` needs it.

    The parameter `fused` says whether one kernel applies the epilogue to its tile in registers, or
    a second kernel to the product. Only the second form splits K (`SPLIT_K`), since all parts must
    be summed first.
    """

    name = "linear"
    edges = SPECIAL_EDGES
    dims = Dims(
        M=_LARGEST,
        N=_LARGEST_N,
        K=_LARGEST,
        epilogue=EPILOGUES,
        bias=bool,
        dtype=DTYPES,
        tolerance=float,
    )

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (4096, 14336, 4096, "swiglu", False, "bfloat16"),  # Llama-3 8B, gate and up
            (4096, 4096, 14336, "residual", False, "bfloat16"),  # Llama-3 8B, down
            (16, 28672, 8192, "swiglu", False, "bfloat16"),  # Llama-3 70B, decoding
            (16, 8192, 28672, "residual", False, "bfloat16"),  # Llama-3 70B, decoding
            (12000, 5120, 1280, "gelu", True, "float16"),  # Whisper large-v3, 8 segments
            (12000, 1280, 5120, "residual", True, "float16"),  # Whisper large-v3
            (65536, 256, 512, "relu1", True, "bfloat16"),  # DLRM's bottom MLP
            (100352, 256, 64, "relu1", True, "float16"),  # ResNet-50's 1x1, 32 images
            (401408, 96, 16, "silu", True, "bfloat16"),  # EfficientNet-B0's first 1x1
            (2048, 1024, 1024, "none", True, "float32"),  # DLRM's top MLP
            (1000, 1003, 997, "gelu", True, "float16"),
        )

    def small_workload(self, workload: Workload) -> Workload:
        # Descriptors need rows of whole 16 bytes, so where the workload has them, keep them.
        each = ELEMENT_BYTES[workload.text("dtype")]
        aligned = all(workload.size(dim) * each % 16 == 0 for dim in ("K", "N"))
        return workload.with_dims(M=37, N=72 if aligned else 71, K=136 if aligned else 131)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        found = {
            "a": workload.spec("M", "K"),
            # Scaled so that sums are of the order of one, whatever K.
            "w": workload.spec(width(workload), "K", scale=1 / sqrt(workload.size("K"))),
        }
        if workload["bias"]:
            found["bias"] = workload.spec(width(workload), scale=0.5)
        if workload["epilogue"] == "residual":
            found["residual"] = workload.spec("M", "N")
        return found

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = workload.sizes("M", "N", "K")
        return {"out": workload.spec(m, n)}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        if config["fused"]:
            return {}
        shape = (workload.size("M"), width(workload))
        if splits(config) == 1:
            return {"product": workload.spec(*shape)}
        return {"product": workload.spec(splits(config), *shape, dtype="float32")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return exact_layer(workload, inputs)

    def tolerance(self, workload: Workload) -> Tolerance:
        # Two launches round gate and value before the output.
        return product_tolerance(workload, roundings=3 if is_gated(workload) else 1)

    def flops(self, workload: Workload) -> float:
        m, n, k = workload.sizes("M", "N", "K")
        rows = width(workload)
        return 2.0 * m * rows * k + _EPILOGUE_FLOPS * m * n

    def space(self, workload: Workload) -> SearchSpace:
        return linear_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_config(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if config["fused"]:
            given = {**tensors, "product": tensors["out"]}
            return [_product_launch(workload, config, given)]
        given = {name: tensors[name] for name in ("a", "w", "product")}
        return [
            _product_launch(workload, config, given),
            _epilogue_launch(workload, config, tensors),
        ]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        return baselines_of(workload)


def _product_launch(workload: Workload, config: Config, tensors: Tensors) -> Launch:
    """The product into `product`; with the epilogue where it is fused."""
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
    fused = bool(config["fused"])
    constants: dict[str, Any] = {
        **{name: config[name] for name in names},
        "EPILOGUE": workload["epilogue"] if fused else "none",
        "HAS_BIAS": fused and workload["bias"],
        "PRECISION": config.get("precision", "ieee"),
    }
    if config.get("loads") == "descriptor":
        return _descriptor_launch(workload, config, tensors, constants)
    return _pointer_launch(workload, config, tensors, constants)


def _pointer_launch(
    workload: Workload, config: Config, tensors: Tensors, constants: dict[str, Any]
) -> Launch:
    a, w, out = tensors["a"], tensors["w"], tensors["product"]
    product = product_of(config, workload)
    m, n, k = product.rows, product.cols, product.depth
    parts, rows, edge = splits(config), width(workload), _LARGEST_BLOCK
    constants |= {
        "SPLIT_K": parts,
        "EVEN_M": m % integer(config, "BLOCK_M") == 0,
        "EVEN_N": n % integer(config, "BLOCK_N") == 0,
        "EVEN_K": k % integer(config, "BLOCK_K") == 0,
        "ALIGN_K": alignment(k),
        "ALIGN_N": alignment(n),
        # Tiles at the edge compute addresses of up to one block beyond the matrix.
        "WIDE": max((m + edge) * max(k, n), (rows + edge) * k) > MAX_SIZE,
    }
    optional = (tensors.get("bias"), tensors.get("residual"))
    arguments = (a, w, *optional, out, m, n, k, a.stride(0), w.stride(0), out.stride(-2))
    return Launch(linear_kernel, (tiles(product, config), parts), arguments, constants)


def _descriptor_launch(
    workload: Workload, config: Config, tensors: Tensors, constants: dict[str, Any]
) -> Launch:
    block_m, block_n, block_k = (integer(config, f"BLOCK_{dim}") for dim in "MNK")
    part = [block_m, block_n // integer(config, "subtiles")]
    blocks = {
        "a": [block_m, block_k],
        "w": [block_n, block_k],
        "residual": part,
        "product": part,
    }
    described = {
        name: TensorDescriptor.from_tensor(tensors[name], block)
        for name, block in blocks.items()
        if name in tensors
    }
    product = product_of(config, workload)
    persistent, count = bool(config["persistent"]), tiles(product, config)
    grid = min(count, sm_count(tensors["a"])) if persistent else count
    arguments = (
        described["a"],
        described["w"],
        tensors.get("bias"),
        described.get("residual"),
        described["product"],
        *(product.rows, product.cols, product.depth),
    )
    constants |= {"PERSISTENT": persistent, "SUBTILES": integer(config, "subtiles")}
    return Launch(descriptor_linear_kernel, (grid,), arguments, constants)


def _epilogue_launch(workload: Workload, config: Config, tensors: Tensors) -> Launch:
    m, n, _ = workload.sizes("M", "N", "K")
    block = min(_LONGEST, next_power_of_two(n))
    rows = min(_ELEMENTS // block, next_power_of_two(m))
    constants = {
        "EPILOGUE": workload["epilogue"],
        "HAS_BIAS": workload["bias"],
        "SPLIT_K": splits(config),
        "ROWS": rows,
        "BLOCK": block,
        "ALIGN_N": alignment(n),
        "num_warps": _EPILOGUE_WARPS,
    }
    named = (tensors.get(name) for name in ("product", "bias", "residual", "out"))
    grid = (ceil_div(m, rows) * ceil_div(n, block),)
    return Launch(epilogue_kernel, grid, (*named, m, n), constants)
