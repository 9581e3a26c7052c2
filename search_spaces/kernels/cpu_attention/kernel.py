"""Scaled dot-product attention on a CPU: torch's fused kernel, or forms that Inductor compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.declaration.dimensions import check_dims, tolerance_of
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, TensorSpec, Tolerance
from search_spaces.kernels.cpu_attention.forms import (
    composed,
    flexible,
    in_chunks,
    sdpa,
    sdpa_in,
)
from search_spaces.kernels.cpu_forms import (
    ATEN,
    FLOATS,
    CpuKernel,
    element_bytes,
    form_space,
)
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.kernels.launch_limits import MAX_SIZE, integer
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import generator, named, random_tensor

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
    arguments = _NAMES

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(1, 12, 128, 64, "float32"),  # BERT-base: 128 tokens
            _workload(1, 6, 1500, 64, "float32"),  # Whisper tiny: the encoder
            _workload(1, 12, 512, 64, "float32", causal=True),  # GPT-2: 512 tokens
            _workload(1, 16, 512, 128, "bfloat16", causal=True),  # Qwen3 0.6B: 512 tokens
            _workload(1, 32, 2048, 128, "bfloat16").with_dims(queries=1),  # Llama-3 8B: decoding
            _workload(1, 12, 197, 64, "bfloat16"),  # ViT-B/16: one image
            _workload(2, 8, 77, 64, "float32", causal=True),  # CLIP: two texts
            _workload(1, 12, 512, 64, "float32").with_dims(tolerance=1e-2),
        ]

    def check_workload(self, workload: Workload) -> None:
        sizes = dict.fromkeys(_SIZES, MAX_SIZE)
        check_dims(
            self.name,
            workload,
            sizes=sizes,
            dtypes=FLOATS,
            flags=("causal",),
            optional=("tolerance",),
        )
        if workload["causal"] and workload["queries"] != workload["keys"]:
            raise WorkloadError(
                f"{self.name} [{workload.key}]: causal with {workload['queries']} queries and "
                f"{workload['keys']} keys",
                "give as many queries as keys, or causal=false",
            )

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(batch=2, heads=3, queries=69, keys=69, head_dim=32)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        source = generator(seed, device)
        # Scores of a standard deviation of 2: some keys matter more, and the largest so far moves.
        scales = {"q": 2.0, "k": 1.0, "v": 1.0}
        specs = {name: _spec(workload, "queries" if name == "q" else "keys") for name in _NAMES}
        return {
            name: random_tensor(spec, source, device, scales[name]) for name, spec in specs.items()
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": _spec(workload, "queries")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = (inputs[name].double() for name in _NAMES)
        return {"out": composed(causal=bool(workload["causal"]))(*exact)}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The workload's own, else the error of rounding the weights and then the output."""
        dtype = workload.text("dtype")
        usual = _BFLOAT16_ROUNDING if dtype == "bfloat16" else ROUNDING[dtype]
        relative = tolerance_of(workload, usual)
        return Tolerance(relative, 2 * relative)

    def cost(self, workload: Workload) -> Cost:
        batch, heads, queries, keys, dim = (workload.size(name) for name in _SIZES)
        pairs = keys * (keys + 1) / 2 if workload["causal"] else queries * keys
        elements = 2.0 * batch * heads * (queries + keys) * dim
        moved = elements * element_bytes(workload.text("dtype"))
        return Cost(flops=4.0 * batch * heads * pairs * dim, bytes=moved)

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

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        plain = composed(causal=bool(workload["causal"]))
        return {**super().baselines(workload), "composed": named("out", plain, *_NAMES)}


def _workload(
    batch: int, heads: int, tokens: int, head_dim: int, dtype: str, *, causal: bool = False
) -> Workload:
    return Workload.of(
        batch=batch,
        heads=heads,
        queries=tokens,
        keys=tokens,
        head_dim=head_dim,
        causal=causal,
        dtype=dtype,
    )


def _spec(workload: Workload, tokens: str) -> TensorSpec:
    shape = tuple(workload.size(name) for name in ("batch", "heads", tokens, "head_dim"))
    return TensorSpec(shape, workload.text("dtype"))


def _chunk_sizes(queries: int) -> list[int]:
    """Powers of two that divide the queries into 2 to 16 chunks; the last one may be shorter."""
    sizes = [1 << exponent for exponent in range(_LEAST_CHUNK.bit_length() - 1, 10)]
    return [size for size in sizes if size < queries <= _MOST_CHUNKS * size and size <= _MOST_CHUNK]
