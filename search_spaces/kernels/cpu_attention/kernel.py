"""Scaled dot-product attention on a CPU: torch's fused kernel, or forms that Inductor compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims, tolerance_of
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Tolerance
from search_spaces.kernels.cpu_attention.forms import composed, flexible, in_chunks, sdpa, sdpa_in
from search_spaces.kernels.cpu_forms import ATEN, FLOATS, CpuKernel, form_space
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.kernels.limits import integer
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, TensorSpec, Workload
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    from search_spaces.kernels.cpu_forms import Form, Tensors

_NAMES = ("q", "k", "v")
_SIZES = ("batch", "heads", "queries", "keys", "head_dim")
_FLOAT32, _BFLOAT16 = f"{ATEN}_float32", f"{ATEN}_bfloat16"
#: Relative error in bfloat16, where the rounding of the weights adds to that of the output.
_BFLOAT16_ROUNDING = 8e-3
_LEAST_CHUNK, _MOST_CHUNK, _MOST_CHUNKS = 32, 512, 16


class CpuAttention(CpuKernel):
    """Attention of q, k and v on a CPU; dims batch, heads, queries, keys, head_dim, causal, dtype.

    Tensors are [batch, heads, queries or keys, head_dim]; causal needs as many queries as keys.
    Optionally tolerance (relative error). The form is `aten` (torch's fused kernel), `composed`
    (two batched products and a compiled softmax), `chunks` (the same for `chunk` queries at a time,
    without keys that the mask excludes), `flex` (Inductor's template of flex_attention), or torch's
    kernel in the other dtype: `aten_float32` for bfloat16, and `aten_bfloat16` for float32 where
    the tolerance is 8e-3 or more.
    """

    name = "cpu_attention"
    dims = Dims(
        batch=int,
        heads=int,
        queries=int,
        keys=int,
        head_dim=int,
        causal=bool,
        dtype=FLOATS,
        tolerance=float,
    )
    small = {"batch": 2, "heads": 3, "queries": 69, "keys": 69, "head_dim": 32}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (1, 12, 128, 128, 64, False, "float32"),  # BERT-base: 128 tokens
            (1, 6, 1500, 1500, 64, False, "float32"),  # Whisper tiny: the encoder
            (1, 12, 512, 512, 64, True, "float32"),  # GPT-2: 512 tokens
            (1, 16, 512, 512, 128, True, "bfloat16"),  # Qwen3 0.6B: 512 tokens
            (1, 32, 1, 2048, 128, False, "bfloat16"),  # Llama-3 8B: decoding
            (1, 12, 197, 197, 64, False, "bfloat16"),  # ViT-B/16: one image
            (2, 8, 77, 77, 64, True, "float32"),  # CLIP: two texts
            (1, 12, 512, 512, 64, False, "float32", 0.01),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        if workload["causal"] and workload["queries"] != workload["keys"]:
            raise WorkloadError(
                f"{self.name} [{workload.key}]: causal with {workload['queries']} queries and "
                f"{workload['keys']} keys",
                "give as many queries as keys, or causal=false",
            )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        # Scores of a standard deviation of 2: some keys matter more, and the largest so far moves.
        keys = workload.spec("batch", "heads", "keys", "head_dim")
        queries = workload.spec("batch", "heads", "queries", "head_dim", scale=2.0)
        return {"q": queries, "k": keys, "v": keys}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("batch", "heads", "queries", "head_dim")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = (inputs[name].double() for name in _NAMES)
        return {"out": composed(causal=bool(workload["causal"]))(*exact)}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The workload's own, else the error of rounding the weights and then the output."""
        dtype = workload.text("dtype")
        usual = _BFLOAT16_ROUNDING if dtype == "bfloat16" else ROUNDING[dtype]
        relative = tolerance_of(workload, usual)
        return Tolerance(relative, 2 * relative)

    def flops(self, workload: Workload) -> float:
        batch, heads, queries, keys, dim = (workload.size(name) for name in _SIZES)
        pairs = keys * (keys + 1) / 2 if workload["causal"] else queries * keys
        return 4.0 * batch * heads * pairs * dim

    def space(self, workload: Workload) -> SearchSpace:
        forms = [ATEN, "composed", "flex"]
        parameters: list[Parameter] = []
        if workload["dtype"] == "bfloat16":
            forms.append(_FLOAT32)
        elif self.tolerance(workload).relative >= _BFLOAT16_ROUNDING:
            forms.append(_BFLOAT16)
        if chunks := _chunk_sizes(workload.size("queries")):
            forms.append("chunks")
            parameters.append(
                PowerOfTwo("chunk", chunks[0], chunks[-1], when={"form": ("chunks",)})
            )
        return form_space(self.name, forms, parameters)

    def options(self, workload: Workload, config: Config) -> Mapping[str, Any]:
        # Otherwise, Inductor replaces the composed form by torch's fused kernel.
        return {"pattern_matcher": False}

    def eager(self, workload: Workload) -> Form:
        return sdpa(causal=bool(workload["causal"]))

    def form(self, workload: Workload, config: Config) -> Form:
        causal = bool(workload["causal"])
        forms: Mapping[str, Callable[[], Form]] = {
            ATEN: lambda: sdpa(causal=causal),
            _FLOAT32: lambda: sdpa_in("float32", causal=causal),
            _BFLOAT16: lambda: sdpa_in("bfloat16", causal=causal),
            "composed": lambda: composed(causal=causal),
            "chunks": lambda: in_chunks(integer(config, "chunk"), causal=causal),
            "flex": lambda: flexible(causal=causal),
        }
        return forms[str(config["form"])]()

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        return {"composed": composed(causal=bool(workload["causal"]))}


def _chunk_sizes(queries: int) -> list[int]:
    """Powers of two that divide the queries into 2 to 16 chunks; the last one may be shorter."""
    sizes = [1 << exponent for exponent in range(_LEAST_CHUNK.bit_length() - 1, 10)]
    return [size for size in sizes if size < queries <= _MOST_CHUNKS * size and size <= _MOST_CHUNK]
