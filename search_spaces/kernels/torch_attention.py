"""torch's attention on heads in groups, as the baselines of the attention families.

q is [batch, q_heads, queries, head_dim], k and v are [batch, kv_heads, keys, head_dim].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.kernels.masked_attention import Mask
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch

_NAMES = ("q", "k", "v")


def attention_baselines(
    mask: Mask, queries: int, keys: int
) -> Mapping[str, Callable[[Tensors], Tensors]]:
    """Explicit softmax (`eager`), torch.compile, cuDNN (`vendor`), flash and flex_attention."""
    sdpa = {
        name: _Sdpa(mask, queries, keys, backend)
        for name, backend in (
            ("eager", "MATH"),
            ("vendor", "CUDNN_ATTENTION"),
            ("flash", "FLASH_ATTENTION"),
        )
    }
    return {
        **{name: named("out", one, *_NAMES) for name, one in sdpa.items()},
        "compile": named("out", _compiled_sdpa(mask, queries, keys), *_NAMES),
        "flex": named("out", _compiled_flex(mask, queries, keys), *_NAMES),
    }


def require_cuda(what: str, tensor: torch.Tensor) -> None:
    """Raise `RuntimeError` for a tensor that is not on a CUDA device."""
    if tensor.device.type != "cuda":
        raise RuntimeError(f"{what} needs CUDA tensors, got one on {tensor.device.type}")


def flash_window(mask: Mask) -> dict[str, Any]:
    """The mask as torch's flash attention takes it, which aligns the last query to the last key."""
    if mask.window:
        return {
            "is_causal": False,
            "window_size_left": mask.window - 1,
            "window_size_right": 0,
        }
    return {"is_causal": mask.causal}


def varlen_attention(arguments: tuple[str, ...]) -> Callable[..., Any]:
    """torch's `varlen_attn`, or a `RuntimeError` where this torch's does not take the arguments."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise RuntimeError("torch.nn.attention.varlen needs torch 2.10 or newer") from error
    for name in arguments:
        if not takes(varlen_attn, name):
            raise RuntimeError(f"this torch's varlen_attn takes no {name}; a newer torch does")
    return varlen_attn


def takes(function: Callable[..., Any], argument: str) -> bool:
    """Whether a function has an argument of that name."""
    return argument in inspect.signature(function).parameters


class _MaskTensor:
    """The mask that torch takes in addition to `is_causal`: a tensor that is made once, or None."""

    def __init__(self, mask: Mask, queries: int, keys: int) -> None:
        self._mask, self._queries, self._keys = mask, queries, keys
        self._needed = not mask.hides_nothing(queries, keys)
        self._needed &= not mask.is_plain_causal(queries, keys)
        self._made: torch.Tensor | None = None

    def on(self, device: torch.device) -> torch.Tensor | None:
        import torch

        if self._needed and (self._made is None or self._made.device != device):
            places = torch.arange(self._keys - self._queries, self._keys, device=device)
            at_keys = torch.arange(self._keys, device=device)
            self._made = self._mask.seen(places[:, None], at_keys)
        return self._made


class _Sdpa:
    """scaled_dot_product_attention by one of its backends, or a `RuntimeError`."""

    def __init__(self, mask: Mask, queries: int, keys: int, backend: str) -> None:
        self._mask, self._queries, self._keys = mask, queries, keys
        self._backend = backend
        self._bias = _MaskTensor(mask, queries, keys)
        self._causal = mask.is_plain_causal(queries, keys)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if self._backend != "MATH":
            require_cuda(self._backend, q)
        bias = self._bias.on(q.device)
        if bias is not None and self._backend == "FLASH_ATTENTION":
            return _flash(self._mask, q, k, v)
        with sdpa_kernel(getattr(SDPBackend, self._backend)):
            return _attend(q, k, v, bias, self._causal)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool
) -> torch.Tensor:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def _flash(mask: Mask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Flash attention with a window or more keys than queries, which torch's function refuses."""
    import torch

    heads_inside = (tensor.transpose(1, 2) for tensor in (q, k, v))
    settings = flash_window(mask)
    out: torch.Tensor = torch.ops.aten._flash_attention_forward(
        *heads_inside,
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        settings.pop("is_causal"),
        False,
        **settings,
    )[0]
    return out.transpose(1, 2)


def _compiled_sdpa(mask: Mask, queries: int, keys: int) -> Callable[..., torch.Tensor]:
    bias, causal = _MaskTensor(mask, queries, keys), mask.is_plain_causal(queries, keys)

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return _attend(q, k, v, bias, causal)

    return _with_last(compiled(attention), lambda q: bias.on(q.device))


def _compiled_flex(mask: Mask, queries: int, keys: int) -> Callable[..., torch.Tensor]:
    """flex_attention, which skips blocks that the mask hides; the blocks are found once."""
    made: list[Any] = []
    before = keys - queries

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return mask.seen(query + before, key)

    def blocks(q: torch.Tensor) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        if mask.hides_nothing(queries, keys):
            return None
        if not made:
            made.append(create_block_mask(sees, None, None, queries, keys, device=q.device.type))
        return made[0]

    def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Any = None) -> torch.Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, block_mask=blocks, enable_gqa=q.shape[1] != k.shape[1])

    return _with_last(compiled(flex), blocks)


def _with_last(
    fn: Callable[..., torch.Tensor], last: Callable[[torch.Tensor], Any]
) -> Callable[..., torch.Tensor]:
    """`fn` with one more argument, which `last` gives for q; known as compiled where `fn` is."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return fn(q, k, v, last(q))

    vars(run).update(vars(fn))
    return run
