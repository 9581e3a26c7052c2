"""Stream-K products: no multiprocessor is idle while the last tiles are computed.

Where tiles do not fill whole waves, plain programs leave up to a wave of multiprocessors idle. Here
the last tiles are divided along K over all programs; what that costs are their partial sums, which
are written and read once in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import alignment, ceil_div
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Launch
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import MAX_SIZE, integer
from search_spaces.kernels.matmul.kernel import Matmul
from search_spaces.kernels.matmul.space import takes_descriptors
from search_spaces.kernels.products import tiles
from search_spaces.kernels.stream_k_matmul.space import default_point, product_of, stream_k_space
from search_spaces.kernels.stream_k_matmul.triton_kernels import add_parts_kernel, stream_k_kernel
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, sm_count

#: Tiles at the edge end up to one block beyond the matrix.
_LARGEST_BLOCK = 256
#: Steps of all shared tiles are counted in 32 bits.
_LARGEST, _DEEPEST = MAX_SIZE - _LARGEST_BLOCK, 1 << 22
#: Multiprocessors that are used at most, for which scratch memory has places.
_MOST_MULTIPROCESSORS = 320
#: Elements and warps of a program of the second launch.
_ADDED, _ADDING_WARPS = 4096, 4


class StreamKMatmul(Matmul):
    """a[M, K] @ b[K, N] by stream-K; dims M, N, K, dtype and, optionally, tolerance (relative
    error).

    The parameter `resident` is the number of programs per multiprocessor. All share the tiles of
    the last, partial wave and of `waves` whole ones along K.
    """

    name = "stream_k_matmul"
    edges = SPECIAL_EDGES
    dims = Dims(M=_LARGEST, N=_LARGEST, K=_DEEPEST, dtype=DTYPES, tolerance=float)

    def workloads(self) -> Sequence[Workload]:
        shapes = [
            (1024, 5120, 25600, "bfloat16"),  # Qwen3 32B, down, 1,024 tokens
            (1500, 1280, 5120, "float16"),  # Whisper large-v3, second layer of an MLP
            (2048, 4096, 14336, "bfloat16"),  # Llama-3 8B, down, 2,048 tokens
            (1024, 10240, 8192, "bfloat16"),  # Llama-3 70B, q, k and v, 1,024 tokens
            (256, 7168, 16384, "bfloat16"),  # DeepSeek-V3, attention's output, 256 tokens
            (4096, 2880, 4096, "bfloat16"),  # GPT-OSS 120B, attention's output, 4,096 tokens
            (256, 256, 65536, "bfloat16"),
            (1000, 1003, 997, "float16"),
            (1536, 1536, 1536, "float32"),
        ]
        return [Workload.of(M=m, N=n, K=k, dtype=dtype) for m, n, k, dtype in shapes]

    def small_workload(self, workload: Workload) -> Workload:
        aligned = takes_descriptors(workload)
        return workload.with_dims(M=37, N=40 if aligned else 39, K=136 if aligned else 133)

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        most = _programs(workload, config, _MOST_MULTIPROCESSORS)
        tile = (integer(config, "BLOCK_M"), integer(config, "BLOCK_N"))
        return {"partial": workload.spec(most, 2, *tile, dtype="float32")}

    def space(self, workload: Workload) -> SearchSpace:
        return stream_k_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        programs = _programs(workload, config, sm_count(tensors["a"]))
        return [
            _stream_launch(workload, config, tensors, programs),
            _adding_launch(workload, config, tensors, programs),
        ]


def _programs(workload: Workload, config: Config, multiprocessors: int) -> int:
    """Programs of the first launch: no more than there are steps."""
    used = min(multiprocessors, _MOST_MULTIPROCESSORS) * integer(config, "resident")
    steps = ceil_div(workload.size("K"), integer(config, "BLOCK_K"))
    return min(used, tiles(product_of(config, workload), config) * steps)


def _constants(workload: Workload, config: Config) -> dict[str, Any]:
    """What both launches must agree on."""
    m, n, k = workload.sizes("M", "N", "K")
    edge = _LARGEST_BLOCK
    return {
        **{name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")},
        "WAVES": config["waves"],
        "ALIGN_N": alignment(n),
        # Tiles at the edge compute addresses of up to one block beyond the matrix.
        "WIDE": max((m + edge) * k, (k + edge) * n, (m + edge) * n) > MAX_SIZE,
    }


def _stream_launch(workload: Workload, config: Config, tensors: Tensors, programs: int) -> Launch:
    a, b, out = (tensors[name] for name in ("a", "b", "out"))
    sizes = dict(zip("MNK", workload.sizes("M", "N", "K"), strict=True))
    blocks = {dim: integer(config, f"BLOCK_{dim}") for dim in "MNK"}
    described = config.get("loads") == "descriptor"
    constants = {
        **_constants(workload, config),
        **{f"EVEN_{dim}": sizes[dim] % blocks[dim] == 0 for dim in "MNK"},
        "ALIGN_K": alignment(sizes["K"]),
        "DESCRIBED": described,
        "PRECISION": config.get("precision", "ieee"),
        "num_warps": config["num_warps"],
        "num_stages": config["num_stages"],
    }
    strides = (a.stride(0), b.stride(0), out.stride(0))
    matrices: tuple[Any, ...] = (a, b, out)
    if described:
        sides = ("MK", "KN", "MN")
        matrices = tuple(
            TensorDescriptor.from_tensor(matrix, [blocks[dim] for dim in each])
            for matrix, each in zip(matrices, sides, strict=True)
        )
    arguments = (*matrices, tensors["partial"], *sizes.values(), *strides)
    return Launch(stream_k_kernel, (programs,), arguments, constants)


def _adding_launch(workload: Workload, config: Config, tensors: Tensors, programs: int) -> Launch:
    """Also where no tile is in parts, so that every device needs the same binaries."""
    partial, out = tensors["partial"], tensors["out"]
    count = tiles(product_of(config, workload), config)
    streamed = min(count % programs + integer(config, "waves") * programs, count)
    rows = min(integer(config, "BLOCK_M"), max(1, _ADDED // integer(config, "BLOCK_N")))
    constants = {**_constants(workload, config), "ROWS": rows, "num_warps": _ADDING_WARPS}
    grid = (max(1, streamed), integer(config, "BLOCK_M") // rows)
    arguments = (partial, out, *workload.sizes("M", "N", "K"), out.stride(0), programs)
    return Launch(add_parts_kernel, grid, arguments, constants)
