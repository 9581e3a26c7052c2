"""Calls of kernels in packages from PyPI, as a user would type them.

`given` makes the arguments and is not counted: a user has them. `call` is the library's own
function. `options` are further arguments of `tuner.tune`.
"""

from __future__ import annotations

from dataclasses import dataclass

LIGER, FLA, TORCHAO = "liger-kernel", "fla-core", "torchao"
XFORMERS, CCE, SAGE = "xformers", "cut-cross-entropy", "sageattention"
LIGHTNING = "lightning-attn"


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel of one package. kernel: as the table of calls names it. rows: a size that may be
    divided where there is no GPU."""

    package: str
    kernel: str
    given: str
    call: str
    options: str = "widen=True"
    rows: int = 8192


def bf16(*sizes: str) -> str:
    """Code that makes tensors; the first letter of a size is their name."""
    made = [f"{s[0]} = torch.randn({s[2:]}, dtype=torch.bfloat16, device=device)" for s in sizes]
    return "; ".join(made)


CASES = {
    "liger_rms_norm": Case(
        LIGER,
        "_rms_norm_forward_kernel",
        "from liger_kernel.ops.rms_norm import LigerRMSNormFunction\n"
        + bf16("x=rows, 4096", "w=4096"),
        'y = LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False)',
    ),
    "liger_swiglu": Case(
        LIGER,
        "_swiglu_forward_kernel",
        "from liger_kernel.ops.swiglu import LigerSiLUMulFunction\n"
        + bf16("a=rows, 4096", "b=rows, 4096"),
        "y = LigerSiLUMulFunction.apply(a, b)",
    ),
    "liger_layer_norm": Case(
        LIGER,
        "_layer_norm_forward_kernel",
        "from liger_kernel.ops.layer_norm import LigerLayerNormFunction\n"
        + bf16("x=rows, 4096", "w=4096", "b=4096"),
        "y = LigerLayerNormFunction.apply(x, w, b, 1e-5)",
    ),
    "liger_cross_entropy": Case(
        LIGER,
        "liger_cross_entropy_kernel",
        "from liger_kernel.ops.cross_entropy import cross_entropy_forward\n"
        + bf16("x=rows, 32000")
        + "; t = torch.randint(0, 32000, (rows,), device=device)\n"
        + "rest = None, -100, 0.0, 0.0, 'mean', None, False",
        "y = cross_entropy_forward(x.clone(), t, *rest)",
        rows=2048,
    ),
    "fla_chunk_o": Case(
        FLA,
        "chunk_fwd_kernel_o",
        "from fla.ops.common.chunk_o import chunk_fwd_o\n"
        + bf16(
            "q=1, rows, 16, 128",
            "k=1, rows, 16, 128",
            "v=1, rows, 16, 128",
            "h=1, rows // 64, 16, 128, 128",
        ),
        "y = chunk_fwd_o(q, k, v, h)",
    ),
    "fla_l2norm": Case(
        FLA,
        "l2norm_fwd_kernel",
        "from fla.modules.norm.l2norm import l2norm_fwd\n" + bf16("x=rows * 16, 128"),
        "y = l2norm_fwd(x)",
    ),
    "fla_local_cumsum": Case(
        FLA,
        "chunk_local_cumsum_scalar_kernel",
        "from fla.ops.utils.cumsum import chunk_local_cumsum\n"
        "g = torch.randn(4, rows, 64, device=device)",
        "y = chunk_local_cumsum(g, 64)",
    ),
    "torchao_quantize": Case(
        TORCHAO,
        "triton_fp8_blockwise_weight_quant_rhs_kernel",
        "from torchao.prototype.blockwise_fp8_training import kernels\n" + bf16("x=rows, 4096"),
        "y = kernels.triton_fp8_blockwise_weight_quant_rhs(x)",
    ),
    "xformers_rms_norm_add": Case(
        XFORMERS,
        "_rms_norm_add_kernel",
        "from xformers.ops._triton.rmsnorm_kernels import _rms_norm_add_forward\n"
        + bf16("x=rows, 4096", "y=rows, 4096", "w=4096"),
        "z = _rms_norm_add_forward(x.clone(), y, w, 1e-6)",
    ),
    "cce_indexed_dot": Case(
        CCE,
        "_indexed_neg_dot_forward_kernel",
        "from cut_cross_entropy.indexed_dot import indexed_neg_dot_forward_kernel\n"
        + bf16("e=rows, 2048", "c=32000, 2048")
        + "; i = torch.randint(0, 32000, (rows,), device=device)",
        "y = indexed_neg_dot_forward_kernel(e, c, i)",
    ),
    "cce_log_sum_exp": Case(
        CCE,
        "_cce_lse_forward_kernel",
        "from cut_cross_entropy.cce_lse_forward import cce_lse_forward_kernel\n"
        + bf16("e=rows, 1024", "c=32000, 1024"),
        "y = cce_lse_forward_kernel(e, c)",
        rows=2048,
    ),
    "sage_attention": Case(
        SAGE,
        "_attn_fwd",
        "from sageattention.quant_per_block import per_block_int8\n"
        "from sageattention.attn_qk_int8_per_block import forward\n"
        "q, k, v = (torch.randn(2, 16, rows, 128, dtype=torch.float16, device=device)"
        " for _ in range(3))\n"
        "a, s, b, t = per_block_int8(q, k)",
        "y = forward(a, b, v, s, t)",
        rows=2048,
    ),
    "sage_quantize": Case(
        SAGE,
        "quant_per_block_int8_kernel",
        "from sageattention.quant_per_block import per_block_int8\n"
        "q = torch.randn(4, 32, rows, 128, dtype=torch.float16, device=device)\n"
        "k = torch.randn(4, 32, 64, 128, dtype=torch.float16, device=device)",
        "y = per_block_int8(q, k)",
        options="widen=True",
        rows=4096,
    ),
    "lightning_attention": Case(
        LIGHTNING,
        "_fwd_kernel",
        "from lightning_attn.ops.triton import lightning_attn2\n"
        + bf16("q=4, 16, rows, 128", "k=4, 16, rows, 128", "v=4, 16, rows, 128")
        + "; s = torch.rand(16, device=device) / 10",
        "y = lightning_attn2(q, k, v, s)",
        rows=2048,
    ),
    "torchao_int8_mm": Case(
        TORCHAO,
        "_scaled_int8_mm_kernel",
        "from torchao.prototype.quantized_training.int8_mm import scaled_int8_mm_cuda\n"
        "a, b = (torch.randint(-128, 128, (rows, 4096), dtype=torch.int8, device=device)"
        " for _ in range(2))\n" + bf16("r=rows", "c=rows"),
        "y = scaled_int8_mm_cuda(a, b.t(), r, c)",
        rows=4096,
        options="",
    ),
}
