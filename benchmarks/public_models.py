"""Sizes of public models, as their `config.json` files on the Hugging Face hub have them, and the
workloads that layers of them make."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Dims: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A transformer. act: swiglu, geglu, or gelu and gelu_tanh of a layer with biases."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    act: str = "swiglu"
    norm: str = "rms_norm"


#: Language models.
MODELS = [
    Model("Llama 3 8B", 4096, 14336, 32, 8, 128, 128256),
    Model("Llama 3 70B", 8192, 28672, 64, 8, 128, 128256),
    Model("Llama 3.2 1B", 2048, 8192, 32, 8, 64, 128256),
    Model("Llama 3.2 3B", 3072, 8192, 24, 8, 128, 128256),
    Model("Llama 2 7B", 4096, 11008, 32, 32, 128, 32000),
    Model("Llama 2 13B", 5120, 13824, 40, 40, 128, 32000),
    Model("Qwen2.5 0.5B", 896, 4864, 14, 2, 64, 151936),
    Model("Qwen2.5 1.5B", 1536, 8960, 12, 2, 128, 151936),
    Model("Qwen2.5 3B", 2048, 11008, 16, 2, 128, 151936),
    Model("Qwen2 7B", 3584, 18944, 28, 4, 128, 152064),
    Model("Qwen2.5 14B", 5120, 13824, 40, 8, 128, 152064),
    Model("Qwen2.5 32B", 5120, 27648, 40, 8, 128, 152064),
    Model("Qwen2 72B", 8192, 29568, 64, 8, 128, 152064),
    Model("Qwen3 0.6B", 1024, 3072, 16, 8, 128, 151936),
    Model("Qwen3 1.7B", 2048, 6144, 16, 8, 128, 151936),
    Model("Qwen3 4B", 2560, 9728, 32, 8, 128, 151936),
    Model("Qwen3 8B", 4096, 12288, 32, 8, 128, 151936),
    Model("Qwen3 14B", 5120, 17408, 40, 8, 128, 151936),
    Model("Qwen3 32B", 5120, 25600, 64, 8, 128, 151936),
    Model("Mistral 7B", 4096, 14336, 32, 8, 128, 32768),
    Model("Mistral Nemo 12B", 5120, 14336, 32, 8, 128, 131072),
    Model("Mistral Small 24B", 5120, 32768, 32, 8, 128, 131072),
    Model("Gemma 2 2B", 2304, 9216, 8, 4, 256, 256000, "geglu"),
    Model("Gemma 2 9B", 3584, 14336, 16, 8, 256, 256000, "geglu"),
    Model("Gemma 2 27B", 4608, 36864, 32, 16, 128, 256000, "geglu"),
    Model("Gemma 3 4B", 2560, 10240, 8, 4, 256, 262208, "geglu"),
    Model("Gemma 3 27B", 5376, 21504, 32, 16, 128, 262208, "geglu"),
    Model("Phi 3 mini", 3072, 8192, 32, 32, 96, 32064),
    Model("Phi 4", 5120, 17920, 40, 10, 128, 100352),
    Model("Phi 2", 2560, 10240, 32, 32, 80, 51200, "gelu_tanh", "layer_norm"),
    Model("Falcon 7B", 4544, 18176, 71, 1, 64, 65024, "gelu", "layer_norm"),
    Model("GPT-2", 768, 3072, 12, 12, 64, 50257, "gelu_tanh", "layer_norm"),
    Model("GPT-2 XL", 1600, 6400, 25, 25, 64, 50257, "gelu_tanh", "layer_norm"),
    Model("GPT-NeoX 20B", 6144, 24576, 64, 64, 96, 50432, "gelu", "layer_norm"),
    Model("Yi 34B", 7168, 20480, 56, 8, 128, 64000),
]
#: Encoders of images, sound and text; the vocabulary is the tokens of an image or a segment.
ENCODERS = [
    Model("ViT B/16", 768, 3072, 12, 12, 64, 197, "gelu", "layer_norm"),
    Model("ViT L/16", 1024, 4096, 16, 16, 64, 197, "gelu", "layer_norm"),
    Model("ViT H/14", 1280, 5120, 16, 16, 80, 257, "gelu", "layer_norm"),
    Model("SigLIP so400m", 1152, 4304, 16, 16, 72, 729, "gelu_tanh", "layer_norm"),
    Model("Whisper large", 1280, 5120, 20, 20, 64, 1500, "gelu", "layer_norm"),
    Model("BERT base", 768, 3072, 12, 12, 64, 512, "gelu", "layer_norm"),
]
#: Channels and pixels of a side in the blocks of Stable Diffusion 1.5 and XL.
IMAGES = [(320, 64), (640, 32), (1280, 16), (1280, 8), (320, 128), (640, 64), (1280, 32)]
#: Experts and choices: Mixtral, DeepSeek V2 lite, Qwen3 30B-A3B, OLMoE, GPT-OSS, DBRX.
ROUTERS = [(8, 2), (64, 6), (128, 8), (64, 8), (32, 4), (16, 4)]

#: Numbers of tokens, when workloads are drawn: of prefilling or training, and of decoding.
_PREFILL, _DECODE = (128, 16384), (1, 256)


class Draw:
    """Random workloads by kernel, with sizes of the models and any number of tokens."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def workload(self, kernel: str) -> Dims:
        dims: Dims = getattr(self, f"_{kernel}", self._of_rows)(kernel)
        return dims

    def _tokens(self, decodes: bool = True) -> int:
        low, high = _DECODE if decodes and self._random.random() < 0.3 else _PREFILL
        return round(low * (high / low) ** self._random.random())

    def _model(self, accepts: Callable[[Model], bool] = lambda model: True) -> Model:
        return self._random.choice([each for each in MODELS + ENCODERS if accepts(each)])

    def _dtype(self) -> str:
        return self._random.choice(["bfloat16"] * 4 + ["float16"])

    def _of_rows(self, kernel: str) -> Dims:
        return {"rows": self._tokens(), "cols": self._model().hidden, "dtype": self._dtype()}

    def _rms_norm(self, kernel: str) -> Dims:
        model, tokens = self._model(lambda each: each.norm == "rms_norm"), self._tokens()
        if self._random.random() < 0.3:
            return {"rows": tokens * model.heads, "cols": model.head_dim, "dtype": self._dtype()}
        return {"rows": tokens, "cols": model.hidden, "dtype": self._dtype()}

    def _layer_norm(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.norm == "layer_norm")
        return {"rows": self._tokens(), "cols": model.hidden, "dtype": self._dtype()}

    def _add_norm(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.norm == "rms_norm")
        dims = {"rows": self._tokens(), "cols": model.hidden, "kind": "rms_norm", "to": "same"}
        return {**dims, "dtype": self._dtype()}

    def _norm_backward(self, kernel: str) -> Dims:
        model, tokens = self._model(), self._tokens(decodes=False)
        return {"rows": tokens, "cols": model.hidden, "kind": model.norm, "dtype": self._dtype()}

    def _softmax(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.vocab < 1000 or each.vocab > 32000)
        if model.vocab < 2000:
            rows, cols = model.heads * model.vocab * self._random.randint(1, 16), model.vocab
        else:
            rows, cols = self._random.choice((1, 16, 32)) * self._tokens(), self._tokens()
        return {"rows": min(rows, 2**19), "cols": max(cols, 8), "dtype": self._dtype()}

    def _online_softmax(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.vocab > 32768)
        dims = {"rows": self._random.randint(1, 1024), "cols": model.vocab}
        return {**dims, "dtype": self._dtype(), "log": self._random.random() < 0.5, "mask": "none"}

    def _activation(self, kernel: str) -> Dims:
        model = self._model()
        dims = {"rows": self._tokens(), "cols": model.intermediate, "function": model.act}
        return {**dims, "dtype": self._dtype()}

    def _rotary(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.norm == "rms_norm" and each.head_dim != 96)
        heads = {"q_heads": model.heads, "k_heads": model.kv_heads, "head_dim": model.head_dim}
        return {"tokens": self._tokens(), **heads, "interleaved": False, "dtype": self._dtype()}

    def _group_norm(self, kernel: str) -> Dims:
        channels, side = self._random.choice(IMAGES)
        return {"batch": self._random.randint(1, 16), "channels": channels, "pixels": side * side,
                "groups": 32, "layout": "nchw", "dtype": "float16"}  # fmt: skip

    def _quantize(self, kernel: str) -> Dims:
        model, to = self._model(lambda each: each.act == "swiglu"), "float8_e4m3fn"
        cols = self._random.choice((model.hidden, model.intermediate))
        return {"rows": self._tokens(), "cols": cols, "scales": "row", "to": to,
                "dtype": "bfloat16"}  # fmt: skip

    def _cross_entropy(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.vocab > 30000)
        rows = min(self._tokens(decodes=False), 2**30 // model.vocab)
        return {"rows": rows, "cols": model.vocab, "dtype": self._dtype()}

    _cross_entropy_backward = _cross_entropy

    def _topk_routing(self, kernel: str) -> Dims:
        experts, top_k = self._random.choice(ROUTERS)
        return {"tokens": self._tokens(), "experts": experts, "top_k": top_k, "renormalize": True,
                "dtype": self._random.choice(("bfloat16", "float32"))}  # fmt: skip

    def _embedding(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.vocab > 30000)
        dims = {"tokens": self._tokens(), "vocab": model.vocab, "dim": model.hidden}
        return {**dims, "dtype": self._dtype()}

    def _matmul(self, kernel: str) -> Dims:
        model = self._model()
        n, k = self._random.choice((
            (model.intermediate, model.hidden), (model.hidden, model.intermediate),
            (model.heads * model.head_dim, model.hidden),
        ))  # fmt: skip
        return {"M": self._tokens(), "N": n, "K": k, "dtype": self._dtype()}

    def _linear(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.act in ("swiglu", "gelu"))
        dims = {"M": self._tokens(), "N": model.intermediate, "K": model.hidden}
        return {**dims, "epilogue": model.act, "bias": model.act == "gelu", "dtype": self._dtype()}

    def _attention(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.heads == each.kv_heads and each.head_dim in (64, 128))
        tokens = model.vocab if model.vocab < 2000 else min(self._tokens(decodes=False), 8192)
        return {"batch": self._random.randint(1, 8), "heads": model.heads, "sequence": tokens,
                "head_dim": model.head_dim, "causal": model.vocab > 2000,
                "dtype": self._dtype()}  # fmt: skip

    def _grouped_attention(self, kernel: str) -> Dims:
        model = self._model(lambda each: each.heads != each.kv_heads != 1)
        tokens = min(self._tokens(decodes=False), 8192)
        return {"batch": self._random.randint(1, 4), "q_heads": model.heads,
                "kv_heads": model.kv_heads, "queries": tokens, "keys": tokens,
                "head_dim": model.head_dim, "causal": True, "window": 0,
                "dtype": self._dtype()}  # fmt: skip

    def _convolution(self, kernel: str) -> Dims:
        channels, side = self._random.choice(IMAGES)
        return {"batch": self._random.randint(1, 8), "height": side, "width": side,
                "in_channels": channels, "out_channels": channels, "kernel_h": 3, "kernel_w": 3,
                "stride": 1, "padding_h": 1, "padding_w": 1, "dilation": 1, "groups": 1,
                "dtype": "float16"}  # fmt: skip


#: The families that are drawn in turn.
FAMILIES = (
    "rms_norm", "matmul", "add_norm", "attention", "activation", "linear", "rotary",
    "grouped_attention", "layer_norm", "softmax", "group_norm", "cross_entropy", "convolution",
    "quantize", "norm_backward", "topk_routing", "online_softmax", "embedding",
    "cross_entropy_backward",
)  # fmt: skip


def draw(seed: int, count: int) -> Iterator[tuple[str, Dims]]:
    """As many workloads, each family in turn; the families go on where another seed ended."""
    source = Draw(seed)
    for at in range(count):
        kernel = FAMILIES[(seed * count + at) % len(FAMILIES)]
        yield kernel, source.workload(kernel)


# -- the grid that is tuned ------------------------------------------------------------------------
_FEW, _MANY = 48, 4096


def _widths(sizes: Iterator[int], ratio: float) -> list[int]:
    """Of all sizes, such that each other one is within a ratio of one of them."""
    found: list[int] = []
    for size in sorted(set(sizes)):
        if not found or size > found[-1] * ratio:
            found.append(size)
    return found


def list_norms() -> Iterator[tuple[str, Dims]]:
    """Workloads over the widths of the models, to be tuned and shipped."""
    half, rms = {"dtype": "bfloat16"}, [m for m in MODELS if m.norm == "rms_norm"]
    for cols in _widths((m.hidden for m in rms), 1.1):
        for rows in (_FEW, _MANY):
            yield "rms_norm", {"rows": rows, "cols": cols, **half}
            yield "add_norm", {"rows": rows, "cols": cols, "kind": "rms_norm", "to": "same", **half}
        yield "norm_backward", {"rows": _MANY, "cols": cols, "kind": "rms_norm", **half}
    for cols in (64, 96, 128, 256):
        for rows in (2048, 2**17):
            yield "rms_norm", {"rows": rows, "cols": cols, **half}
            yield "add_norm", {"rows": rows, "cols": cols, "kind": "rms_norm", "to": "same", **half}
    for cols in (768, 1152, 1600, 2560, 4544, 6144):
        yield "norm_backward", {"rows": _MANY, "cols": cols, "kind": "layer_norm", **half}
        yield "layer_norm", {"rows": _FEW, "cols": cols, **half}
    for channels, side in IMAGES:
        for layout in ("nchw", "nhwc"):
            yield "group_norm", {"batch": 4, "channels": channels, "pixels": side * side,
                                 "groups": 32, "layout": layout, "dtype": "float16"}  # fmt: skip


def list_activations() -> Iterator[tuple[str, Dims]]:
    for act in ("swiglu", "geglu", "gelu", "gelu_tanh"):
        sizes = (model.intermediate for model in MODELS + ENCODERS if model.act == act)
        for cols in _widths(sizes, 1.5):
            for rows in (_FEW, _MANY):
                dims = {"rows": rows, "cols": cols, "function": act, "dtype": "bfloat16"}
                yield "activation", dims
                if rows == _MANY:
                    yield "activation_backward", dims


def list_softmaxes() -> Iterator[tuple[str, Dims]]:
    half = {"dtype": "bfloat16"}
    for cols in (32000, 65024, 151936, 256000):
        for rows in (256, 2048):
            yield "cross_entropy", {"rows": rows, "cols": cols, **half}
            yield "cross_entropy_backward", {"rows": rows, "cols": cols, **half}
            yield "online_softmax", {"rows": rows // 8, "cols": cols, **half, "log": rows == 256,
                                     "mask": "none"}  # fmt: skip
    for cols in (197, 512, 1500, 4096, 16384):
        for rows in (3072, 49152):
            yield "softmax", {"rows": rows, "cols": cols, **half}


def list_tokens() -> Iterator[tuple[str, Dims]]:
    """The same of what else is bound by memory."""
    half, gated = {"dtype": "bfloat16"}, [m for m in MODELS if m.act == "swiglu"]
    yield from list_activations()
    for heads in ((14, 2, 64), (32, 8, 64), (12, 2, 128), (24, 8, 128), (32, 32, 128),
                  (40, 8, 128), (8, 4, 256)):  # fmt: skip
        for tokens in (_FEW, _MANY):
            dims = dict(zip(("q_heads", "k_heads", "head_dim"), heads, strict=True))
            yield "rotary", {"tokens": tokens, **dims, "interleaved": False, **half}
    for cols in _widths((c for m in gated for c in (m.hidden, m.intermediate)), 1.6):
        for rows in (_FEW, _MANY):
            yield "quantize", {"rows": rows, "cols": cols, "scales": "row", "to": "float8_e4m3fn",
                               **half}  # fmt: skip
    yield from list_softmaxes()
    for experts, top_k in ROUTERS:
        for tokens, dtype in ((_FEW, "float32"), (_MANY, "bfloat16")):
            yield "topk_routing", {"tokens": tokens, "experts": experts, "top_k": top_k,
                                   "renormalize": True, "dtype": dtype}  # fmt: skip
    for dim in (1024, 2560, 5120):
        for tokens in (_FEW, _MANY):
            yield "embedding", {"tokens": tokens, "vocab": 151936, "dim": dim, **half}


def list_products() -> Iterator[tuple[str, Dims]]:
    """The same of layers and attention, whose tasks take longer."""
    half = {"dtype": "bfloat16"}
    for n, k in ((4864, 896), (8192, 2048), (18944, 3584), (13824, 5120), (28672, 8192)):
        for m in (_FEW, 512, _MANY):
            dims = {"M": m, "N": n, "K": k, "epilogue": "swiglu", "bias": False}
            yield "linear", {**dims, **half}
    for n, k in ((3072, 768), (4096, 1024), (5120, 1280), (18176, 4544)):
        dims = {"M": _MANY, "N": n, "K": k, "epilogue": "gelu", "bias": True}
        yield "linear", {**dims, **half}
    for heads, dim, sequence, causal in ((12, 64, 197, False), (16, 64, 512, False),
                                         (20, 64, 1500, False), (12, 64, 4096, True),
                                         (32, 128, 1024, True), (40, 128, 4096, True)):  # fmt: skip
        yield "attention", {"batch": 4, "heads": heads, "sequence": sequence, "head_dim": dim,
                            "causal": causal, **half}  # fmt: skip
    for heads, kv_heads, dim in ((14, 2, 64), (32, 8, 64), (28, 4, 128), (40, 8, 128), (8, 4, 256)):
        for tokens in (640, 3000):
            yield "grouped_attention", {
                "batch": 2, "q_heads": heads, "kv_heads": kv_heads, "queries": tokens,
                "keys": tokens, "head_dim": dim, "causal": True, "window": 0, **half,
            }  # fmt: skip


def write_campaigns() -> str:
    """The grid as a configuration of campaigns; JSON, which is YAML."""
    campaigns = {}
    grids = {"norms": list_norms(), "tokens": list_tokens(), "products": list_products()}
    for name, grid in grids.items():
        tasks: dict[str, list[Dims]] = {}
        for kernel, dims in grid:
            tasks.setdefault(kernel, []).append(dims)
        campaigns[f"model_{name}"] = {
            "description": "Widths of public models",
            "targets": ["cuda"],
            "tasks": [{"kernel": kernel, "workloads": each} for kernel, each in tasks.items()],
            "budget": {"trials": "auto", "max_trials": 24},
            "strategy": {"name": "bayes", "seed": 1},
        }
    pool = {"kind": "local", "build_timeout": "60s", "measure_timeout": "60s"}
    return json.dumps(
        {"version": 1, "database": {"url": "sqlite:///tuner.db"},
         "paths": {"results": ".", "tables": "tables"}, "pool": pool, "campaigns": campaigns},
        indent=1,
    )  # fmt: skip


if __name__ == "__main__":
    print(write_campaigns())
